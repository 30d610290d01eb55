"""Declared regressions: rules such as `agreement:0.02` or `scan_bytes:0%`, and which of them a comparison breaks.

Counted quantities (bytes, missing items) break a rule by their amount alone. So does a fall in agreement: over the same
items it is a fact, and whether it is more than chance stands beside it. A time breaks a rule only if it is also told
apart from no change, as times vary from run to run.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.errors import UsageError, explain
from leadline.reports.paired_runs import Change, PairedRuns
from leadline.reports.words import number, plural, probability, signed

ABSOLUTE = ("agreement", "kl_dense", "missing")
BYTES = ("scan_bytes", "row_bytes", "index_bytes")
TIMES = ("gpu_ms", "wall_ms", "cpu_seconds")
ROUNDING = 1e-9


@dataclass(frozen=True)
class Rule:
    """`metric` may not get worse by more than `amount`: absolute, or a share (0.05 for 5%) of what it was."""

    metric: str
    amount: float

    def __str__(self) -> str:
        return f"{self.metric}:{self.amount:g}" if self.metric in ABSOLUTE else f"{self.metric}:{self.amount * 100:g}%"


def parse_rules(texts: Sequence[str], margin: float) -> tuple[Rule, ...]:
    """The rules as given; where none is, agreement may not fall by more than run A's declared margin.

    "none" alone declares nothing. Raises UsageError for what is no rule.
    """
    if not texts:
        return (Rule("agreement", margin),)
    return () if list(texts) == ["none"] else tuple(_rule(text) for text in texts)


def _rule(text: str) -> Rule:
    metric, _, amount = text.partition(":")
    known = (*ABSOLUTE, *BYTES, *TIMES)
    if metric not in known:
        near = difflib.get_close_matches(metric, known, 1)
        hint = f"did you mean {near[0]}?" if near else "choose one of these, or `--fail none` alone"
        raise UsageError(explain("no such metric", field="--fail", found=text, expected=", ".join(known), do=hint))
    percent = amount.endswith("%")
    try:
        value = float(amount.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or percent == (metric in ABSOLUTE):
        form = f"{metric}:0.02" if metric in ABSOLUTE else f"{metric}:5%"
        if metric == "missing":
            form = "missing:0"
        raise UsageError(explain("not an amount", field="--fail", found=text, expected=f"for example {form}"))
    return Rule(metric, value / 100 if percent else value)


def broken(runs: PairedRuns, rules: Sequence[Rule]) -> list[str]:
    """The declared regressions, one sentence each."""
    found = []
    for rule in rules:
        if rule.metric == "missing":
            if runs.missing > rule.amount:
                found.append(f"missing: {plural(runs.missing, 'item')} of A not in B, {rule.amount:g} allowed")
            continue
        for change in runs.changes:
            said = _worse(change, rule)
            if said:
                found.append(f"{change.scanner}: {said} ({rule})")
    return found


def unanswered(runs: PairedRuns, rules: Sequence[Rule]) -> list[str]:
    """Rules that cannot be judged for a scanner, one sentence each: a gate that sees nothing must say so."""
    found = []
    for rule in rules:
        blind = [change.scanner for change in runs.changes if rule.metric != "missing" and not _seen(change, rule)]
        if blind:
            why = "not timed in both runs, or one unit alone" if rule.metric in TIMES else "not stored in both runs"
            found.append(f"{rule} was not judged for {', '.join(blind)} ({why})")
    return found


def _seen(change: Change, rule: Rule) -> bool:
    if rule.metric in BYTES:
        return True
    value = getattr(change, rule.metric)
    return value is not None and (rule.metric not in TIMES or value.low is not None)


def _worse(change: Change, rule: Rule) -> str | None:
    value = getattr(change, rule.metric)
    if value is None:
        return "reads bytes where it read none" if rule.metric in BYTES else None
    if rule.metric == "agreement":
        chance = f"Holm p {probability(change.holm_p)}"
        fell = -value.difference > rule.amount + ROUNDING
        return f"agreement {signed(value.difference)} over {plural(value.n, 'unit')}, {chance}" if fell else None
    if rule.metric == "kl_dense":
        rose = value.difference > rule.amount + ROUNDING
        return f"KL(dense‖·) {signed(value.difference, 4)} nats per token" if rose else None
    if rule.metric in BYTES:
        return f"{rule.metric} x{number(value, 4)}" if value - 1 > rule.amount + ROUNDING else None
    slower = value.geometric_mean - 1 > rule.amount + ROUNDING and value.low is not None and value.low > 1
    return (
        f"{rule.metric} x{number(value.geometric_mean)} [{number(value.low)}, {number(value.high)}]" if slower else None
    )
