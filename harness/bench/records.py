"""What `leadline bench decode` is asked for and what it records: plain frozen objects, units in the names."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from leadline.meter_figures import StepTime
from leadline.records import Record

Regime = Literal["host", "rows-host", "device"]
Transfer = Literal["fused", "staged"]


class DecodeSpec(Record):
    """One invocation: the shape, the lengths and the scanners, and everything that changes a figure.

    contexts: tokens that a step sees, its own included. steps: timed steps of each scanner, each with queries of its
    own; warmup: untimed ones before them. distinct: layers whose rows and indexes are stored (layer l uses l %
    distinct); None leaves it to the memory there is.
    """

    shape: str = "qwen3-8b"
    contexts: tuple[int, ...] = Field(default=(1 << 17, 1 << 18, 1 << 19, 1 << 20), min_length=1)
    scanners: tuple[str, ...] = ()
    placement: Regime = "host"
    transfer: Transfer = "fused"
    batch: int = Field(default=1, ge=1)
    k: int = Field(default=512, ge=1)
    sink: int = Field(default=4, ge=0)
    local: int = Field(default=32, ge=0)
    steps: int = Field(default=10, ge=1)
    warmup: int = Field(default=2, ge=0)
    seed: int = 0
    distinct: int | None = Field(default=None, ge=1)


class Moved(Record):
    """Bytes of a decode step, all layers, KV heads and sequences: means over the timed steps' queries.

    scan_planned_bytes follows from the plans, scan_counted_bytes was counted inside the kernels of a counting build; a
    run in which they differ is refused. row_bytes: the union rows of K and V, those in the tail included. union_rows:
    rows per KV head and layer. bits_per_token: scan bits per token of the complete blocks, per KV head per layer.
    """

    scan_planned_bytes: float
    scan_counted_bytes: float
    row_bytes: float
    union_rows: float
    bits_per_token: float


class DecodeTime(Record):
    """The decode step of one scanner at one context: what it read, how long it took, on which contents.

    context: tokens the step sees, its own included, of each of `batch` sequences. index_bytes: what the indexes of all
    layers hold. Contents are synthetic; of the rows `distinct_rows_layers` layers are stored, of the indexes
    `distinct_index_layers`, with room for `capacity` tokens, and the other layers read those again: the bytes that move
    are the same. link_*: a pinned copy of 1 GiB before and after the timed steps. scan_gb_per_second: planned bytes
    over the time of the stages that move and score them; scan_link_share: that over the copy's rate (the mean of the
    two), where the index crosses the link. row_gb_per_second: row bytes over the rows' stage, union included.
    """

    shape: str
    context: int
    batch: int
    placement: Regime
    transfer: Transfer
    k: int
    seed: int
    scanner_sha256: str
    label: str
    name: str
    config: dict[str, Any]
    calibration_sha256: str | None
    layers: int
    block_tokens: int
    capacity: int
    weight_bytes: int
    index_bytes: int
    synthetic: bool = True
    distinct_rows_layers: int
    distinct_index_layers: int
    moved: Moved
    time: StepTime
    link_before_gb_per_second: float
    link_after_gb_per_second: float
    scan_gb_per_second: float | None
    scan_link_share: float | None
    row_gb_per_second: float | None


def rate(nbytes: float, time: StepTime, *stages: str) -> float | None:
    """GB/s (10^9 bytes) of bytes over the time of some stages; None where nothing moved or no stage was timed."""
    ms = sum((time.stage_ms or {}).get(stage, 0.0) for stage in stages)
    return nbytes / ms / 1e6 if ms and nbytes else None
