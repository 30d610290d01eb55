"""What stands beside every paired difference: checks of the interval, yes/no outcomes, ratios of bytes and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leadline.reports.comparisons import Comparison
from leadline.reports.floor import AgainstFloor, beyond_floor
from leadline.reports.rows import ScannerLine
from leadline.reports.stats import sign_flip
from leadline.reports.stats_checks import (
    Bootstrap,
    Clustered,
    McNemar,
    bootstrap,
    clustered,
    disagree_on_zero,
    mcnemar,
)
from leadline.reports.stats_ratios import Ratio, exact_ratio, log_ratio
from leadline.reports.steps import StepFigures, paired

Pairs = Sequence[tuple[StepFigures, StepFigures]]


@dataclass(frozen=True)
class Outcome:
    """A yes/no outcome over the steps where both have it; `unit_p` is the sign-flip p over unit shares."""

    name: str
    mcnemar: McNemar
    unit_p: float


@dataclass(frozen=True)
class Check:
    """The checks of one comparison in the primary metric.

    `beyond_floor`: whether one of the two at least can be told from the noise floor. `scan_bytes` and `row_bytes` are
    exact ratios per decoded token; `gpu`, `wall`, `cpu` are None where a step was not timed so. `doubts` says in words
    where a check and the headline interval part.
    """

    scanner: str
    baseline: str
    declared: bool
    steps: int
    bootstrap: Bootstrap | None
    clustered: Clustered | None
    beyond_floor: bool | None
    outcomes: tuple[Outcome, ...]
    scan_bytes: float | None
    row_bytes: float | None
    gpu: Ratio | None
    wall: Ratio | None
    cpu: Ratio | None
    doubts: tuple[str, ...]


def check(
    comparison: Comparison,
    found: Sequence[StepFigures],
    scanners: Sequence[ScannerLine],
    floor: Mapping[str, AgainstFloor] | None,
) -> Check:
    """The checks of one comparison, from the steps of the run; `floor`: every scanner beside the noise floor."""
    by_name = {line.shown: line.sha256 for line in scanners}
    pairs = paired(found, by_name[comparison.scanner], by_name[comparison.baseline])
    drawn = bootstrap([unit.value - unit.baseline for unit in comparison.units])
    robust = clustered([a.agreement - b.agreement for a, b in pairs], [a.unit for a, _ in pairs])
    beyond = beyond_floor(comparison.scanner, comparison.baseline, floor)
    doubts = []
    if disagree_on_zero(comparison.difference, drawn):
        doubts.append("the bootstrap interval differs on zero")
    if disagree_on_zero(comparison.difference, robust):
        doubts.append("the cluster-robust interval differs on zero")
    if beyond is False:
        doubts.append("neither can be told from the noise floor")
    return Check(
        scanner=comparison.scanner,
        baseline=comparison.baseline,
        declared=comparison.declared,
        steps=len(pairs),
        bootstrap=drawn,
        clustered=robust,
        beyond_floor=beyond,
        outcomes=tuple(outcome for outcome in _outcomes(pairs) if outcome is not None),
        scan_bytes=exact_ratio([a.scan_bytes or 0.0 for a, _ in pairs], [b.scan_bytes or 0.0 for _, b in pairs]),
        row_bytes=exact_ratio([a.row_bytes or 0.0 for a, _ in pairs], [b.row_bytes or 0.0 for _, b in pairs]),
        gpu=_ratio(pairs, lambda row: row.gpu_ms),
        wall=_ratio(pairs, lambda row: row.wall_ms),
        cpu=_ratio(pairs, lambda row: row.cpu_seconds),
        doubts=tuple(doubts),
    )


def _outcomes(pairs: Pairs) -> list[Outcome | None]:
    def action(row: StepFigures) -> bool | None:
        return None if row.action_agreement is None else bool(row.action_agreement)

    return [
        _outcome("same step", pairs, lambda row: bool(row.exact_match)),
        _outcome("same action", pairs, action),
    ]


def _outcome(name: str, pairs: Pairs, value: Callable[[StepFigures], bool | None]) -> Outcome | None:
    both = [(a.unit, value(a), value(b)) for a, b in pairs]
    known = [(unit, x, y) for unit, x, y in both if x is not None and y is not None]
    test = mcnemar([x for _, x, _ in known], [y for _, _, y in known])
    if test is None:
        return None
    units: dict[str, list[int]] = {}
    for unit, x, y in known:
        units.setdefault(unit, []).append(int(x) - int(y))
    return Outcome(name, test, sign_flip([sum(values) / len(values) for values in units.values()]).p)


def _ratio(pairs: Pairs, value: Callable[[StepFigures], float | None]) -> Ratio | None:
    """The ratio of a time; None unless every step of both has one above zero (a clock may be too coarse)."""
    times = [(value(a), value(b), a.unit) for a, b in pairs]
    timed = [(x, y, unit) for x, y, unit in times if x and y]
    if len(timed) < len(times):
        return None
    return log_ratio([x for x, _, _ in timed], [y for _, y, _ in timed], [unit for _, _, unit in timed])
