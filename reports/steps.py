"""Figures of single steps: what the paired checks, the ratios of times, the curves and the degenerate list are made of.

Times and bytes are per decoded token, so that a branch that stopped early is not taken for a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leadline.database import Results
from leadline.reports.query import UNIT, Query

STEPS = Query(
    "figures of every step",
    f"""SELECT r.scanner_sha256 AS scanner, r.session_sha256 AS session, {UNIT} AS unit, r.step,
  r.agreement, r.exact_match, r.action_agreement, r.first_divergence, r.empty, r.repeating,
  1.0 * c.scan_realised_bytes / nullif(c.decode_steps, 0) AS scan_bytes,
  1.0 * c.row_bytes / nullif(c.decode_steps, 0) AS row_bytes,
  c.bits_per_token, c.gpu_ms / nullif(c.decode_steps, 0) AS gpu_ms, c.wall_ms,
  c.cpu_seconds / nullif(c.decode_steps, 0) AS cpu_seconds
FROM step_result r
JOIN step_cost c ON c.step_result_id = r.id
JOIN session s ON s.run_id = r.run_id AND s.sha256 = r.session_sha256
WHERE r.run_id = :run ORDER BY s.position, r.step, r.id""",
)

STAGES = Query(
    "GPU time by stage",
    """SELECT r.scanner_sha256 AS scanner, stage.key AS stage,
  sum(stage.value) / (SELECT sum(decode_steps) FROM step_cost d JOIN step_result q ON q.id = d.step_result_id
    WHERE q.run_id = r.run_id AND q.scanner_sha256 = r.scanner_sha256 AND d.gpu_stage_ms IS NOT NULL) AS ms
FROM step_result r
JOIN step_cost c ON c.step_result_id = r.id
JOIN json_each(c.gpu_stage_ms) stage
WHERE r.run_id = :run AND c.gpu_stage_ms IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, min(r.id), stage.id""",
)

LAYERS = Query(
    "bits and bytes by layer",
    """SELECT r.scanner_sha256 AS scanner, layer.key AS place, avg(layer.value) AS bits,
  avg(layer.value * c.block_tokens * m.kv_heads / 8) AS scan_bytes
FROM step_result r
JOIN step_cost c ON c.step_result_id = r.id
JOIN model m ON m.run_id = r.run_id
JOIN json_each(c.layer_bits) layer
WHERE r.run_id = :run
GROUP BY 1, 2 ORDER BY 1, 2""",
)


@dataclass(frozen=True)
class StepFigures:
    """One branch in numbers; `*_bytes`, `gpu_ms` and `cpu_seconds` per decoded token, `wall_ms` the median step."""

    scanner: str
    session: str
    unit: str
    step: int
    agreement: float
    exact_match: int
    action_agreement: int | None
    first_divergence: int | None
    empty: int
    repeating: int
    scan_bytes: float | None
    row_bytes: float | None
    bits_per_token: float
    gpu_ms: float | None
    wall_ms: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class Stage:
    """GPU milliseconds of one stage per decoded token, over the branches whose stages were timed."""

    scanner: str
    stage: str
    ms: float


@dataclass(frozen=True)
class Layer:
    """One scanned layer (`place` counts scanned layers): mean bits per token, and scan bytes per decoded token."""

    scanner: str
    place: int
    bits: float
    scan_bytes: float


def steps(results: Results, run: int) -> list[StepFigures]:
    """Every stored branch, by session and step."""
    return [StepFigures(**row) for row in results.query(STEPS.sql, {"run": run})]


def stages(results: Results, run: int) -> list[Stage]:
    """GPU time by scanner and stage, stages in the order in which they were recorded; none without a GPU timer."""
    return [Stage(**row) for row in results.query(STAGES.sql, {"run": run})]


def layers(results: Results, run: int) -> list[Layer]:
    """Bits and bytes by scanner and scanned layer."""
    return [Layer(**row) for row in results.query(LAYERS.sql, {"run": run})]


def paired(found: Iterable[StepFigures], scanner: str, baseline: str) -> list[tuple[StepFigures, StepFigures]]:
    """The steps that both scanners (hashes) have, as (scanner's, baseline's)."""
    by_scanner: dict[str, dict[tuple[str, int], StepFigures]] = {scanner: {}, baseline: {}}
    for row in found:
        if row.scanner in by_scanner:
            by_scanner[row.scanner][row.session, row.step] = row
    other = by_scanner[baseline]
    return [(row, other[key]) for key, row in by_scanner[scanner].items() if key in other]
