"""The step texts of a report: every branch point with what was recorded and what each scanner wrote there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from leadline.reports.contents import Contents
from leadline.reports.rows import BranchText, ScannerLine, SessionLine
from leadline.reports.steps import StepFigures
from leadline.reports.word_diff import Piece, diff
from leadline.reports.words import megabytes, number, significant

LEFT_OUT = "(left out of this copy by `leadline share`)"


@dataclass(frozen=True)
class Branch:
    """One scanner's step: its text, the words as a diff against the reference's, and what is known of the branch.

    `id` is the fragment that links to it. `parts` says where it leaves the reference (token, and the reference's logit
    margin there), None where it never does. `facts` are agreement, action, bytes and time, in words.
    """

    id: str
    label: str
    is_reference: bool
    agreement: float
    facts: tuple[str, ...]
    text: str
    pieces: tuple[Piece, ...]
    parts: str | None

    @property
    def identical(self) -> bool:
        """No word differs from the reference's."""
        return all(piece.kind == "same" for piece in self.pieces)


@dataclass(frozen=True)
class Point:
    """One branch point; `id` is the fragment that links to it, the same in every report of the same session."""

    id: str
    step: int
    prompt_tokens: int
    prompt_tail: str
    recorded: str
    branches: tuple[Branch, ...]

    @property
    def agreement(self) -> float | None:
        """Mean agreement of the scanners' branches; None where there is none."""
        found = [branch.agreement for branch in self.branches if not branch.is_reference]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class SessionSteps:
    """The branch points of one session."""

    session: SessionLine
    points: tuple[Point, ...]


def short(sha256: str) -> str:
    """Twelve hex digits that stand for a hash in addresses and file names, also where a file's hash is none."""
    digits = sha256 if re.fullmatch("[0-9a-f]{12,}", sha256) else hashlib.sha256(sha256.encode()).hexdigest()
    return digits[:12]


def by_session(contents: Contents) -> list[SessionSteps]:
    """Every session's branch points, reference first; untrusted text, to be escaped by whoever prints it."""
    sessions = {session.sha256: session for session in contents.sessions}
    order = {figures.line.sha256: figures.line for figures in contents.scanners}
    figures = {(row.session, row.step, row.scanner): row for row in contents.steps}

    def point(rows: list[BranchText]) -> Point:
        first = rows[0]
        id = f"s{short(first.session)}-{first.step}"
        stored = [(order[row.scanner], row) for row in rows if row.scanner is not None]
        stored.sort(key=lambda item: item[0].role != "reference")
        reference = next((row.text for line, row in stored if line.role == "reference"), None)
        branches = tuple(
            _branch(id, line, row, reference, figures.get((row.session, row.step, line.sha256))) for line, row in stored
        )
        recorded = LEFT_OUT if contents.shared else first.recorded_text
        return Point(id, first.step, first.prompt_tokens, first.prompt_tail, recorded, branches)

    def points(rows: Iterator[BranchText]) -> tuple[Point, ...]:
        return tuple(point(list(same)) for _, same in groupby(rows, key=lambda row: row.step))

    grouped = groupby(contents.texts, key=lambda row: row.session)
    return [SessionSteps(sessions[session], points(rows)) for session, rows in grouped]


def _branch(
    point: str, line: ScannerLine, row: BranchText, reference: str | None, figures: StepFigures | None
) -> Branch:
    text, is_reference = row.text or "", line.role == "reference"
    parts = None
    if row.first_divergence is not None:
        margin = "" if row.divergence_margin is None else f", margin {significant(row.divergence_margin)}"
        parts = f"token {row.first_divergence}{margin}"
    facts = ["the reference"] if is_reference else [f"agreement {number(row.agreement, 2)}"]
    if parts:
        facts.append(f"parts at {parts}")
    if not is_reference:
        action = {None: "no action to compare", 0: "another action", 1: "same action"}
        facts.append(action[row.action_agreement])
    facts += [name for name, holds in (("empty", row.empty), ("repeating", row.repeating)) if holds]
    if not row.stopped:
        facts.append("cut at max new tokens")
    if figures is not None:
        facts += _costs(figures, scans=line.role != "dense")
    pieces = (Piece("same", text),) if reference is None or is_reference else diff(reference, text)
    id = f"{point}-{short(line.sha256)[:8]}"
    return Branch(id, line.shown, is_reference, row.agreement or 0.0, tuple(facts), text, pieces, parts)


def _costs(row: StepFigures, *, scans: bool) -> list[str]:
    """Bytes and time per decoded token."""
    facts = [f"{number(row.bits_per_token, 1)} bits per token", f"scan {megabytes(row.scan_bytes)} MB"] if scans else []
    facts.append(f"rows {megabytes(row.row_bytes)} MB")
    facts.append(f"GPU {significant(row.gpu_ms)} ms" if row.gpu_ms is not None else "GPU time not measured")
    return [*facts, f"wall {significant(row.wall_ms)} ms"]
