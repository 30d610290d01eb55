"""The summary in words: sentences made by rule from the figures, so that the same figures always read the same."""

from __future__ import annotations

import json

from leadline.records import SEEN
from leadline.reports.check_tables import selections_verdict
from leadline.reports.contents import Contents, ScannerFigures
from leadline.reports.query import METRICS
from leadline.reports.words import plural, probability, signed, with_interval


def summary(contents: Contents) -> list[str]:
    """The sentences that open a report, most important first."""
    made = (_what, _shared, _kernels, _seen, _set_aside, _verdicts, _doubts, _best, _floor, _degenerate)
    sentences = [sentence(contents) for sentence in made]
    return [sentence for sentence in sentences if sentence]


def _what(contents: Contents) -> str:
    run, replayed = contents.run, [session for session in contents.sessions if session.branch_points]
    sources = f" from {plural(len({session.unit for session in replayed}), 'source')}" if replayed else ""
    text = (
        f"{contents.model.id} replayed {plural(len(replayed), 'session')}{sources}: "
        f"{plural(contents.branch_points, 'branch point')}, {plural(len(contents.scanners), 'scanner')}, "
        f"k = {contents.spec.selected}."
    )
    if run.results < contents.expected or run.status != "complete":
        state = {"running": "still running or was stopped hard", "partial": "finished with failures"}
        text += (
            f" The run {state.get(run.status, f'is {run.status}')}: {run.results} of {contents.expected} branches "
            f"are stored so far, and every figure below is over those."
        )
    return text


def _shared(contents: Contents) -> str:
    return "A copy made by `leadline share`: the recorded steps were left out of it." if contents.shared else ""


def _kernels(contents: Contents) -> str:
    """Only where they are wrong: then no other sentence matters as much."""
    return selections_verdict(contents) if any(each.unexplained for each in contents.selections) else ""


def _verdicts(contents: Contents) -> str:
    primary = [c for c in contents.comparisons.of(METRICS[0]) if c.declared]
    if not primary:
        missing = "; ".join(contents.comparisons.missing)
        return f"No declared comparison can be made{': ' + missing if missing else ''}."
    against = sorted({c.baseline for c in primary})
    groups = []
    for verdict in ("better", "worse", "equivalent", "inconclusive"):
        named = [f"{c.scanner} ({signed(c.difference.difference, 2)})" for c in primary if c.verdict == verdict]
        within = f" within ±{contents.spec.margin:g}" if verdict == "equivalent" else ""
        if named:
            shown = ", ".join(named) if verdict != "inconclusive" else plural(len(named), "scanner")
            groups.append(f"{verdict}{within}: {shown}")
    text = f"Step agreement with exact top-k, paired against {' and '.join(against)} — {'; '.join(groups)}."
    # What the test could show at most, as it stands: the floor of p times Holm's largest factor.
    reachable = min(c.difference.flip.floor for c in primary) * contents.comparisons.family
    if reachable > 0.05 and not any(c.verdict in ("better", "worse") for c in primary):
        units = max(c.difference.n for c in primary)
        text += (
            f" With {plural(units, 'unit')} and {plural(contents.comparisons.family, 'declared comparison')} no "
            f"difference, however large, can be called: the smallest adjusted p within reach is "
            f"{probability(min(1.0, reachable))}."
        )
    return text


def _doubts(contents: Contents) -> str:
    found = [(each, "; ".join(each.doubts)) for each in contents.checks if each.declared and each.doubts]
    shown = [f"{each.scanner} against {each.baseline} ({doubts})" for each, doubts in found]
    return f"In doubt: {', '.join(shown)}." if shown else ""


def _best(contents: Contents) -> str:
    ranked = [(f, f.agreement, f.cost) for f in contents.of_role("scanner")]
    found = [(f, a.mean, c.bits_per_token) for f, a, c in ranked if a is not None and c is not None]
    if not found:
        return ""
    best = max(found, key=lambda item: (item[1], -item[2]))
    near = min((item for item in found if item[1] >= best[1] - contents.spec.margin), key=lambda item: item[2])
    text = f"Highest mean agreement among the scanners: {_named(*best)}"
    if near is not best:
        text += f"; the cheapest scan within {contents.spec.margin:g} of it: {_named(*near)}"
    return text + ". (A description of these means, not a test.)"


def _named(figures: ScannerFigures, agreement: float, bits: float) -> str:
    return f"{figures.line.shown}, {agreement:.2f} at {bits:.1f} bits per token"


def _floor(contents: Contents) -> str:
    floors = [f for f in contents.of_role("noise-floor") if f.agreement is not None]
    if not floors:
        return "No noise floor was run: how much of any disagreement is rounding is not known."
    floor, scanners = floors[0], {figures.line.shown for figures in contents.of_role("scanner")}
    assert floor.agreement is not None
    beside = (contents.floor or {}).values()
    level = [each.scanner for each in beside if each.reading == "not told apart" and each.scanner in scanners]
    meaning = f"not told apart from it: {', '.join(level) or 'no scanner'}"
    if floor.agreement.mean == 1:
        meaning = "no rounding was seen"
    return (
        f"Noise floor: exact top-k after a prefill in chunks of {floor.line.prefill_chunk} agrees "
        f"{with_interval(floor.agreement, 2)} with itself in chunks of {contents.spec.prefill_chunk}; {meaning}."
    )


def _seen(contents: Contents) -> str:
    replayed = [session for session in contents.sessions if session.branch_points]
    known = [session.id for session in replayed if list(SEEN) in json.loads(session.notes)]
    if not known:
        return ""
    shown = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
    return (
        f"The calibration was made on recordings that are replayed here: {len(known)} of "
        f"{plural(len(replayed), 'session')} ({shown}). What needs it knows their text; calibrate on others."
    )


def _set_aside(contents: Contents) -> str:
    apart = sum(session.set_aside for session in contents.sessions)
    if not apart:
        return ""
    return (
        f"Set aside: {apart} of {plural(contents.branch_points + apart, 'branch point')}, at which dense attention "
        "itself writes nothing or repeats; no figure below has them in."
    )


def _degenerate(contents: Contents) -> str:
    flagged = [session for session in contents.sessions if session.flagged]
    if not flagged:
        return ""
    names = ", ".join(session.id for session in flagged[:5]) + (", ..." if len(flagged) > 5 else "")
    return (
        f"Degenerate: in {plural(len(flagged), 'session')} more than half of the dense steps are empty or repeating "
        f"({names}); agreement there says little."
    )
