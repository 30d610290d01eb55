"""Which scanners are compared with which baseline, and what the paired differences say.

The family is declared in the run's spec before it starts: its pairs, or the rule of `declared_pairs` where none are
given. Holm's adjustment runs over the declared family, one family per metric. Everything else is exploratory:
its p values are not adjusted and its verdicts are hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.config import RunSpec, declared_pairs
from leadline.database import Results
from leadline.reports import query, stats
from leadline.reports.query import METRICS, Metric
from leadline.reports.rows import PairedUnit, ScannerLine


@dataclass(frozen=True)
class Comparison:
    """A paired difference of `scanner` minus `baseline` (shown labels) in one metric.

    `p` is the sign-flip test's; `holm_p` is None outside the declared family; `dropped` counts steps that only one of
    the two has. `tost_p` and `units_needed` (units at which the margin would be detectable) belong to metrics that have
    a margin. `units` holds the paired values themselves.
    """

    metric: str
    scanner: str
    baseline: str
    declared: bool
    steps: int
    dropped: int
    difference: stats.Difference
    p: float
    holm_p: float | None
    tost_p: float | None
    units_needed: int | None
    verdict: stats.Verdict
    units: tuple[PairedUnit, ...]


@dataclass(frozen=True)
class Comparisons:
    """All comparisons of a run, the size of the declared family, and what was declared but cannot be compared."""

    comparisons: tuple[Comparison, ...]
    family: int
    missing: tuple[str, ...]

    def of(self, metric: Metric) -> list[Comparison]:
        """The comparisons in one metric, declared ones first."""
        return sorted((c for c in self.comparisons if c.metric == metric.key), key=lambda c: not c.declared)


def compare(results: Results, run: int, spec: RunSpec, scanners: Sequence[ScannerLine]) -> Comparisons:
    """Every declared comparison of a run, and each other scanner against the baseline as exploratory."""
    by_label = {line.label: line for line in scanners}  # of two with one label, the one added last
    missing = []
    declared: list[tuple[ScannerLine, ScannerLine]] = []
    pairs = declared_pairs(spec, [line.label for line in scanners if line.role == "scanner"])
    for scanner, baseline in pairs:
        absent = [label for label in (scanner, baseline) if label not in by_label]
        if not absent:
            declared.append((by_label[scanner], by_label[baseline]))
        elif spec.family:
            missing.append(f"{scanner} against {baseline}: {' and '.join(absent)} not in this run")
    if spec.baseline not in by_label:
        missing.append(f"the baseline {spec.baseline} is not in this run; name one with --baseline")
    explored = [
        (line, by_label[spec.baseline])
        for line in scanners
        if spec.baseline in by_label and line.role in ("scanner", "dense") and line.label != spec.baseline
    ]
    explored = [pair for pair in explored if pair not in declared]
    family = max(len(declared), len(set(spec.family)))
    found: list[Comparison] = []
    for metric in METRICS:
        found += _in_metric(results, run, spec, metric, declared, explored, family)
    seen = {(c.scanner, c.baseline) for c in found if c.metric == METRICS[0].key}
    for scanner_line, baseline_line in declared:
        if (scanner_line.shown, baseline_line.shown) not in seen:
            missing.append(f"{scanner_line.shown} against {baseline_line.shown}: no step that both have yet")
    return Comparisons(tuple(found), family, tuple(missing))


def _in_metric(
    results: Results,
    run: int,
    spec: RunSpec,
    metric: Metric,
    declared: list[tuple[ScannerLine, ScannerLine]],
    explored: list[tuple[ScannerLine, ScannerLine]],
    family: int,
) -> list[Comparison]:
    margin = spec.margin if metric.primary else None
    better = metric.higher_is_better
    units = {
        baseline.sha256: query.paired_units(results, run, metric, baseline.sha256)
        for baseline in dict.fromkeys(baseline for _, baseline in declared + explored)
    }
    steps = {row["scanner"]: row["steps"] for row in results.query(_STEPS, {"run": run})}
    made = []
    for pairs, is_declared in ((declared, True), (explored, False)):
        for scanner, baseline in pairs:
            rows = [unit for unit in units[baseline.sha256] if unit.scanner == scanner.sha256]
            values, against = [unit.value for unit in rows], [unit.baseline for unit in rows]
            difference = stats.paired(values, against, higher_is_better=better)
            if difference is not None:
                made.append((scanner, baseline, is_declared, tuple(rows), difference))
    adjusted = iter(stats.holm([d.flip.p for _, _, is_declared, _, d in made if is_declared], family))
    found = []
    for scanner, baseline, is_declared, shared_units, difference in made:
        shared = sum(unit.steps for unit in shared_units)
        holm_p = next(adjusted) if is_declared else None
        p, sd = difference.flip.p, difference.sd
        verdict = stats.verdict(difference, p if holm_p is None else holm_p, margin, higher_is_better=better)
        found.append(
            Comparison(
                metric=metric.key,
                scanner=scanner.shown,
                baseline=baseline.shown,
                declared=is_declared,
                steps=shared,
                dropped=steps.get(scanner.sha256, 0) + steps.get(baseline.sha256, 0) - 2 * shared,
                difference=difference,
                p=p,
                holm_p=holm_p,
                tost_p=None if margin is None else stats.tost_p(difference, margin),
                units_needed=None if margin is None or sd is None else stats.units_needed(sd, margin),
                verdict=verdict,
                units=shared_units,
            )
        )
    return found


_STEPS = "SELECT scanner_sha256 AS scanner, count(*) AS steps FROM step_result WHERE run_id = :run GROUP BY 1"
