"""A short, seeded slice of `fuzz_readers.py`; its long run is started by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fuzz_readers", Path(__file__).with_name("fuzz_readers.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
fuzz_readers = importlib.util.module_from_spec(_SPEC)
sys.modules["fuzz_readers"] = fuzz_readers
_SPEC.loader.exec_module(fuzz_readers)


def test_mutated_recordings_give_a_session_or_a_reason() -> None:
    outcome = fuzz_readers.fuzz(600, seed=7)
    assert outcome.failures == []
    counts = outcome.counts
    assert counts["session"] > 200
    assert counts["broken"] > 100
    assert counts["round trip"] > 20


def test_a_broken_promise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> list[object]:
        raise RuntimeError("surprise")

    monkeypatch.setattr(fuzz_readers, "iter_sessions", fail)
    outcome = fuzz_readers.fuzz(3, seed=7)
    assert [failure.split(" ")[1] for failure in outcome.failures] == ["0", "1", "2"]
    assert "surprise" in outcome.failures[0]


def test_a_run_can_be_repeated() -> None:
    once, again = (fuzz_readers.fuzz(0, seed=7, only=5).counts for _ in range(2))
    assert once == again
    assert sum(once.values()) > 0
