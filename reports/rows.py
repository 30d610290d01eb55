"""The typed rows that the queries give: one frozen dataclass per query, fields named as the SQL names its columns.

`scanner` and `session` fields are hashes. A field that averages nothing is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScannerLine:
    """One scanner; `shown` is its label in tables, unique in the run."""

    sha256: str
    label: str
    shown: str
    name: str
    role: str
    fused: bool
    calibration_sha256: str | None
    prefill_chunk: int | None


@dataclass(frozen=True)
class ScannerUnit:
    """Means over the steps of one unit under one scanner; `*_agreed`, `*_of`, `empty`, `repeating` are counts."""

    scanner: str
    unit: str
    sessions: int
    steps: int
    agreement: float
    dense_agreement: float
    recorded_agreement: float | None
    token_agreement: float
    word_prefix_agreement: float
    exact_match: float
    action_agreed: int
    action_of: int
    action_name_agreed: int
    action_name_of: int
    empty: int
    repeating: int
    reference_kl_dense: float | None
    reference_kl_exact: float | None
    reference_top1_dense: float | None
    reference_top1_exact: float | None
    recorded_kl_dense: float | None
    recorded_kl_exact: float | None
    recorded_top1_dense: float | None
    recorded_top1_exact: float | None
    recorded_extra_nats: float | None


@dataclass(frozen=True)
class ScannerCost:
    """Cost of one scanner.

    `*_bytes` (but `index_bytes`), `cpu_seconds` and `gpu_ms` are per decoded token; `wall_ms` is the mean over branches
    of the median decode step.
    """

    scanner: str
    branches: int
    decode_steps: int
    bits_per_token: float
    code_bits: float
    active_channels: float
    scan_planned_bytes: float | None
    scan_realised_bytes: float | None
    scan_sector_bytes: float | None
    row_bytes: float | None
    tail_bytes: float | None
    mismatches: int
    union_rows: float
    index_bytes: float
    index_build_seconds: float
    cpu_seconds: float | None
    wall_ms: float | None
    gpu_ms: float | None
    gpu_branches: int
    on_gpu: int
    timers: str


@dataclass(frozen=True)
class Survival:
    """Of `steps`, how many were still identical to the reference after so many tokens; mean logit margin where not."""

    scanner: str
    steps: int
    after_1: int
    after_4: int
    after_16: int
    after_32: int
    after_64: int
    margin: float | None


@dataclass(frozen=True)
class TokenTail:
    """Of `tokens` forced through a scanner, both texts together: how many diverge from exact top-k by more than 0.1 and
    1 nat, and the worst, in nats.
    """

    scanner: str
    tokens: int
    above_tenth: int
    above_one: int
    worst: float


@dataclass(frozen=True)
class SessionLine:
    """One session; `notes` is JSON text; `dense_degenerate` of `dense_steps` were empty or repeating; `set_aside`
    counts branch points that were left out because dense attention was so there.
    """

    sha256: str
    id: str
    format: str
    path: str
    source: str
    unit: str
    steps: int
    segments: int
    notes: str
    tools_rendered: int
    dense_perplexity: float | None
    branch_points: int
    longest_prompt: int | None
    dense_steps: int
    dense_degenerate: int
    set_aside: int

    @property
    def degenerate(self) -> tuple[int, int]:
        """How many of how many dense steps were empty or repeating, those that were set aside among them."""
        return self.dense_degenerate + self.set_aside, self.dense_steps + self.set_aside

    @property
    def flagged(self) -> bool:
        """More than half of the dense steps are empty or repeating (SPEC section 5)."""
        degenerate, of = self.degenerate
        return 2 * degenerate > of


@dataclass(frozen=True)
class SessionAgreement:
    """Mean agreement of one scanner over the steps of one session."""

    session: str
    scanner: str
    steps: int
    agreement: float


@dataclass(frozen=True)
class ExcludedItem:
    """A session, file or step that was not replayed."""

    path: str
    session_sha256: str | None
    step: int | None
    reason: str


@dataclass(frozen=True)
class BranchText:
    """One branch point and what one scanner wrote there; the scanner's fields are None while nothing is stored."""

    session: str
    step: int
    segment: int
    prompt_tokens: int
    prefill_from: int
    recorded_text: str
    prompt_tail: str
    scanner: str | None
    text: str | None
    agreement: float | None
    first_divergence: int | None
    divergence_margin: float | None
    stopped: int | None
    empty: int | None
    repeating: int | None
    action_agreement: int | None


@dataclass(frozen=True)
class InvocationRow:
    """One invocation and its machine; `environment` holds every column of the table."""

    id: int
    command: str
    started: str
    ended: str | None
    environment: dict[str, Any]


@dataclass(frozen=True)
class PairedUnit:
    """One unit's means of a scanner and of the baseline over the steps both have."""

    scanner: str
    unit: str
    steps: int
    value: float
    baseline: float
