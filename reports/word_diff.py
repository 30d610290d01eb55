"""The words of a step against the reference's: what both have, what each has alone, in reading order.

The common words are a longest common subsequence, as in step agreement (SPEC section 5): 2 * common / (sum of lengths)
is the agreement that is printed beside the diff.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

Kind = Literal["same", "reference", "scanner"]


@dataclass(frozen=True)
class Piece:
    """A stretch of text: in both steps, only in the reference's, or only in the scanner's."""

    kind: Kind
    text: str


def diff(reference: str, text: str) -> tuple[Piece, ...]:
    """The two texts as stretches; where words were exchanged the reference's come first.

    Every piece but "reference" ones, joined, is `text`, white space included.
    """
    ours, theirs = re.findall(r"\s*\S+", text), re.findall(r"\s*\S+", reference)
    kinds: list[tuple[Kind, str]] = []
    i = j = 0
    for a, b in [
        *_common([word.strip() for word in theirs], [word.strip() for word in ours]),
        (len(theirs), len(ours)),
    ]:
        kinds += [("reference", word) for word in theirs[i:a]]
        kinds += [("scanner", word) for word in ours[j:b]]
        if b < len(ours):
            kinds.append(("same", ours[b]))
        i, j = a + 1, b + 1
    rest = text[len("".join(ours)) :]
    pieces = [
        Piece(kind, "".join(word for _, word in group)) for kind, group in groupby(kinds, key=lambda item: item[0])
    ]
    return (*pieces, Piece("same", rest)) if rest else tuple(pieces)


def _common(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Index pairs of one longest common subsequence; shared ends are taken first, which never makes it shorter."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle = _longest(a[start : len(a) - end], b[start : len(b) - end])
    return [
        *((k, k) for k in range(start)),
        *((start + x, start + y) for x, y in middle),
        *((len(a) - k, len(b) - k) for k in range(end, 0, -1)),
    ]


def _longest(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, bit-parallel so that long steps cost little.

    After i words of `a`, bit j of row i is 0 where the subsequence with b[: j + 1] is longer than with b[:j].
    """
    where: dict[str, int] = {}
    for j, word in enumerate(b):
        where[word] = where.get(word, 0) | 1 << j
    everything = (1 << len(b)) - 1
    rows = [everything]
    for word in a:
        row = rows[-1]
        matched = row & where.get(word, 0)
        rows.append(((row + matched) | (row - matched)) & everything)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        bit = 1 << (j - 1)
        if rows[i] & bit:
            j -= 1
        elif rows[i - 1] & bit:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        else:
            i -= 1
    return pairs[::-1]
