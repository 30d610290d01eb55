"""Two runs side by side: the same item (session, step, scanner label) in both, and what changed between them.

Items pair only where the prompt is the same token for token (by its hash); what has no partner is counted by reason.
Differences are B minus A over units, as everywhere; bytes are counted, so their ratio is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.database import Results
from leadline.errors import UsageError, explain
from leadline.reports import stats
from leadline.reports.contents import choose_run
from leadline.reports.query import UNIT, Query
from leadline.reports.stats_ratios import Ratio, exact_ratio, log_ratio

ITEMS = Query(
    "items of a run",
    f"""SELECT c.label AS scanner, c.sha256 AS scanner_sha256, r.session_sha256 AS session, {UNIT} AS unit, r.step,
  p.prompt_sha256, r.tokens, r.agreement, f.kl_dense, k.bits_per_token,
  1.0 * k.scan_realised_bytes / nullif(k.decode_steps, 0) AS scan_bytes,
  1.0 * k.row_bytes / nullif(k.decode_steps, 0) AS row_bytes, 1.0 * k.index_bytes AS index_bytes,
  k.gpu_ms / nullif(k.decode_steps, 0) AS gpu_ms, k.wall_ms, k.cpu_seconds / nullif(k.decode_steps, 0) AS cpu_seconds
FROM step_result r
JOIN step_cost k ON k.step_result_id = r.id
JOIN session s ON s.run_id = r.run_id AND s.sha256 = r.session_sha256
JOIN scanner c ON c.run_id = r.run_id AND c.sha256 = r.scanner_sha256
JOIN branch_point p ON p.run_id = r.run_id AND p.session_sha256 = r.session_sha256 AND p.step = r.step
LEFT JOIN teacher_forced f ON f.step_result_id = r.id AND f.text = 'recorded'
WHERE r.run_id = :run ORDER BY c.position, s.position, r.step""",
)


@dataclass(frozen=True)
class Item:
    """One branch of a run; bytes (but `index_bytes`), `gpu_ms` and `cpu_seconds` are per decoded token."""

    scanner: str
    scanner_sha256: str
    session: str
    unit: str
    step: int
    prompt_sha256: str
    tokens: str
    agreement: float
    kl_dense: float | None
    bits_per_token: float
    scan_bytes: float | None
    row_bytes: float | None
    index_bytes: float
    gpu_ms: float | None
    wall_ms: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class Side:
    """One of the two runs: where it is, and what it was made with."""

    database: str
    run: int
    model: str
    weights_sha256: str
    commit: str | None
    machine: str
    updated: str
    margin: float
    protocol: dict[str, object]


@dataclass(frozen=True)
class Change:
    """One scanner in both runs, B against A over the same items.

    `identical` counts items with the same tokens. `holm_p` is adjusted over the scanners compared. Byte ratios are
    exact; a time is None unless every item of both has it.
    """

    scanner: str
    same_scanner: bool
    items: int
    identical: int
    agreement: stats.Difference
    holm_p: float
    verdict: stats.Verdict
    kl_dense: stats.Difference | None
    bits: tuple[float, float]
    scan_bytes: float | None
    row_bytes: float | None
    index_bytes: float | None
    gpu_ms: Ratio | None
    wall_ms: Ratio | None
    cpu_seconds: Ratio | None


@dataclass(frozen=True)
class PairedRuns:
    """Everything `leadline compare` says. `unpaired` counts items without a partner, by reason."""

    a: Side
    b: Side
    changes: tuple[Change, ...]
    missing: int
    unpaired: dict[str, int]
    differing: dict[str, tuple[object, object]]


Pairs = Sequence[tuple[Item, Item]]


def pair_runs(a: Results, b: Results, run_a: int | None = None, run_b: int | None = None) -> PairedRuns:
    """Pair the items of two runs (each its database's latest where not given).

    Raises UsageError where the two have no item in common.
    """
    with a.snapshot(), b.snapshot():
        side_a, side_b = _side(a, run_a), _side(b, run_b)
        items_a, items_b = _items(a, side_a.run), _items(b, side_b.run)
    common = [key for key in items_a if key in items_b]
    pairs = [(items_a[key], items_b[key]) for key in common]
    same = [(x, y) for x, y in pairs if x.prompt_sha256 == y.prompt_sha256]
    missing = len(items_a) - len(common)
    unpaired = Counter(
        {"only in A": missing, "only in B": len(items_b) - len(common), "another prompt": len(pairs) - len(same)}
    )
    if not same:
        raise UsageError(
            explain(
                "the two runs have no item in common",
                file=f"{a.path}, {b.path}",
                found=f"{len(items_a)} and {len(items_b)} items; "
                + ", ".join(f"{count} {why}" for why, count in unpaired.items() if count),
                expected="the same sessions (by content), steps, prompts and scanner labels",
                do="choose the runs with --run-a and --run-b, or replay the same sessions",
            )
        )
    by_scanner: dict[str, list[tuple[Item, Item]]] = {}
    for x, y in same:
        by_scanner.setdefault(x.scanner, []).append((x, y))
    made = [(name, found, _difference(found, lambda item: item.agreement, True)) for name, found in by_scanner.items()]
    adjusted = stats.holm([d.flip.p for _, _, d in made if d is not None])
    changes = [
        _change(name, found, d, p, side_a.margin)
        for (name, found, d), p in zip(made, adjusted, strict=True)
        if d is not None
    ]
    differing = {
        field: (side_a.protocol.get(field), side_b.protocol.get(field))
        for field in sorted({*side_a.protocol, *side_b.protocol})
        if side_a.protocol.get(field) != side_b.protocol.get(field)
    }
    if side_a.weights_sha256 != side_b.weights_sha256:
        differing["model weights"] = (side_a.weights_sha256[:12], side_b.weights_sha256[:12])
    return PairedRuns(side_a, side_b, tuple(changes), missing, dict(unpaired), differing)


def _items(results: Results, run: int) -> dict[tuple[str, str, int], Item]:
    """The items by (scanner label, session, step); of two scanners with one label, the one added last."""
    rows = (Item(**row) for row in results.query(ITEMS.sql, {"run": run}))
    return {(item.scanner, item.session, item.step): item for item in rows}


def _side(results: Results, run: int | None) -> Side:
    summary = choose_run(results, run)
    spec, model = results.spec(summary.id), results.model(summary.id)
    sql = "SELECT git_commit, git_dirty, cpu, gpu FROM environment WHERE run_id = :run ORDER BY id DESC LIMIT 1"
    machine = results.query(sql, {"run": summary.id})[0]
    commit = machine["git_commit"]
    return Side(
        database=str(results.path),
        run=summary.id,
        model=model.id,
        weights_sha256=model.weights_sha256,
        commit=f"{commit[:12]}{' with changes' if machine['git_dirty'] else ''}" if commit else None,
        machine=" + ".join(part for part in (machine["cpu"], machine["gpu"]) if part),
        updated=summary.updated,
        margin=spec.margin,
        protocol=spec.protocol,
    )


def _change(name: str, pairs: Pairs, agreement: stats.Difference, holm_p: float, margin: float) -> Change:
    return Change(
        scanner=name,
        same_scanner=all(x.scanner_sha256 == y.scanner_sha256 for x, y in pairs),
        items=len(pairs),
        identical=sum(x.tokens == y.tokens for x, y in pairs),
        agreement=agreement,
        holm_p=holm_p,
        verdict=stats.verdict(agreement, holm_p, margin),
        kl_dense=_difference(pairs, lambda item: item.kl_dense, False),
        bits=(
            sum(x.bits_per_token for x, _ in pairs) / len(pairs),
            sum(y.bits_per_token for _, y in pairs) / len(pairs),
        ),
        scan_bytes=_exact(pairs, lambda item: item.scan_bytes),
        row_bytes=_exact(pairs, lambda item: item.row_bytes),
        index_bytes=_exact(pairs, lambda item: item.index_bytes),
        gpu_ms=_ratio(pairs, lambda item: item.gpu_ms),
        wall_ms=_ratio(pairs, lambda item: item.wall_ms),
        cpu_seconds=_ratio(pairs, lambda item: item.cpu_seconds),
    )


def _difference(pairs: Pairs, value: Callable[[Item], float | None], higher: bool) -> stats.Difference | None:
    """B minus A over units, each the mean of its items."""
    units: dict[str, list[tuple[float, float]]] = {}
    for x, y in pairs:
        before, after = value(x), value(y)
        if before is not None and after is not None:
            units.setdefault(x.unit, []).append((before, after))
    means = [(sum(x for x, _ in found) / len(found), sum(y for _, y in found) / len(found)) for found in units.values()]
    return stats.paired([y for _, y in means], [x for x, _ in means], higher_is_better=higher)


def _exact(pairs: Pairs, value: Callable[[Item], float | None]) -> float | None:
    """B over A; 1 where neither reads anything, None where only A does not."""
    before, after = [value(x) or 0.0 for x, _ in pairs], [value(y) or 0.0 for _, y in pairs]
    return 1.0 if sum(before) == sum(after) == 0 else exact_ratio(after, before)


def _ratio(pairs: Pairs, value: Callable[[Item], float | None]) -> Ratio | None:
    times = [(value(y), value(x), x.unit) for x, y in pairs]
    timed = [(after, before, unit) for after, before, unit in times if after and before]
    if len(timed) < len(times):
        return None
    return log_ratio([after for after, _, _ in timed], [before for _, before, _ in timed], [unit for *_, unit in timed])
