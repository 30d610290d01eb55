"""How alike two steps are: words, tokens, actions, first divergence, degeneracy (SPEC section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def common_subsequence(a: Sequence[T], b: Sequence[T]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            above = row[j]
            row[j] = diagonal + 1 if x == y else max(row[j], row[j - 1])
            diagonal = above
    return row[-1]


def overlap(a: Sequence[T], b: Sequence[T]) -> float:
    """2 LCS(a, b) / (|a| + |b|): both empty 1.0, one empty 0.0. On words it is step agreement."""
    if not a and not b:
        return 1.0
    return 2 * common_subsequence(a, b) / (len(a) + len(b))


def common_prefix(a: Sequence[T], b: Sequence[T]) -> int:
    """Number of equal items at the front."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prefix_agreement(a: Sequence[T], b: Sequence[T]) -> float:
    """Common prefix over the longer length; both empty 1.0."""
    return common_prefix(a, b) / max(len(a), len(b)) if a or b else 1.0


def positional_agreement(a: Sequence[T], b: Sequence[T]) -> float:
    """Equal items at equal index over the longer length; both empty 1.0."""
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(len(a), len(b)) if a or b else 1.0


def words(text: str) -> list[str]:
    """Whitespace-separated words of a step's text."""
    return text.split()


def first_divergence(
    tokens: Sequence[int], stopped: bool, reference: Sequence[int], reference_stopped: bool
) -> int | None:
    """Index of the first decode step that differs from the reference's; a stop differs from any token. None if none
    does.
    """
    stop = (-1,)
    a = (*tokens, *(stop if stopped else ()))
    b = (*reference, *(stop if reference_stopped else ()))
    shared = common_prefix(a, b)
    return None if shared == len(a) == len(b) else shared


def is_repeating(tokens: Sequence[int], window: int = 8, times: int = 3) -> bool:
    """Whether some window of 8 tokens occurs 3 times or more."""
    counts: dict[tuple[int, ...], int] = {}
    for i in range(len(tokens) - window + 1):
        key = tuple(tokens[i : i + window])
        counts[key] = counts.get(key, 0) + 1
        if counts[key] >= times:
            return True
    return False


@dataclass(frozen=True)
class ActionAgreement:
    """Same tool names, and same names and arguments, as the reference's complete calls; None where it holds none."""

    name: bool | None
    call: bool | None


def compare_actions(
    calls: Sequence[tuple[str, str | None]], reference: Sequence[tuple[str, str | None]]
) -> ActionAgreement:
    """Compare complete calls, each (tool name, arguments as normalised JSON or None where they are not JSON)."""
    if not reference:
        return ActionAgreement(None, None)
    names = [name for name, _ in calls] == [name for name, _ in reference]
    return ActionAgreement(names, names and list(calls) == list(reference))
