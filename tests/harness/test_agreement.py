"""Agreement of steps against slow definitions."""

from __future__ import annotations

import difflib
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from leadline import agreement

WORDS = st.lists(st.sampled_from("abcd"), max_size=9)


def slow_lcs(a: list[str], b: list[str]) -> int:
    @cache
    def go(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return 0
        return 1 + go(i + 1, j + 1) if a[i] == b[j] else max(go(i + 1, j), go(i, j + 1))

    return go(0, 0)


@given(WORDS, WORDS)
def test_overlap_is_twice_the_lcs_over_both_lengths(a: list[str], b: list[str]) -> None:
    assert agreement.common_subsequence(a, b) == slow_lcs(a, b)
    expected = 2 * slow_lcs(a, b) / (len(a) + len(b)) if a or b else 1.0
    assert agreement.overlap(a, b) == agreement.overlap(b, a) == expected
    matched = sum(m.size for m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    assert agreement.common_subsequence(a, b) >= matched


def test_empty_steps() -> None:
    assert agreement.overlap([], []) == 1.0
    assert agreement.overlap(["a"], []) == 0.0
    assert agreement.prefix_agreement([], []) == agreement.positional_agreement([], []) == 1.0
    assert agreement.prefix_agreement(["a"], []) == 0.0


def test_prefix_and_position() -> None:
    a, b = ["open", "the", "file", "now"], ["open", "a", "file", "now", "please"]
    assert agreement.prefix_agreement(a, b) == 1 / 5
    assert agreement.positional_agreement(a, b) == 3 / 5


def test_first_divergence_counts_a_stop() -> None:
    assert agreement.first_divergence([1, 2], True, [1, 2], True) is None
    assert agreement.first_divergence([1, 2], False, [1, 2], False) is None
    assert agreement.first_divergence([1, 2], True, [1, 2, 3], False) == 2
    assert agreement.first_divergence([1, 9], True, [1, 2], True) == 1
    assert agreement.first_divergence([], True, [5], False) == 0


def test_repeating_needs_a_window_of_eight_three_times() -> None:
    assert agreement.is_repeating([1, 2, 3, 4, 5, 6, 7, 8] * 3)
    assert not agreement.is_repeating([1, 2, 3, 4, 5, 6, 7, 8] * 2 + [9])
    assert agreement.is_repeating([4] * 10)
    assert not agreement.is_repeating([4] * 9)
    assert not agreement.is_repeating([])


def test_actions_compare_names_and_whole_calls() -> None:
    reference = [("run", '{"command":"ls"}')]
    assert agreement.compare_actions([], []) == agreement.ActionAgreement(None, None)
    assert agreement.compare_actions(reference, reference) == agreement.ActionAgreement(True, True)
    assert agreement.compare_actions([("run", '{"command":"pwd"}')], reference) == agreement.ActionAgreement(
        True, False
    )
    assert agreement.compare_actions([("edit", '{"command":"ls"}')], reference) == agreement.ActionAgreement(
        False, False
    )
    assert agreement.compare_actions([], reference) == agreement.ActionAgreement(False, False)
