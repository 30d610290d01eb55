"""Which steps are replayed."""

from __future__ import annotations

import pytest

from leadline.workload import chosen_indices


@pytest.mark.parametrize(
    ("eligible", "steps", "expected"),
    [
        (10, 2, (4, 9)),
        (7, 3, (2, 4, 6)),
        (3, 3, (0, 1, 2)),
        (2, 5, (0, 1)),
        (0, 2, ()),
        (5, 1, (4,)),
        (9, 4, (2, 4, 6, 8)),
    ],
)
def test_indices_are_spread_and_end_at_the_last(eligible: int, steps: int, expected: tuple[int, ...]) -> None:
    assert chosen_indices(eligible, steps) == expected


def test_indices_follow_the_formula() -> None:
    for m in range(1, 60):
        for n in range(1, m + 1):
            assert list(chosen_indices(m, n)) == [-(-(i + 1) * m // n) - 1 for i in range(n)]
            assert len(set(chosen_indices(m, n))) == n
