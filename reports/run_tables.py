"""The tables that are not one row per scanner: paired differences, sessions, exclusions, environment, commands."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from leadline.reports import query
from leadline.reports.choices import verdict_rule
from leadline.reports.comparisons import Comparison
from leadline.reports.contents import Contents
from leadline.reports.query import Metric, Query
from leadline.reports.rows import InvocationRow
from leadline.reports.steps import STEPS
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, number, plural, probability, share, signed, significant


def differences(contents: Contents, metric: Metric) -> Table:
    """Paired differences in one metric: the declared family first, everything else marked exploratory."""
    digits = 3 if metric.primary else 4
    margin = f"±{contents.spec.margin:g}"

    def row(c: Comparison) -> tuple[str, ...]:
        d = c.difference
        interval = f"[{signed(d.low, digits)}, {signed(d.high, digits)}]" if d.low is not None else _no_interval(d.n)
        cells = [
            f"{c.scanner} − {c.baseline}",
            "declared" if c.declared else "exploratory",
            f"equivalent within {margin}" if c.verdict == "equivalent" else c.verdict,
            f"{d.n} ({c.steps})",
            f"{number(d.mean, digits)} − {number(d.baseline_mean, digits)}",
            signed(d.difference, digits),
            interval,
            number(d.se, digits),
            f"{d.wins} / {d.ties} / {d.losses}",
            probability(c.p),
            probability(c.holm_p),
            number(d.d_z, 2),
            number(d.mde, digits),
        ]
        return (*cells, probability(c.tost_p), str(c.units_needed or NOTHING)) if metric.primary else tuple(cells)

    columns: tuple[str, ...] = (
        "pair", "family", "verdict", "units (steps)", "means", "difference", "95% t interval", "SE",
        "wins / ties / losses", "p", "Holm p", "d_z", "detectable at 80%",
    )  # fmt: skip
    found = contents.comparisons.of(metric)
    notes = (
        [verdict_rule(contents.spec.margin)] if metric.primary else ["Secondary metric: no margin, so no equivalence."]
    )
    if metric.primary:
        columns += (f"TOST p at {margin}", f"units to detect {contents.spec.margin:g}")
        family = contents.comparisons.family
        notes.append(
            f"Declared family: {plural(family, 'comparison')}; Holm p is adjusted over it. Exploratory rows are not "
            f"adjusted: hints, not findings. Wins: units where the scanner is better. d_z: difference over the SD of "
            f"differences."
        )
        notes += [f"Not compared: {text}." for text in contents.comparisons.missing]
    better = "Higher" if metric.higher_is_better else "Lower"
    dropped = sum(c.dropped for c in found)
    if dropped:
        notes.append(
            f"Pairs use the steps both have; {plural(dropped, 'step')} without a partner left out, over all rows."
        )
    return Table(
        f"difference-{metric.key}".replace("_", "-"),
        f"Paired differences in {metric.title}",
        columns,
        tuple(row(c) for c in found),
        intro=f"Scanner minus baseline over the same steps, by unit. {better} is better.",
        notes=tuple(notes),
        queries=(query.paired_query(metric),),
    )


def sessions(contents: Contents) -> Table:
    """One row per session, agreement by scanner."""
    shown = [f.line for f in contents.scanners if f.line.role != "reference"]
    cells = {(row.session, row.scanner): row.agreement for row in contents.session_agreement}
    columns: tuple[str, ...] = ("session", "source", "branch points", "longest prompt", "dense perplexity")
    columns += ("degenerate dense steps", "notes")
    rows = []
    for session in contents.sessions:
        flag = " FLAGGED" if session.flagged else ""
        notes = Counter(note[0] for note in json.loads(session.notes))
        fixed = (
            session.id,
            session.source or NOTHING,
            str(session.branch_points),
            str(session.longest_prompt or NOTHING),
            significant(session.dense_perplexity),
            share(*session.degenerate) + flag,
            ", ".join(f"{count} {kind}" for kind, count in sorted(notes.items())) or NOTHING,
        )
        rows.append(fixed + tuple(number(cells.get((session.sha256, line.sha256)), 2) for line in shown))
    return Table(
        "sessions",
        "Sessions",
        columns + tuple(line.shown for line in shown),
        tuple(rows),
        intro="Mean agreement with exact top-k over the steps of each session.",
        notes=(
            "A session is flagged where more than half of its dense steps are empty or repeating, those that were set "
            "aside for it included.",
        ),
        queries=(query.SESSIONS, query.SESSION_AGREEMENT),
    )


def degenerate(contents: Contents) -> Table:
    """The steps at which some scanner wrote nothing or ran in circles, with who did."""
    names = {figures.line.sha256: figures.line.shown for figures in contents.scanners}
    ids = {session.sha256: session.id for session in contents.sessions}
    found: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
    for row in contents.steps:
        for holds, place in ((row.empty, 0), (row.repeating, 1)):
            if holds:
                found.setdefault((row.session, row.step), ([], []))[place].append(names[row.scanner])
    apart = sum(session.set_aside for session in contents.sessions)
    aside = f" {plural(apart, 'further point')} at which dense attention is so were set aside." if apart else ""
    rows = tuple(
        (f"{ids[session]}, step {step}", ", ".join(empty) or NOTHING, ", ".join(repeating) or NOTHING)
        for (session, step), (empty, repeating) in found.items()
    )
    return Table(
        "degenerate",
        "Degenerate steps",
        ("step", "empty under", "repeating under"),
        rows,
        intro=f"{plural(len(rows), 'step')} of {contents.branch_points} where a branch is empty, or some 8-token "
        f"window occurs 3 times or more. They stay in every mean.{aside}",
        queries=(STEPS,),
        numeric=False,
        folded=len(rows) > 12,
    )


def calibrations(contents: Contents) -> Table:
    """Which calibration each scanner used."""
    used = [(f.line.shown, f.line.calibration_sha256) for f in contents.scanners if f.line.calibration_sha256]
    return Table(
        "calibrations",
        "Calibrations used",
        ("scanner", "sha256 of the artifact"),
        tuple(used),
        queries=(query.SCANNERS,),
        numeric=False,
        folded=True,
    )


def exclusions(contents: Contents) -> Table:
    """Excluded sessions, files and steps, counted by reason."""
    rows = tuple(by_reason([item.reason for item in contents.exclusions]))
    return Table(
        "exclusions",
        "Excluded",
        ("reason", "items"),
        rows,
        intro=f"{plural(len(contents.exclusions), 'item')} not replayed; nothing was cut short to fit.",
        queries=(query.EXCLUSIONS,),
    )


def by_reason(reasons: Sequence[str]) -> list[tuple[str, str]]:
    """Reasons with their counts, most frequent first; those that differ in numbers alone are one, with their range."""
    groups: dict[tuple[str, ...], list[list[int]]] = {}
    for reason in reasons:
        parts = re.split(r"(\d+)", reason)
        groups.setdefault(tuple(parts[::2]), []).append([int(number) for number in parts[1::2]])
    rows = []
    for words, numbers in sorted(groups.items(), key=lambda item: -len(item[1])):
        ends = [(min(column), max(column)) for column in zip(*numbers, strict=True)]
        shown = [str(low) if low == high else f"{low} to {high}" for low, high in ends]
        text = "".join(part for pair in zip(words, [*shown, ""], strict=True) for part in pair)
        rows.append((text, str(len(numbers))))
    return rows


def machines(invocations: Sequence[InvocationRow], each: str, source: Query) -> Table:
    """One column per distinct machine and software, headed by its invocations (`each` is what one is called)."""
    alike: dict[str, list[InvocationRow]] = {}
    for row in invocations:
        shown = {name: value for name, value in row.environment.items() if name not in _NOT_SHOWN}
        alike.setdefault(json.dumps([shown, row.environment["packages"]]), []).append(row)
    distinct = list(alike.values())
    columns = ("what", *(f"{each} {', '.join(str(row.id) for row in same)}" for same in distinct))
    found = [same[0].environment for same in distinct]
    names = [name for name in (found[0] if found else {}) if name not in _NOT_SHOWN]
    rows = [(name.replace("_", " "), *(_shown(each[name]) for each in found)) for name in names]
    packages = [json.loads(each["packages"]) for each in found]
    for name in sorted({name for each in packages for name in each}):
        rows.append((name, *(each.get(name, NOTHING) for each in packages)))
    return Table("environment", "Environment", columns, tuple(rows), queries=(source,), numeric=False)


def commands(invocations: Sequence[InvocationRow], each: str) -> Table:
    """The commands that made the figures, when they began and ended."""
    rows = tuple((str(row.id), row.started, row.ended or "not ended", row.command) for row in invocations)
    return Table("commands", "Commands", (each, "started (UTC)", "ended", "command"), rows, numeric=False)


_NOT_SHOWN = {"id", "run_id", "command", "started", "ended", "packages"}


def _shown(value: object) -> str:
    return NOTHING if value is None else str(value)


def _no_interval(n: int) -> str:
    return "n=1" if n == 1 else "all equal"
