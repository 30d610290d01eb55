"""What a run records: plain frozen objects that the engine makes, the database stores and the reports read back.

Units stand in the names: `_bytes`, `_seconds`, `_ms`; agreements and shares lie in 0..1; `kl_*` and `nll` are nats per
token. A field that cannot be known on this machine (GPU time without a GPU) is None, never 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of every record: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(Record):
    """The machine and the software of one run (SPEC section 8). Null where the machine has no such thing."""

    leadline: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    packages: dict[str, str]
    platform: str
    cpu: str
    cpu_threads: int
    memory_bytes: int
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    link_gb_per_second: float | None = None
    numa_node: int | None = None
    gpu_clock_mhz: int | None = None


class ModelRecord(Record):
    """The model of a run: identity, shape and how it was set up."""

    id: str
    weights_sha256: str
    architecture: str
    layers: int
    scanned_layers: tuple[int, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    device: str
    rope: str | None
    template_sha256: str
    template_traits: dict[str, Any]


class ScannerRecord(Record):
    """One scanner of a run: its label in tables, its whole configuration, and the hash that identifies both.

    `sha256` covers name, implementation version, configuration, the calibration's hash where the scanner uses one, and
    `prefill_chunk` where the row is the noise floor (the exact scanner after a prefill in other chunks).
    """

    sha256: str
    label: str
    name: str
    config: dict[str, Any]
    calibration_sha256: str | None
    prefill_chunk: int | None = None
    role: Literal["reference", "dense", "noise-floor", "scanner"]
    fused: bool = False


class SessionRecord(Record):
    """One session of a run; `notes` are the reader's and the renderer's, as (kind, where, reason)."""

    sha256: str
    id: str
    format: str
    path: str
    source: str
    view: str
    steps: int
    segments: int
    notes: tuple[tuple[str, str, str], ...]
    tools_rendered: bool
    dense_perplexity: float | None = None


# A session's note where its scanners were calibrated on it.
SEEN = ("seen", "calibration", "the calibration was made on a recording of this name")

DEGENERATE = "degenerate: "  # how the reason begins of a branch point that was set aside


class Exclusion(Record):
    """A session or step that was not replayed, and why. `step` is None where the whole session (or file) is meant."""

    path: str
    session_sha256: str | None
    step: int | None
    reason: str


class BranchPointRecord(Record):
    """One branch point: the step it stands at, its prompt, and what the recording continued with."""

    step: int
    segment: int
    prompt_tokens: int
    prompt_sha256: str
    prefill_from: int
    recorded_tokens: tuple[int, ...]
    recorded_text: str
    prompt_tail: str


class TeacherForced(Record):
    """A given text fed through a scanner, every position with its own plan and selection (SPEC section 5).

    `text` says whose: the reference's own step, with the template's end of turn where it stopped, so that what is said
    at that place counts as well; or the recorded step cut at `max_new_tokens`. Means over tokens; the lists hold one
    value per token, in five digits. KL(dense || scanner) and KL(exact || scanner) from fp32 softmax, in nats.
    """

    text: Literal["reference", "recorded"]
    tokens: int
    kl_dense: float
    kl_exact: float
    top1_dense: float
    top1_exact: float
    nll: float
    extra_nats: float
    kl_dense_by_token: tuple[float, ...]
    kl_exact_by_token: tuple[float, ...]


class StepResult(Record):
    """What one branch decoded, and how it compares with the reference, with dense and with the recorded step.

    `tokens` leaves out the end of turn, which `stopped` says was reached; `margins` holds the top-1/top-2 logit margin
    of every decode step, the one that stopped included. `first_divergence` indexes the first token that differs from
    the reference's (a stop against a token counts); `divergence_margin` is the reference's margin there.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    text: str
    stopped: bool
    agreement: float
    word_prefix_agreement: float
    word_positional_agreement: float
    token_agreement: float
    exact_match: bool
    first_divergence: int | None
    divergence_margin: float | None
    dense_agreement: float
    recorded_agreement: float | None
    action_name_agreement: bool | None
    action_agreement: bool | None
    recorded_action_name_agreement: bool | None
    recorded_action_agreement: bool | None
    empty: bool
    repeating: bool
    teacher_forced: tuple[TeacherForced, ...]


class StepCost(Record):
    """Bytes and time of one branch, summed over its decode steps, layers and KV heads unless a mean is named.

    bits_per_token: mean realised scan bits per token of the complete blocks, per KV head per layer (SPEC section 4);
    code_bits, active_channels: means per plan. `scan_sector_bytes` rounds every contiguous run up to 32-byte sectors.
    `layer_bits` is the mean of bits_per_token by scanned layer. Row bytes are the union rows of K and V; `union_rows`
    the mean per KV head and layer. `wall_ms` is the median of a decode step after two warm-up steps; `cpu_seconds` the
    processor time of the whole branch. gpu_ms and gpu_stage_ms are the median of the run's timed steps, all of them the
    branch's first, times decode_steps; `timer` names what measured them ("none" where nothing did).
    """

    decode_steps: int
    context_tokens: int
    block_tokens: int
    bits_per_token: float
    code_bits: float
    active_channels: float
    scan_planned_bytes: int
    scan_realised_bytes: int
    scan_sector_bytes: int
    row_bytes: int
    union_rows: float
    tail_bytes: int
    index_bytes: int
    index_build_seconds: float
    layer_bits: tuple[float, ...]
    gpu_ms: float | None = None
    gpu_stage_ms: dict[str, float] | None = None
    wall_ms: float
    cpu_seconds: float
    timer: str


class BranchRecord(Record):
    """The row of one (session, branch point, scanner): result and cost, written in one transaction."""

    session_sha256: str
    step: int
    scanner_sha256: str
    result: StepResult
    cost: StepCost
