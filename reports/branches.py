"""The step texts of a report: every branch point with what was recorded and what each scanner wrote there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from leadline.reports.contents import Contents
from leadline.reports.rows import BranchText, ScannerLine, SessionLine
from leadline.reports.words import number, significant


@dataclass(frozen=True)
class Branch:
    """One scanner's text: the part it shares with the reference, from the start, and the rest."""

    label: str
    facts: str
    same: str
    differs: str


@dataclass(frozen=True)
class Point:
    """One branch point."""

    step: int
    prompt_tokens: int
    prompt_tail: str
    recorded: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class SessionSteps:
    """The branch points of one session."""

    session: SessionLine
    points: tuple[Point, ...]


def by_session(contents: Contents) -> list[SessionSteps]:
    """Every session's branch points, reference first; untrusted text, to be escaped by whoever prints it."""
    sessions = {session.sha256: session for session in contents.sessions}
    order = {figures.line.sha256: figures.line for figures in contents.scanners}

    def point(rows: list[BranchText]) -> Point:
        stored = [(order[row.scanner], row) for row in rows if row.scanner is not None]
        stored.sort(key=lambda item: item[0].role != "reference")
        reference = next((row.text for line, row in stored if line.role == "reference"), None)
        branches = tuple(_branch(line, row, reference) for line, row in stored)
        return Point(rows[0].step, rows[0].prompt_tokens, rows[0].prompt_tail, rows[0].recorded_text, branches)

    def points(rows: Iterator[BranchText]) -> tuple[Point, ...]:
        return tuple(point(list(same)) for _, same in groupby(rows, key=lambda row: row.step))

    grouped = groupby(contents.texts, key=lambda row: row.session)
    return [SessionSteps(sessions[session], points(rows)) for session, rows in grouped]


def _branch(line: ScannerLine, row: BranchText, reference: str | None) -> Branch:
    text, is_reference = row.text or "", line.role == "reference"
    facts = ["the reference"] if is_reference else [f"agreement {number(row.agreement, 2)}"]
    if row.first_divergence is not None:
        margin = "" if row.divergence_margin is None else f", margin {significant(row.divergence_margin)}"
        facts.append(f"parts at token {row.first_divergence}{margin}")
    if row.action_agreement is not None and not is_reference:
        facts.append("same action" if row.action_agreement else "another action")
    facts += [name for name, holds in (("empty", row.empty), ("repeating", row.repeating)) if holds]
    if not row.stopped:
        facts.append("cut at max new tokens")
    shared = len(text) if reference is None else _shared_words(text, reference)
    return Branch(line.shown, "; ".join(facts), text[:shared], text[shared:])


def _shared_words(text: str, reference: str) -> int:
    """The length of the longest start of `text` whose words `reference` starts with too."""
    end = 0
    for ours, theirs in zip(re.finditer(r"\S+", text), re.finditer(r"\S+", reference), strict=False):
        if ours[0] != theirs[0]:
            break
        end = ours.end()
    else:
        if len(text.split()) <= len(reference.split()):
            return len(text)
    return end + len(text[end:]) - len(text[end:].lstrip())
