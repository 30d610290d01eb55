"""Fits a task's prompt to a length in tokens of a model, rendered with the model's chat template."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.errors import UsageError, explain
from leadline.ruler.drafts import Draft
from leadline.ruler.filler import Filler
from leadline.ruler.tasks import TASKS
from leadline.sessions.render import BranchPoint, Renderer
from leadline.sessions.schema import Message, Segment, Session


def tolerance(length: int) -> int:
    """Tokens by which a prompt may be shorter than asked: 64 or a hundredth, whichever is more. It is never longer."""
    return max(64, length // 100)


@dataclass(frozen=True)
class Sample:
    """One question: its prompt as a branch point, and the strings that answer it."""

    task: str
    number: int
    point: BranchPoint
    gold: tuple[str, ...]


def fit(renderer: Renderer, filler: Filler, task: str, number: int, seed: int, length: int) -> Sample:
    """Sample `number` of a task: the longest prompt found of at most `length` tokens, by bracketing its words.

    UsageError where not even the task's needles fit, or no number of words comes within the tolerance.
    """
    name = f"{seed}/{task}/{number}"

    def at(words: int) -> tuple[BranchPoint, Draft]:
        draft = TASKS[task](name, words, filler)
        return _rendered(renderer, f"{task}-{number}", draft), draft

    low, high = 0, 0
    best = at(low)
    if best[0].n_tokens > length:
        raise UsageError(_too_short(task, length, best[0].n_tokens))
    over, step = 0, max(1, length // 32)
    while over == 0:  # widen until a prompt is too long
        found = at(low + step)
        if found[0].n_tokens > length:
            high, over = low + step, found[0].n_tokens
        else:
            best, low, step = found, low + step, 2 * step
    while length - best[0].n_tokens > tolerance(length) and high - low > 1:
        fits = best[0].n_tokens
        middle = low + (length - fits) * (high - low) // (over - fits)
        middle = min(max(middle, low + 1), high - 1)
        found = at(middle)
        if found[0].n_tokens > length:
            high, over = middle, found[0].n_tokens
        else:
            best, low = found, middle
    point, draft = best
    if length - point.n_tokens > tolerance(length):
        raise UsageError(_no_fit(task, length, point.n_tokens))
    return Sample(task, number, point, draft.gold)


def _rendered(renderer: Renderer, name: str, draft: Draft) -> BranchPoint:
    """The message as the one user turn of a conversation; the gold strings stand where a recorded turn would."""
    messages = (Message(role="user", content=draft.message), Message(role="assistant", content=", ".join(draft.gold)))
    session = Session(
        id=name, format="ruler", path=name, source="ruler", view="full", segments=(Segment(messages=messages),)
    )
    return renderer.render(session).points[0]


def _too_short(task: str, length: int, found: int) -> str:
    return explain(
        f"a prompt of {task} does not fit",
        field="--length",
        found=length,
        expected=f"at least {found} tokens, which its question alone takes",
        do="give a larger --length",
    )


def _no_fit(task: str, length: int, found: int) -> str:
    return explain(
        f"no prompt of {task} comes near the length",
        field="--length",
        found=f"{found} tokens of {length}",
        expected=f"at most {tolerance(length)} tokens less than asked",
        do="give a larger --length",
    )
