"""The files `leadline scanners new` writes: a scanner that works and keeps the contract, and its test."""

from __future__ import annotations

from string import Template

_SCANNER = Template('''\
"""$cls: say here what it reads and how it ranks."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State


class $cls(Scanner):
    """All channels at `planes` bit planes. This line is what `leadline scanners list` shows.

    planes: bit planes read of every channel, 1 to 4.
    """

    name: ClassVar[str] = "$name"
    headline: ClassVar[tuple[str, ...]] = ("planes",)  # options the label always shows
    planes: int = Field(default=1, ge=1, le=4)  # --scanner $name.py:$cls:planes=2

    # To use statistics of keys and queries, return "calibration" or "session" from a property `needs`, and make a State
    # of them in `calibrate(statistics)`; `build`, `plan` and `score` receive it.

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        # Once per layer. keys [H, n, d]; fields [H, channels, levels, items] must be copies, the keys will be gone.
        return plane_store.build(keys, None, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        # query [..., H, G, d]. How many levels of each channel to read, [H, d] or [..., H, d]; not what fields hold.
        heads, channels = index.fields["planes"].shape[:2]
        return plane_store.read(torch.full((heads, channels), self.planes, dtype=torch.int64, device=query.device))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        # [..., H, G, n] in fp32 from what was delivered. Sinks, the local window, the tail and top-k are not yours.
        return plane_store.score(query, reads)
''')

_TEST = Template('''\
"""The $name scanner keeps the contract of leadline's scanners."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.registry import create
from leadline.scanners.conformance import Finding, check

SPEC = f"{Path(__file__).with_name('$name.py')}:$cls"


@pytest.mark.parametrize("options", ["", ":planes=4"])
def test_contract(options: str) -> None:
    failed: list[Finding] = [finding for finding in check(create(SPEC + options)) if not finding.passed]
    assert failed == []
''')


def class_name(name: str) -> str:
    """`my_scanner` -> `MyScanner`."""
    return "".join(part.capitalize() for part in name.split("_") if part)


def files(name: str) -> dict[str, str]:
    """File names and texts of a new scanner called `name`, a lower-case identifier."""
    values = {"name": name, "cls": class_name(name)}
    return {f"{name}.py": _SCANNER.substitute(values), f"test_{name}.py": _TEST.substitute(values)}
