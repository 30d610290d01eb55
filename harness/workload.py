"""Which steps of a session are replayed: eligibility and the choice of branch points (SPEC section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.config import RunSpec
from leadline.records import Exclusion
from leadline.sessions.render import BranchPoint, RenderedSession
from leadline.sessions.schema import Session

MULTIPLE_OF_K = 8  # a prompt shorter than 8k is no test of a selection of k


@dataclass(frozen=True)
class SessionWork:
    """A session, its chosen branch points in order, and what was left out with the reason."""

    session: Session
    rendered: RenderedSession
    points: tuple[BranchPoint, ...]
    exclusions: tuple[Exclusion, ...]


def chosen_indices(eligible: int, steps: int) -> tuple[int, ...]:
    """Indices ceil((i + 1) m / N) - 1, i = 0..N-1, of m eligible steps; all of them where m <= N."""
    if eligible <= steps:
        return tuple(range(eligible))
    return tuple(-(-(i + 1) * eligible // steps) - 1 for i in range(steps))


def choose(session: Session, rendered: RenderedSession, spec: RunSpec) -> SessionWork:
    """Pick the branch points of one session: n >= 8k and n + max_new_tokens <= max_context; nothing is truncated."""
    eligible: list[BranchPoint] = []
    exclusions: list[Exclusion] = []
    least = MULTIPLE_OF_K * spec.selected
    most = spec.max_context - spec.max_new_tokens

    def leave_out(step: int | None, reason: str) -> None:
        exclusions.append(Exclusion(path=session.path, session_sha256=session.sha256, step=step, reason=reason))

    for point in rendered.points:
        if point.n_tokens < least:
            leave_out(point.step, f"prompt of {point.n_tokens} tokens is shorter than 8k = {least}")
        elif point.n_tokens > most:
            leave_out(
                point.step,
                f"{point.n_tokens} + {spec.max_new_tokens} new tokens exceed max-context {spec.max_context}",
            )
        else:
            eligible.append(point)
    points = tuple(eligible[i] for i in chosen_indices(len(eligible), spec.steps))
    if not points:
        leave_out(None, f"none of its {len(rendered.points)} steps has a prompt of {least} to {most} tokens")
    return SessionWork(session, rendered, points, tuple(exclusions))


def capacity(points: Sequence[BranchPoint], max_new_tokens: int) -> int:
    """Tokens the rows of a session must hold: its longest prompt and a branch's new tokens."""
    return max(point.n_tokens for point in points) + max_new_tokens
