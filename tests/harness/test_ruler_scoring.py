"""Adversarial answers for the scorer of the RULER-style tasks: what holds a gold string, and what only looks so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.ruler.scoring import contains, score


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("no", "No."),
        ("no", "Is it? no, it is not"),
        ("no", '"no"'),
        ("no", "(no)"),
        ("no", "yes\nno\n"),
        ("no", "no"),
        ("no", "42no?".replace("42", "42 ")),
        ("no", "yes/no"),
        ("no", "-no"),
        ("no", "no - never"),
        ("no", "'no'"),
        ("42", "42"),
        ("42", "It is 42."),
        ("42", "42, then 43"),
        ("42", "(42)"),
        ("42", "codes:42"),
        ("42", "code-42"),
        ("42", "41.\n42.\n43."),
        ("42", "a=42;"),
        ("42", "$42"),
        ("XVTBK", "xvtbk, RVQTW"),
        ("XVTBK", "**XVTBK**"),
        ("gidifa", "1. gidifa\n2. pusapu"),
        ("don't know", "I DON'T KNOW"),
        ("naïve", "Naïve!"),
        ("a.b", "see a.b here"),
        ("(x)", "so (x) it is"),
    ],
)
def test_a_gold_string_of_its_own_counts(gold: str, answer: str) -> None:
    assert contains(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("no", "not"),
        ("no", "It is not known."),
        ("no", "nono"),
        ("no", "no_one"),
        ("no", "no1"),
        ("no", "1no"),
        ("no", "no-one"),
        ("no", "say-no"),
        ("no", "n\no"),
        ("no", "n o"),
        ("no", "nö"),
        ("no", "noé"),
        ("don", "don't"),
        ("don", "don’t"),
        ("t", "don't"),
        ("42", "420"),
        ("42", "142"),
        ("42", "4 2"),
        ("42", "4\n2"),
        ("42", "42,000"),
        ("42", "1,42"),
        ("42", "3.42"),
        ("42", "42.5"),
        ("42", "x42"),
        ("42", "42x"),
        ("42", "4２"),
        ("3138872", "3,138,872"),
        ("XVTBK", "XVTB"),
        ("XVTBK", "XVTBKK"),
        ("don't know", "don't  know"),
        ("don't know", "don't\nknow"),
        ("a.b", "axb"),
        ("(x)", "x"),
        ("42", ""),
    ],
)
def test_what_only_looks_like_it_does_not(gold: str, answer: str) -> None:
    assert not contains(gold, answer)


def test_a_later_occurrence_counts_where_an_earlier_one_does_not() -> None:
    assert contains("no", "not, nothing, no")
    assert contains("42", "420, 42,000 and 42")


def test_the_score_is_the_fraction_found() -> None:
    assert score(["11", "22", "33", "44"], "11\n22, and 33.\n\n444") == 0.75
    assert score(["11"], "") == 0.0
    assert score(["11", "11"], "11") == 1.0


def test_order_and_repetition_do_not_count() -> None:
    assert score(["11", "22"], "22 11") == score(["11", "22"], "11 11 11 22") == 1.0


@pytest.mark.parametrize("gold", [[], [""], [" 42"], ["42\n"]])
def test_gold_that_could_never_fail_or_never_match_is_refused(gold: list[str]) -> None:
    with pytest.raises(ValueError, match="gold"):
        score(gold, "42")


@given(st.text(alphabet="no 42-'.,\nx_", max_size=12), st.sampled_from(["no", "42", "x"]))
def test_standing_alone_between_blanks_always_counts(noise: str, gold: str) -> None:
    assert contains(gold, f"{noise} {gold} {noise}")
    assert not contains(gold, noise.replace(gold, ""[:0]).replace(gold[0], "q"))


@given(st.sampled_from(["no", "4321987", "XVTBK"]), st.characters(categories=["L", "N"]))
def test_a_letter_or_digit_on_either_side_never_counts(gold: str, neighbour: str) -> None:
    assert not contains(gold, gold + neighbour)
    assert not contains(gold, neighbour + gold)
