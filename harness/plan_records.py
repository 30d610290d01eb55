"""What a dry run says: typed, frozen, units in the names. Nothing in it was measured unless a field says so."""

from __future__ import annotations

from typing import Literal

from leadline.records import Exclusion, Record

BitsFrom = Literal["fixed plan", "budget + 0.25 x stated active channels", "plans of made-up queries", "no scan"]


class PointPlan(Record):
    """One branch point: its prompt, and how many of its tokens prefill has to add to the rows."""

    step: int
    prompt_tokens: int
    prefilled_tokens: int
    recorded_tokens: int


class SessionPlan(Record):
    """One session that has branch points."""

    id: str
    path: str
    sha256: str
    steps: int
    points: tuple[PointPlan, ...]


class ScannerPlan(Record):
    """One contender at the run's longest prompt. Bytes of a decode step as in SPEC section 4: weights, scan, rows.

    `index_bytes` is what its store takes, padding included, 0 where `index_shared_with` names whose store it is.
    """

    sha256: str
    label: str
    role: str
    bits_per_token: float
    bits_from: BitsFrom
    branches: int
    scan_bytes_per_step: int
    row_bytes_per_step: int
    bytes_per_step: int
    index_bytes: int
    index_shared_with: str | None
    gpu_ms_per_step: float | None


class MemoryPlan(Record):
    """Bytes the run keeps at its longest session, and what there is. None where it cannot be known on this machine.

    `row_store_bytes` are the records of rows in host memory; `rows_bytes` the K/V rows beside the model.
    """

    weight_bytes: int
    rows_bytes: int
    row_store_bytes: int
    index_bytes: int
    device_bytes: int
    host_bytes: int
    device_available_bytes: int | None
    host_available_bytes: int

    @property
    def shortages(self) -> tuple[str, ...]:
        """What does not fit, in words."""
        sides = (
            ("the model's device", self.device_bytes, self.device_available_bytes),
            ("host memory", self.host_bytes, self.host_available_bytes),
        )
        return tuple(
            f"{where}: {needed / _GIB:.2f} GiB needed, {there / _GIB:.2f} GiB available"
            for where, needed, there in sides
            if needed and there is not None and needed > there
        )


_GIB = 1 << 30


class Rates(Record):
    """The rates behind predicted times. GB are 10^9 bytes; `link` and `memory` are None where no GPU is planned for."""

    source: str
    link_gb_per_second: float | None
    memory_gb_per_second: float | None


class RunPlan(Record):
    """A whole dry run. `seconds` is a prediction and `seconds_from` says what it stands on."""

    model: str
    dtype: str
    device: str
    placement: str
    k: int
    max_new_tokens: int
    layers: int
    scanned_layers: int
    kv_heads: int
    query_heads_per_kv_head: int
    head_dim: int
    longest_prompt_tokens: int
    prefill_tokens: int
    branch_points: int
    branches: int
    weight_bytes_per_step: int
    union_rows: int
    sessions: tuple[SessionPlan, ...]
    exclusions: tuple[Exclusion, ...]
    scanners: tuple[ScannerPlan, ...]
    memory: MemoryPlan
    rates: Rates
    seconds: float
    seconds_from: str
