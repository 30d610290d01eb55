"""A comparison of two runs as Markdown, short enough for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.reports.gates import Rule
from leadline.reports.markdown import cell
from leadline.reports.paired_runs import Change, PairedRuns, Side
from leadline.reports.stats import Difference
from leadline.reports.stats_ratios import Ratio
from leadline.reports.words import NOTHING, number, plural, probability, share, signed

COLUMNS = (
    "scanner", "items (units)", "same tokens", "agreement A → B", "difference, 95% t interval", "Holm p", "verdict",
    "KL(dense‖·) difference", "bits A → B", "scan bytes B/A", "row bytes B/A", "GPU ms B/A", "wall ms B/A",
)  # fmt: skip


def compare_markdown(runs: PairedRuns, rules: Sequence[Rule], regressions: Sequence[str], blind: Sequence[str]) -> str:
    """The comparison as GitHub-flavoured Markdown: the answer first, then the table, then what it rests on."""
    allowed = ", ".join(f"`{rule}`" for rule in rules)
    if not rules:
        answer = ["No regression was declared (`--fail none`)."]
    elif regressions:
        answer = [f"**{plural(len(regressions), 'declared regression')}** ({allowed}):"]
        answer.append("\n".join(f"- {cell(text)}" for text in regressions))
    else:
        answer = [f"**No declared regression** ({allowed})."]
    rows = [COLUMNS, ("---", *("---:" for _ in COLUMNS[1:])), *(_row(change) for change in runs.changes)]
    table = "\n".join("| " + " | ".join(row if i == 1 else map(cell, row)) + " |" for i, row in enumerate(rows))
    parts = ["## leadline compare", *answer, *(f"Not judged: {cell(text)}." for text in blind), table, *_notes(runs)]
    return "\n\n".join(parts) + "\n"


def _row(change: Change) -> tuple[str, ...]:
    d = change.agreement
    return (
        change.scanner + ("" if change.same_scanner else " (changed)"),
        f"{change.items} ({d.n})",
        share(change.identical, change.items),
        f"{number(d.baseline_mean)} → {number(d.mean)}",
        _difference(d, 3),
        probability(change.holm_p),
        "identical" if change.identical == change.items and d.difference == 0 else change.verdict,
        _difference(change.kl_dense, 4) if change.kl_dense else NOTHING,
        f"{number(change.bits[0], 1)} → {number(change.bits[1], 1)}",
        number(change.scan_bytes, 4),
        number(change.row_bytes, 4),
        _ratio(change.gpu_ms),
        _ratio(change.wall_ms),
    )


def _notes(runs: PairedRuns) -> list[str]:
    notes = ["\n".join(f"- {name}: {_side(side)}" for name, side in (("A", runs.a), ("B", runs.b)))]
    if any(runs.unpaired.values()):
        counted = ", ".join(f"{count} {why}" for why, count in runs.unpaired.items() if count)
        notes.append(f"Left out, without a partner: {counted}.")
    if runs.differing:
        shown = "; ".join(f"{field}: {before} → {after}" for field, (before, after) in runs.differing.items())
        notes.append(f"**The runs were set up differently**: {cell(shown)}.")
    if runs.a.machine != runs.b.machine:
        notes.append("The runs were made on different machines: read no time against the other.")
    if any(not change.same_scanner for change in runs.changes):
        notes.append("(changed): same label, another implementation, configuration or calibration.")
    notes.append(
        f"B minus A over the same items; verdicts at ±{runs.a.margin:g} with Holm's p over the "
        f"{plural(len(runs.changes), 'scanner')} compared. Byte ratios are exact; times are geometric means over units."
    )
    return notes


def _side(side: Side) -> str:
    commit = side.commit or "commit not known"
    when = side.updated[:16].replace("T", " ")
    return cell(f"{side.database} run {side.run}, {side.model}, {commit}, {when} UTC, {side.machine}")


def _difference(d: Difference, digits: int) -> str:
    if d.low is None:
        return f"{signed(d.difference, digits)} ({'n=1' if d.n == 1 else 'all equal'})"
    return f"{signed(d.difference, digits)} [{signed(d.low, digits)}, {signed(d.high, digits)}]"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return NOTHING
    around = "" if ratio.low is None else f" [{number(ratio.low, 2)}, {number(ratio.high, 2)}]"
    return f"{number(ratio.geometric_mean, 2)}{around}"
