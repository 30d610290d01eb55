"""The six tasks of SPEC section 7. Their texts are this project's own; their shapes are those of the RULER benchmark.

A task is a function of a seed, a number of words and the haystack: with one seed, more words make a longer text around
the same needles at the same depths, so that a prompt can be fitted to a length.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from leadline.ruler.drafts import Draft, coined, hide, numbers, owners, variables
from leadline.ruler.filler import Filler, prose

VERSION = 1  # part of a run's protocol: raise it whenever a prompt would come out differently
Task = Callable[[str, int, Filler], Draft]

_CODES = "The text below mentions locker codes of several owners among other things. Read it and remember the codes."
_KEYS, _VALUES, _ASKED = 8, 4, 4
_HOPS, _CHAINS = 4, 3
_RARE_WORDS, _SHARES = 60, (0.10, 0.075, 0.055)  # of all words, the three frequent ones


def single_needle(seed: str, words: int, filler: Filler) -> Draft:
    """One code in the text; name it."""
    return _codes(seed, words, filler, owned=[1], asked=1)


def multi_key(seed: str, words: int, filler: Filler) -> Draft:
    """Eight owners with a code each; name the code of one."""
    return _codes(seed, words, filler, owned=[1] * _KEYS, asked=1)


def multi_value(seed: str, words: int, filler: Filler) -> Draft:
    """One owner with four codes; name them all."""
    return _codes(seed, words, filler, owned=[_VALUES], asked=1)


def multi_query(seed: str, words: int, filler: Filler) -> Draft:
    """Eight owners with a code each; name the codes of four."""
    return _codes(seed, words, filler, owned=[1] * _KEYS, asked=_ASKED)


def variable_tracking(seed: str, words: int, filler: Filler) -> Draft:
    """Three chains of assignments; name the five variables that end up with the value of one."""
    rng = random.Random(seed)
    names, values = variables(rng, _CHAINS * (_HOPS + 1)), numbers(rng, _CHAINS)
    needles: list[str] = []
    depths: list[float] = []
    for chain in range(_CHAINS):
        own = names[chain * (_HOPS + 1) : (chain + 1) * (_HOPS + 1)]
        needles.append(f"Variable {own[0]} is set to {values[chain]}.")
        needles += [f"Variable {new} is set to the value of variable {old}." for old, new in itertools.pairwise(own)]
        depths += sorted(rng.random() for _ in own)  # a variable is set before it is copied
    text = prose(hide(filler.take(words, seed), needles, depths))
    return Draft(
        "The text below sets variables among other things. Follow which variable takes which value.",
        text,
        f"Which variables have the value {values[0]} in the end, directly or through another variable? There are "
        f"{_HOPS + 1}. Answer with their names.",
        tuple(names[: _HOPS + 1]),
    )


def frequent_words(seed: str, words: int, filler: Filler) -> Draft:
    """A list of coined words; name the three that come most often. Uses no haystack."""
    rng = random.Random(seed)
    often = coined(rng, len(_SHARES) + _RARE_WORDS)
    rare = [often.pop() for _ in range(_RARE_WORDS)]
    listed = [word for word, share in zip(often, _SHARES, strict=True) for _ in range(max(2, round(share * words)))]
    listed += [rare[i % len(rare)] for i in range(words - len(listed))]
    rng.shuffle(listed)
    return Draft(
        "Below is a list of coined words. Some of them come more often than others.",
        " ".join(listed),
        "Which three words come most often in the list? Answer with the three words.",
        tuple(often),
    )


TASKS: dict[str, Task] = {
    "single-needle": single_needle,
    "multi-key": multi_key,
    "multi-value": multi_value,
    "multi-query": multi_query,
    "variable-tracking": variable_tracking,
    "frequent-words": frequent_words,
}


def _codes(seed: str, words: int, filler: Filler, *, owned: list[int], asked: int) -> Draft:
    """Owners with `owned` codes each; the first `asked` of them are asked for."""
    rng = random.Random(seed)
    keys, values = owners(rng, len(owned)), numbers(rng, sum(owned))
    needles, codes = [], []
    for key, count in zip(keys, owned, strict=True):
        codes.append([values.pop() for _ in range(count)])
        needles += [f"A locker code of the {key} is {code}." for code in codes[-1]]
    depths = [rng.random() for _ in needles]
    *first, last = (f"the {key}" for key in keys[:asked])
    wanted = f"{', '.join(first)} and {last}" if first else last
    plural = "s" if asked > 1 or owned[0] > 1 else ""
    gold = tuple(code for own in codes[:asked] for code in own)
    return Draft(
        _CODES,
        prose(hide(filler.take(words, seed), needles, depths)),
        f"What {'are' if plural else 'is'} the locker code{plural} of {wanted}? "
        f"Answer with the {f'{len(gold)} numbers' if plural else 'number'}.",
        gold,
    )
