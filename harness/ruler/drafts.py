"""What a task writes: a text that grows with its number of words, a question, and the strings that answer it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_ADJECTIVES = (
    "amber", "brisk", "calm", "dusty", "eager", "faded", "gentle", "hollow", "ivory", "jolly", "keen", "lunar",
    "mellow", "narrow", "olive", "plain", "quiet", "rusty", "silver", "tidy", "upper", "vivid", "windy", "young",
    "zealous",
)  # fmt: skip
_NOUNS = (
    "anchor", "basket", "candle", "drawer", "engine", "falcon", "garden", "harbor", "island", "jacket", "kettle",
    "lantern", "meadow", "needle", "orchard", "pillow", "quarry", "ribbon", "saddle", "temple", "umbrella", "valley",
    "wagon", "yard",
)  # fmt: skip
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Draft:
    """A prompt in parts; `gold` are the strings that the answer should hold."""

    instruction: str
    text: str
    question: str
    gold: tuple[str, ...]

    @property
    def message(self) -> str:
        """The user's message."""
        return f"{self.instruction}\n\n{self.text}\n\n{self.question}"


def owners(rng: random.Random, count: int) -> list[str]:
    """Distinct owners of codes: "amber falcon"."""
    pairs = [f"{adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    return rng.sample(pairs, count)


def numbers(rng: random.Random, count: int) -> list[str]:
    """Distinct numbers of seven digits, none of them part of another."""
    return [str(number) for number in rng.sample(range(1_000_000, 10_000_000), count)]


def variables(rng: random.Random, count: int) -> list[str]:
    """Distinct names of five capital letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices("BCDFGHJKLMNPQRSTVWXZ", k=5))] = None
    return list(found)


def coined(rng: random.Random, count: int) -> list[str]:
    """Distinct words of no language, of three syllables."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(3))] = None
    return list(found)


def hide(sentences: Sequence[str], needles: Sequence[str], depths: Sequence[float]) -> list[str]:
    """Needles among sentences, needle i behind the fraction depths[i] of them; equal depths keep their order."""
    places = sorted(range(len(needles)), key=lambda i: (depths[i], i))
    found: list[str] = []
    done = 0
    for i in places:
        until = round(depths[i] * len(sentences))
        found += [*sentences[done:until], needles[i]]
        done = until
    return [*found, *sentences[done:]]
