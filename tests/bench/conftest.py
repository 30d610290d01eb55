"""Benchmarks gate on what a machine cannot change: every one records deterministic quantities (bytes, plans, indices).

They go into `benchmark.extra_info` and must equal `baseline.json`, exactly. Times are printed and never compared here.
A deliberate change rewrites the file: `pytest tests/bench --update-baseline`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

BASELINE = Path(__file__).with_name("baseline.json")
_FOUND = pytest.StashKey[dict[str, dict[str, Any]]]()
_COLLECTED = pytest.StashKey[set[str]]()


class Record(Protocol):
    """Called once by a benchmark with its deterministic quantities; tensors enter as a hash of their bytes."""

    def __call__(self, **quantities: Any) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-baseline", action="store_true", help="rewrite tests/bench/baseline.json")


def _updating(config: pytest.Config) -> bool:
    return bool(config.getoption("--update-baseline", default=False))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = BASELINE.parent
    config.stash[_COLLECTED] = {_name(item) for item in items if item.path.is_relative_to(here)}


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


@pytest.fixture(scope="session")
def baseline() -> Mapping[str, dict[str, Any]]:
    """The committed quantities by benchmark."""
    return json.loads(BASELINE.read_text()) if BASELINE.is_file() else {}


@pytest.fixture
def record(request: pytest.FixtureRequest, benchmark: Any, baseline: Mapping[str, dict[str, Any]]) -> Iterator[Record]:
    """Keep the quantities with the timing, and compare them with the committed ones."""
    found: dict[str, Any] = {}

    def keep(**quantities: Any) -> None:
        found.update({name: _plain(value) for name, value in quantities.items()})
        benchmark.extra_info.update(found)
        if _updating(request.config):
            request.config.stash.setdefault(_FOUND, {})[_name(request.node)] = dict(found)
            return
        assert _name(request.node) in baseline, "not in baseline.json; add it with pytest tests/bench --update-baseline"
        assert found == baseline[_name(request.node)]

    yield keep
    assert found, "a benchmark records what it computed"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        shape = "x".join(map(str, value.shape))
        whole = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{str(value.dtype).removeprefix('torch.')} {shape} {hashlib.sha256(whole).hexdigest()[:16]}"
    return value


@pytest.fixture(scope="session")
def unclaimed(request: pytest.FixtureRequest, baseline: Mapping[str, dict[str, Any]]) -> set[str]:
    """Baseline entries of the collected files that no benchmark has."""
    collected = request.config.stash[_COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    return {name for name in baseline if name.partition("::")[0] in files} - collected


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = session.config.stash.get(_FOUND, {})
    if not found:
        return
    old = json.loads(BASELINE.read_text()) if BASELINE.is_file() else {}
    collected = session.config.stash[_COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    kept = {name: value for name, value in old.items() if name.partition("::")[0] not in files or name in collected}
    BASELINE.write_text(json.dumps(dict(sorted((kept | found).items())), indent=1) + "\n")
