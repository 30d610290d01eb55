"""What a fidelity measurement records: its protocol, its windows, and one figure per scanner, k, window and layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leadline.records import Record

Grid = Literal["full", "quick", "chosen"]


class FidelitySpec(Record):
    """The protocol of a measurement: everything that decides its numbers but the scanners.

    `k` is the selection every scanner is measured at, `sweep` the others, which some are measured at. `positions`: the
    last positions of every window that are measured. `basis_choice`: the calibration's store, None where it chose none.
    """

    model: str
    weights_sha256: str
    rope: str
    dtype: str
    device: str
    head_dim: int
    kv_heads: int
    groups: int
    layers: tuple[int, ...]
    text: str
    length: int
    positions: int
    k: int
    sweep: tuple[int, ...] = ()
    sink: int = 4
    local: int = 32
    chunk: int
    grid: Grid
    calibration_sha256: str | None = None
    calibration_length: int | None = None
    basis_choice: str | None = None
    notes: tuple[str, ...] = ()


class WindowRecord(Record):
    """One window: its place, where it was cut from, and the hash of its token ids."""

    window: int
    name: str
    sha256: str


class FigureRecord(Record):
    """One scanner at one k in one layer of one window; means over the measured positions and heads.

    `bits`: planned scan bits per token per KV head. `rows`: K/V rows per KV head, the union of its group. `recall`: the
    share of exact top-k's choice beyond sinks and local window.
    """

    label: str
    family: str
    k: int
    window: int
    layer: int
    error: float = Field(ge=0)
    recall: float
    bits: float
    rows: float


class FidelityResult(Record):
    """A whole measurement."""

    spec: FidelitySpec
    windows: tuple[WindowRecord, ...]
    figures: tuple[FigureRecord, ...]
