"""The score of an answer: the fraction of its gold strings that it holds, each standing as a word of its own.

A gold string counts where nothing continues it: no letter, digit or underscore on either side, no hyphen or apostrophe
that joins it to a further letter ("no" is not in "no-one", "don" not in "don't"), and, where the gold begins or ends
with a digit, no decimal point or thousands separator with a digit behind it ("42" is not in "42,000" or "3.42"). Case
does not count. Whitespace does: the answer is scored as it was written, line by line, so a gold string that a line
break cuts in two is not there. (SPEC section 7.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LETTER = r"[^\W\d_]"
_JOINT = "[-‐‑'’]"  # hyphens and apostrophes


def score(gold: Sequence[str], answer: str) -> float:
    """The fraction of `gold` in `answer`, 0..1. ValueError where there is no gold, or an empty or padded one."""
    if not gold:
        raise ValueError("no gold strings: there is nothing to score")
    return sum(contains(one, answer) for one in gold) / len(gold)


def contains(gold: str, answer: str) -> bool:
    """Whether `gold` stands in `answer` as a word, or words, of its own."""
    if not gold or gold != gold.strip():
        raise ValueError(f"the gold string {gold!r} is empty or padded")
    before, after = [r"(?<!\w)"], [r"(?!\w)"]
    if re.match(_LETTER, gold[0]):
        before.append(rf"(?<!{_LETTER}{_JOINT})")
    if re.match(_LETTER, gold[-1]):
        after.append(rf"(?!{_JOINT}{_LETTER})")
    if gold[0].isdigit():
        before.append(r"(?<!\d[.,])")
    if gold[-1].isdigit():
        after.append(r"(?![.,]\d)")
    pattern = "".join(before) + re.escape(gold) + "".join(after)
    return re.search(pattern, answer, re.IGNORECASE) is not None
