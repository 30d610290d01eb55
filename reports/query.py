"""From a results database to typed rows: one SQL text and one function per table of the report.

The texts are printed in the report beside the tables they feed, and run as they stand in any SQLite client once `:run`
and `:baseline` are filled in. They average steps inside a *unit* (a source cluster; SPEC section 5), and leave means
over units, intervals and tests to `leadline.reports.stats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from leadline.database import Results
from leadline.records import DEGENERATE
from leadline.reports.rows import (
    BranchText,
    ExcludedItem,
    InvocationRow,
    PairedUnit,
    ScannerCost,
    ScannerLine,
    ScannerUnit,
    SessionAgreement,
    SessionLine,
    Survival,
    TokenTail,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Query:
    """A named SQL text."""

    name: str
    sql: str


@dataclass(frozen=True)
class Metric:
    """A figure that is compared in pairs: where its value per step comes from, and which way is better."""

    key: str
    title: str
    table: str
    value: str
    higher_is_better: bool
    primary: bool = False


METRICS = (
    Metric("agreement", "step agreement with exact top-k", "", "r.agreement", True, primary=True),
    Metric("kl_exact_reference", "KL(exact‖·), reference text", "reference", "t.kl_exact", False),
    Metric("kl_dense_reference", "KL(dense‖·), reference text", "reference", "t.kl_dense", False),
    Metric("kl_dense_recorded", "KL(dense‖·), recorded text", "recorded", "t.kl_dense", False),
)

UNIT = "CASE WHEN s.source = '' THEN s.sha256 ELSE s.source END"

SCANNERS = Query(
    "scanners",
    """SELECT sha256, label, name, role, fused, calibration_sha256, prefill_chunk
FROM scanner WHERE run_id = :run ORDER BY position""",
)

SCANNER_UNITS = Query(
    "unit values by scanner",
    f"""SELECT r.scanner_sha256 AS scanner, {UNIT} AS unit,
  count(DISTINCT r.session_sha256) AS sessions, count(*) AS steps,
  avg(r.agreement) AS agreement, avg(r.dense_agreement) AS dense_agreement,
  avg(r.recorded_agreement) AS recorded_agreement, avg(r.token_agreement) AS token_agreement,
  avg(r.word_prefix_agreement) AS word_prefix_agreement, avg(r.exact_match) AS exact_match,
  coalesce(sum(r.action_agreement), 0) AS action_agreed, count(r.action_agreement) AS action_of,
  coalesce(sum(r.action_name_agreement), 0) AS action_name_agreed, count(r.action_name_agreement) AS action_name_of,
  sum(r.empty) AS empty, sum(r.repeating) AS repeating,
  avg(a.kl_dense) AS reference_kl_dense, avg(a.kl_exact) AS reference_kl_exact,
  avg(a.top1_dense) AS reference_top1_dense, avg(a.top1_exact) AS reference_top1_exact,
  avg(b.kl_dense) AS recorded_kl_dense, avg(b.kl_exact) AS recorded_kl_exact,
  avg(b.top1_dense) AS recorded_top1_dense, avg(b.top1_exact) AS recorded_top1_exact,
  avg(b.extra_nats) AS recorded_extra_nats
FROM step_result r
JOIN session s ON s.run_id = r.run_id AND s.sha256 = r.session_sha256
LEFT JOIN teacher_forced a ON a.step_result_id = r.id AND a.text = 'reference'
LEFT JOIN teacher_forced b ON b.step_result_id = r.id AND b.text = 'recorded'
WHERE r.run_id = :run
GROUP BY 1, 2 ORDER BY 1, 2""",
)

SCANNER_COSTS = Query(
    "cost by scanner",
    """SELECT r.scanner_sha256 AS scanner, count(*) AS branches, sum(c.decode_steps) AS decode_steps,
  avg(c.bits_per_token) AS bits_per_token, avg(c.code_bits) AS code_bits, avg(c.active_channels) AS active_channels,
  1.0 * sum(c.scan_planned_bytes) / nullif(sum(c.decode_steps), 0) AS scan_planned_bytes,
  1.0 * sum(c.scan_realised_bytes) / nullif(sum(c.decode_steps), 0) AS scan_realised_bytes,
  1.0 * sum(c.scan_sector_bytes) / nullif(sum(c.decode_steps), 0) AS scan_sector_bytes,
  1.0 * sum(c.row_bytes) / nullif(sum(c.decode_steps), 0) AS row_bytes,
  1.0 * sum(c.tail_bytes) / nullif(sum(c.decode_steps), 0) AS tail_bytes,
  sum(c.scan_planned_bytes <> c.scan_realised_bytes) AS mismatches,
  avg(c.union_rows) AS union_rows, avg(c.index_bytes) AS index_bytes, avg(c.index_build_seconds) AS index_build_seconds,
  sum(c.cpu_seconds) / nullif(sum(c.decode_steps), 0) AS cpu_seconds,
  avg(c.wall_ms) AS wall_ms,
  CASE WHEN count(c.gpu_ms) = count(*) THEN sum(c.gpu_ms) / nullif(sum(c.decode_steps), 0) END AS gpu_ms,
  count(c.gpu_ms) AS gpu_branches, count(e.gpu) AS on_gpu, group_concat(DISTINCT c.timer) AS timers
FROM step_result r
JOIN step_cost c ON c.step_result_id = r.id
JOIN environment e ON e.id = r.environment_id
WHERE r.run_id = :run
GROUP BY 1 ORDER BY 1""",
)

SURVIVAL = Query(
    "steps still identical to the reference",
    """SELECT scanner_sha256 AS scanner, count(*) AS steps,
  sum(first_divergence IS NULL OR first_divergence >= 1) AS after_1,
  sum(first_divergence IS NULL OR first_divergence >= 4) AS after_4,
  sum(first_divergence IS NULL OR first_divergence >= 16) AS after_16,
  sum(first_divergence IS NULL OR first_divergence >= 32) AS after_32,
  sum(first_divergence IS NULL OR first_divergence >= 64) AS after_64,
  avg(divergence_margin) AS margin
FROM step_result WHERE run_id = :run GROUP BY 1 ORDER BY 1""",
)

TOKEN_TAILS = Query(
    "divergence of single tokens",
    """SELECT r.scanner_sha256 AS scanner, count(*) AS tokens, sum(kl.value > 0.1) AS above_tenth,
  sum(kl.value > 1) AS above_one, max(kl.value) AS worst
FROM step_result r
JOIN teacher_forced t ON t.step_result_id = r.id
JOIN json_each(t.kl_exact_by_token) kl
WHERE r.run_id = :run GROUP BY 1 ORDER BY 1""",
)

SESSIONS = Query(
    "sessions",
    f"""SELECT s.sha256, s.id, s.format, s.path, s.source, {UNIT} AS unit, s.steps, s.segments, s.notes,
  s.tools_rendered, s.dense_perplexity,
  (SELECT count(*) FROM branch_point p WHERE p.run_id = s.run_id AND p.session_sha256 = s.sha256) AS branch_points,
  (SELECT max(p.prompt_tokens) FROM branch_point p WHERE p.run_id = s.run_id AND p.session_sha256 = s.sha256)
    AS longest_prompt,
  count(r.id) AS dense_steps, coalesce(sum(r.empty OR r.repeating), 0) AS dense_degenerate,
  (SELECT count(*) FROM exclusion e WHERE e.run_id = s.run_id AND e.session_sha256 = s.sha256
    AND e.reason LIKE '{DEGENERATE}%') AS set_aside
FROM session s
LEFT JOIN scanner d ON d.run_id = s.run_id AND d.role = 'dense'
LEFT JOIN step_result r ON r.run_id = s.run_id AND r.session_sha256 = s.sha256 AND r.scanner_sha256 = d.sha256
WHERE s.run_id = :run
GROUP BY s.sha256 ORDER BY s.position""",
)

SESSION_AGREEMENT = Query(
    "agreement by session and scanner",
    """SELECT session_sha256 AS session, scanner_sha256 AS scanner, count(*) AS steps, avg(agreement) AS agreement
FROM step_result WHERE run_id = :run GROUP BY 1, 2 ORDER BY 1, 2""",
)

EXCLUSIONS = Query(
    "exclusions",
    "SELECT path, session_sha256, step, reason FROM exclusion WHERE run_id = :run ORDER BY reason, path, step",
)

TEXTS = Query(
    "branch texts",
    """SELECT p.session_sha256 AS session, p.step, p.segment, p.prompt_tokens, p.prefill_from,
  p.recorded_text, p.prompt_tail, r.scanner_sha256 AS scanner, r.text, r.agreement, r.first_divergence,
  r.divergence_margin, r.stopped, r.empty, r.repeating, r.action_agreement
FROM branch_point p
JOIN session s ON s.run_id = p.run_id AND s.sha256 = p.session_sha256
LEFT JOIN step_result r ON r.run_id = p.run_id AND r.session_sha256 = p.session_sha256 AND r.step = p.step
LEFT JOIN scanner c ON c.run_id = r.run_id AND c.sha256 = r.scanner_sha256
WHERE p.run_id = :run ORDER BY s.position, p.step, c.position""",
)

INVOCATIONS = Query("invocations", "SELECT * FROM environment WHERE run_id = :run ORDER BY id")


def paired_query(metric: Metric) -> Query:
    """The SQL that pairs every scanner with `:baseline` on the same steps and averages both inside units."""
    forced = f"JOIN teacher_forced t ON t.step_result_id = r.id AND t.text = '{metric.table}'" if metric.table else ""
    return Query(
        f"paired unit values: {metric.title}",
        f"""WITH step_value AS (
  SELECT r.scanner_sha256, r.session_sha256, r.step, {metric.value} AS value
  FROM step_result r {forced}
  WHERE r.run_id = :run)
SELECT v.scanner_sha256 AS scanner, {UNIT} AS unit, count(*) AS steps, avg(v.value) AS value, avg(b.value) AS baseline
FROM step_value v
JOIN step_value b ON b.session_sha256 = v.session_sha256 AND b.step = v.step AND b.scanner_sha256 = :baseline
JOIN session s ON s.run_id = :run AND s.sha256 = v.session_sha256
GROUP BY 1, 2 ORDER BY 1, 2""",
    )


def _rows(results: Results, query: Query, row: type[T], parameters: Mapping[str, Any]) -> list[T]:
    return [row(**values) for values in results.query(query.sql, parameters)]


def scanners(results: Results, run: int) -> list[ScannerLine]:
    """The scanners of a run in the order they were added; a label that two hashes share gets the hash appended."""
    found = results.query(SCANNERS.sql, {"run": run})
    labels = [row["label"] for row in found]
    lines = []
    for row in found:
        shown = row["label"] if labels.count(row["label"]) == 1 else f"{row['label']} @{row['sha256'][:8]}"
        lines.append(ScannerLine(**(row | {"shown": shown, "fused": bool(row["fused"])})))
    return lines


def scanner_units(results: Results, run: int) -> list[ScannerUnit]:
    """Mean figures per scanner and unit."""
    return _rows(results, SCANNER_UNITS, ScannerUnit, {"run": run})


def scanner_costs(results: Results, run: int) -> list[ScannerCost]:
    """Bytes and time per scanner: bits and wall ms are means over branches, all else per decoded token."""
    return _rows(results, SCANNER_COSTS, ScannerCost, {"run": run})


def survival(results: Results, run: int) -> list[Survival]:
    """Counts of steps still identical to the reference after 1, 4, 16, 32 and 64 tokens, per scanner."""
    return _rows(results, SURVIVAL, Survival, {"run": run})


def token_tails(results: Results, run: int) -> list[TokenTail]:
    """How far single tokens diverge, per scanner; none in a copy without them."""
    return _rows(results, TOKEN_TAILS, TokenTail, {"run": run})


def sessions(results: Results, run: int) -> list[SessionLine]:
    """The sessions of a run in the order they were added."""
    return _rows(results, SESSIONS, SessionLine, {"run": run})


def session_agreement(results: Results, run: int) -> list[SessionAgreement]:
    """Mean agreement per session and scanner."""
    return _rows(results, SESSION_AGREEMENT, SessionAgreement, {"run": run})


def exclusions(results: Results, run: int) -> list[ExcludedItem]:
    """What was not replayed, and why."""
    return _rows(results, EXCLUSIONS, ExcludedItem, {"run": run})


def texts(results: Results, run: int) -> list[BranchText]:
    """Every branch point with each scanner's text; a point without results yet comes once, its scanner None."""
    return _rows(results, TEXTS, BranchText, {"run": run})


def invocations(results: Results, run: int) -> list[InvocationRow]:
    """The invocations of a run with their machines, oldest first."""
    found = results.query(INVOCATIONS.sql, {"run": run})
    return [InvocationRow(row["id"], row["command"], row["started"], row["ended"], row) for row in found]


def paired_units(results: Results, run: int, metric: Metric, baseline_sha256: str) -> list[PairedUnit]:
    """Unit values of every scanner beside the baseline's over the steps that both have."""
    return _rows(results, paired_query(metric), PairedUnit, {"run": run, "baseline": baseline_sha256})
