"""The tables beside the paired differences: checks of the interval and of the kernels, yes/no outcomes, ratios of bytes
and times.
"""

from __future__ import annotations

from leadline.reports import query
from leadline.reports.checks import Check
from leadline.reports.contents import Contents
from leadline.reports.floor import AgainstFloor
from leadline.reports.query import METRICS
from leadline.reports.selections import SELECTIONS, SelectionFigures
from leadline.reports.stats_checks import FEW_CLUSTERS, RESAMPLES
from leadline.reports.stats_ratios import Ratio
from leadline.reports.steps import STEPS
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, number, plural, probability, signed

NO_GPU = "no branch of this run was decoded under a GPU timer"
CHECKS = (
    "pair", "family", "95% t interval", "bootstrap interval", "every step alike, robust interval", "robust SE",
    "clusters", "superiority", "beyond noise floor", "doubts",
)  # fmt: skip
RATIOS = (
    "pair", "family", "steps", "scan bytes", "row bytes", "GPU ms", "of medians, GPU", "wall ms", "of medians, wall",
    "CPU s", "of medians, CPU",
)  # fmt: skip


def checks(contents: Contents) -> Table:
    """Other intervals for the same differences, and how they compare with the noise floor."""
    by_pair = {(each.scanner, each.baseline): each.difference for each in contents.comparisons.of(METRICS[0])}

    def row(each: Check) -> tuple[str, ...]:
        d, robust = by_pair[each.scanner, each.baseline], each.clustered
        beyond = {None: "not known", True: "yes", False: "no"}[each.beyond_floor]
        return (
            *_pair(each),
            _interval(d.low, d.high),
            _interval(each.bootstrap.low, each.bootstrap.high) if each.bootstrap else NOTHING,
            f"{signed(robust.mean)} {_interval(robust.low, robust.high)}" if robust else NOTHING,
            number(robust.se if robust else None),
            (str(robust.clusters) + ("" if robust.reliable else " (few)")) if robust else NOTHING,
            number(d.superiority, 2),
            beyond,
            "; ".join(each.doubts) or "none",
        )

    return Table(
        "checks",
        "Checks of the paired differences",
        CHECKS,
        tuple(row(each) for each in contents.checks),
        intro="Other ways to look at the same differences. The t interval over units is the headline and the only one "
        "that verdicts use; where a check parts from it, the last column says so.",
        notes=(
            f"Bootstrap: percentiles of {RESAMPLES:,} resamples of units, seed 0; too narrow at few units. Robust: the "
            f"mean over all steps, its error allowing for likeness within a source; (few): below {FEW_CLUSTERS} "
            "clusters such errors come out too small. Superiority: (wins + ties / 2) / units.",
            "Beyond the noise floor: one of the two at least can be told from exact top-k after a prefill in other "
            "chunks. Past its first differing token a greedy branch is no independent evidence.",
        ),
        queries=(STEPS,),
    )


def against_floor(contents: Contents) -> Table:
    """Every scanner beside the noise floor; without rows where none was run."""

    def row(each: AgainstFloor) -> tuple[str, ...]:
        d = each.difference
        return (
            each.scanner,
            f"{d.n} ({each.steps})",
            f"{number(d.mean)} − {number(d.baseline_mean)}",
            signed(d.difference),
            _interval(d.low, d.high),
            f"{d.wins} / {d.ties} / {d.losses}",
            each.reading,
        )

    return Table(
        "floor",
        "Agreement beside the noise floor",
        ("scanner", "units (steps)", "means", "difference", "95% t interval", "wins / ties / losses", "reading"),
        tuple(map(row, (contents.floor or {}).values())),
        intro="Step agreement with exact top-k, of each scanner minus that of exact top-k after a prefill in other "
        "chunks, over the same steps. Not told apart: this run does not show that it loses more than rounding does.",
        notes=("Exploratory: the intervals are not adjusted for their number.",),
        queries=(query.paired_query(METRICS[0]),),
    )


def outcomes(contents: Contents) -> Table:
    """Yes/no outcomes in pairs."""
    rows = tuple(
        (
            *_pair(each),
            outcome.name,
            str(outcome.mcnemar.both),
            str(outcome.mcnemar.only_scanner),
            str(outcome.mcnemar.only_baseline),
            str(outcome.mcnemar.neither),
            probability(outcome.mcnemar.p),
            probability(outcome.unit_p),
        )
        for each in contents.checks
        for outcome in each.outcomes
    )
    return Table(
        "outcomes",
        "Yes/no outcomes in pairs",
        ("pair", "family", "outcome", "both", "scanner only", "baseline only", "neither", "McNemar p", "p over units"),
        rows,
        intro="Steps where the branch is the reference's step word for word, or calls the same tool with the same "
        "arguments: yes under both scanners, under one, under none.",
        notes=(
            "McNemar's exact test takes steps as independent, which steps of one session are not: where units hold "
            "several steps, read the sign-flip p over unit shares. Neither is adjusted for the family.",
        ),
        queries=(STEPS,),
    )


def ratios(contents: Contents) -> Table:
    """Scanner over baseline: bytes exactly, times with an interval."""
    rows = tuple(
        (
            *_pair(each),
            str(each.steps),
            number(each.scan_bytes),
            number(each.row_bytes),
            *_times(each.gpu),
            *_times(each.wall),
            *_times(each.cpu),
        )
        for each in contents.checks
    )
    notes = [
        "Bytes are counted over the same steps: their ratio is exact and has no interval. Times are paired step by "
        "step; the geometric mean over units has a 95% t interval on the log scale. Below 1: the scanner needs less.",
    ]
    if all(each.gpu is None for each in contents.checks):
        notes.append(f"GPU ms: {NOTHING}, {NO_GPU}. Wall and CPU time are never read as GPU time.")
    return Table(
        "ratios",
        "Ratios of bytes and times",
        RATIOS,
        rows,
        notes=tuple(notes),
        queries=(STEPS,),
    )


def selections(contents: Contents) -> Table:
    """How often the kernels selected another token than the references; without rows where nothing was compared."""

    def row(each: SelectionFigures) -> tuple[str, ...]:
        return (
            contents.shown(each.scanner),
            str(each.comparisons),
            f"{each.selected:,}",
            f"{each.flipped:,}",
            f"{each.flip_rate:.2g}",
            f"{each.unexplained:,}",
            f"{each.tolerance:g}",
        )

    notes = [
        "Sums in another order move scores in their last bits, and with them tokens at the edge of a selection. "
        "Flipped: tokens that the references select and the kernels do not. Unexplained: tokens that only one of the "
        "two selected, further from the k-th score than the tolerance (a share of the query head's largest |score|).",
    ]
    if contents.selections:
        notes.append(selections_verdict(contents))
    return Table(
        "selections",
        "Selections by kernels against the references",
        ("scanner", "comparisons", "selected tokens", "flipped", "flip rate", "unexplained", "tolerance"),
        tuple(map(row, contents.selections)),
        intro="One decode step at a session's first branch point, taken by the kernels and by the references from the "
        "same queries and stores; all scanned layers and query heads.",
        notes=tuple(notes),
        queries=(SELECTIONS,),
    )


def selections_verdict(contents: Contents) -> str:
    """One sentence: whether every token that the kernels selected otherwise is rounding."""
    wrong = [each for each in contents.selections if each.unexplained]
    if not wrong:
        return "Every token that the kernels selected otherwise lies within the tolerance: rounding explains all."
    named = ", ".join(f"{contents.shown(each.scanner)} ({each.unexplained:,})" for each in wrong)
    return (
        f"The kernels are wrong under {plural(len(wrong), 'scanner')}: rounding does not explain all tokens that they "
        f"selected otherwise than the references ({named}); figures of these scanners do not hold."
    )


def _pair(each: Check) -> tuple[str, str]:
    return f"{each.scanner} − {each.baseline}", "declared" if each.declared else "exploratory"


def _interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None else f"[{signed(low)}, {signed(high)}]"


def _times(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return NOTHING, NOTHING
    around = "(n=1)" if ratio.units == 1 else "(all equal)"
    if ratio.low is not None:
        around = f"[{number(ratio.low)}, {number(ratio.high)}]"
    return f"{number(ratio.geometric_mean)} {around}", number(ratio.of_medians)
