"""The word diff: it gives both texts back, and its common words are those that step agreement counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.agreement import overlap, words
from leadline.reports.word_diff import Piece, diff

TEXT = st.text(alphabet="ab \n\t", max_size=40)


@settings(max_examples=300, deadline=None)
@given(TEXT, TEXT)
def test_both_texts_come_back_and_the_common_words_are_agreements(reference: str, text: str) -> None:
    pieces = diff(reference, text)
    assert "".join(piece.text for piece in pieces if piece.kind != "reference") == text
    theirs = [piece for piece in pieces if piece.kind != "scanner"]
    assert [word for piece in theirs for word in words(piece.text)] == words(reference)
    common = sum(len(words(piece.text)) for piece in pieces if piece.kind == "same")
    total = len(words(reference)) + len(words(text))
    assert overlap(words(reference), words(text)) == (2 * common / total if total else 1.0)


def test_an_exchange_shows_the_references_words_first() -> None:
    assert diff("run pytest -q now", "run ruff -q now") == (
        Piece("same", "run"),
        Piece("reference", " pytest"),
        Piece("scanner", " ruff"),
        Piece("same", " -q now"),
    )


def test_long_texts_are_compared_whole() -> None:
    reference = " ".join(f"w{number % 97}" for number in range(3000))
    text = " ".join(f"w{number % 89}" for number in range(3000))
    common = sum(len(words(piece.text)) for piece in diff(reference, text) if piece.kind == "same")
    assert common == round(overlap(words(reference), words(text)) * 3000)


@pytest.mark.parametrize(
    ("reference", "text", "kinds"),
    [
        ("a b", "a b", ["same"]),
        ("a b", "a  b\n", ["same", "same"]),
        ("", "a", ["scanner"]),
        ("a", "", ["reference"]),
        ("", "", []),
        ("a b c", "a b", ["same", "reference"]),
    ],
)
def test_ends_and_nothing(reference: str, text: str, kinds: list[str]) -> None:
    assert [piece.kind for piece in diff(reference, text)] == kinds
