"""The tasks' prompts: seeded, fitted to a length, with every gold string answerable from the text and from it alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import tiny_replay

from leadline.errors import UsageError
from leadline.ruler.filler import Filler, prose, standard_library
from leadline.ruler.fitting import Sample, fit, tolerance
from leadline.ruler.scoring import contains, score
from leadline.ruler.tasks import TASKS
from leadline.sessions.render import Renderer

WORDS = 400


@pytest.fixture(scope="module")
def filler() -> Filler:
    return standard_library()


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tiny_replay.tokenizer())


def test_the_haystack_is_prose_without_digits(filler: Filler) -> None:
    assert len(filler.sentences) == len(set(filler.sentences)) >= 500
    assert not [s for s in filler.sentences if re.search(r"\d", s) or not s.endswith(".") or "\n" in s]
    assert filler.sha256 == standard_library().sha256


def test_a_haystack_has_as_many_words_as_asked_and_a_longer_one_begins_as_a_shorter(filler: Filler) -> None:
    words = sum(len(sentence.split()) for sentence in filler.sentences)
    long = filler.take(3 * words, "seed")
    assert Counter(long) == Counter(3 * list(filler.sentences)), "every sentence again before any comes a third time"
    for count in (1, 2, 19, 500, words, words + 7):
        found = filler.take(count, "seed")
        assert sum(len(sentence.split()) for sentence in found) == count
        assert found[:-1] == long[: len(found) - 1]
        assert found[-1].endswith(".")
    assert filler.take(0, "seed") == []
    assert filler.take(500, "other")[0] != long[0]
    assert prose(["A.", "B."] * 4).splitlines() == ["A. B. A. B. A. B.", "A. B."]


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_decides_a_prompt(task: str, filler: Filler) -> None:
    first, again, other = (TASKS[task](seed, WORDS, filler) for seed in ("1", "1", "2"))
    assert first == again
    assert first.gold != other.gold
    assert TASKS[task]("1", 2 * WORDS, filler).gold == first.gold, "more text asks for the same"


@pytest.mark.parametrize("task", TASKS)
def test_gold_stands_in_the_text_and_not_in_the_question(task: str, filler: Filler) -> None:
    for seed in map(str, range(20)):
        draft = TASKS[task](seed, WORDS, filler)
        assert len(set(draft.gold)) == len(draft.gold)
        assert score(draft.gold, draft.text) == 1.0
        assert score(draft.gold, f"{draft.instruction} {draft.question}") == 0.0
        assert score(draft.gold, ", ".join(draft.gold)) == score(draft.gold, "\n".join(draft.gold)) == 1.0


def owned(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for owner, code in re.findall(r"A locker code of the (\w+ \w+) is (\d{7})\.", text):
        found.setdefault(owner, []).append(code)
    return found


@pytest.mark.parametrize(
    ("task", "owners", "asked"),
    [("single-needle", 1, 1), ("multi-key", 8, 1), ("multi-value", 1, 1), ("multi-query", 8, 4)],
)
def test_the_owners_asked_for_have_the_gold_codes(task: str, owners: int, asked: int, filler: Filler) -> None:
    for seed in map(str, range(20)):
        draft = TASKS[task](seed, WORDS, filler)
        codes = owned(draft.text)
        named = [owner for owner in codes if contains(owner, draft.question)]
        assert (len(codes), len(named)) == (owners, asked)
        assert sorted(code for owner in named for code in codes[owner]) == sorted(draft.gold)


def test_following_the_assignments_gives_the_gold_variables(filler: Filler) -> None:
    for seed in map(str, range(20)):
        draft = TASKS["variable-tracking"](seed, WORDS, filler)
        (asked,) = re.findall(r"\d{7}", draft.question)
        values: dict[str, str] = {}
        for name, number, other in re.findall(
            r"Variable (\w+) is set to (?:(\d+)|the value of variable (\w+))\.", draft.text
        ):
            values[name] = number or values[other]  # a KeyError would be a copy of what is not set yet
        assert len(values) == 15
        assert {name for name, value in values.items() if value == asked} == set(draft.gold)


@pytest.mark.parametrize("words", [20, 77, 78, 79, 100, 137, 1000])
def test_the_gold_words_are_strictly_the_most_frequent(words: int, filler: Filler) -> None:
    for seed in map(str, range(10)):
        draft = TASKS["frequent-words"](seed, words, filler)
        counts = Counter(draft.text.split())
        assert sum(counts.values()) == words
        ranked = counts.most_common()
        assert {word for word, _ in ranked[:3]} == set(draft.gold)
        assert ranked[2][1] > ranked[3][1]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [3000, 9001])
def test_prompts_are_as_long_as_asked_within_the_tolerance(
    task: str, length: int, filler: Filler, renderer: Renderer
) -> None:
    sample = fit(renderer, filler, task, 3, 0, length)
    assert length - tolerance(length) <= sample.point.n_tokens <= length
    text = renderer.decode(sample.point.prompt_ids)
    assert score(sample.gold, text) == 1.0
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n"), "the template asks for the answer"
    again: Sample = fit(renderer, filler, task, 3, 0, length)
    assert again.point.prompt_ids.tolist() == sample.point.prompt_ids.tolist()


def test_a_length_below_the_question_is_refused(filler: Filler, renderer: Renderer) -> None:
    with pytest.raises(UsageError, match="--length"):
        fit(renderer, filler, "multi-query", 0, 0, 400)
