"""Seeded simulations of what the headline statistics promise: coverage of the interval, and how often a true null is
rejected when steps of one session resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator

from leadline.reports import stats
from leadline.reports.stats_checks import clustered

REPETITIONS = 5000
UNITS = 20
Draw = Callable[[Generator, int], np.ndarray]


def half_ties(random: Generator, n: int) -> np.ndarray:
    """Differences of agreements as replays give them: half exact ties, the rest bounded; true mean 0."""
    return np.where(random.random(n) < 0.5, 0.0, random.uniform(-1, 1, n))


def heavy(random: Generator, n: int) -> np.ndarray:
    """Mostly ties and small differences with now and then a large one; true mean 0."""
    return np.where(random.random(n) < 0.5, 0.0, random.uniform(-1, 1, n) * random.random(n))


def normal(random: Generator, n: int) -> np.ndarray:
    return random.normal(0.0, 0.25, n)


def skewed(random: Generator, n: int) -> np.ndarray:
    """The difference of two skewed agreements in 0..1 that share their session; true mean 0."""
    shared = random.beta(5, 2, n)
    return np.clip(shared * random.beta(8, 2, n), 0, 1) - np.clip(shared * random.beta(8, 2, n), 0, 1)


def coverage(draw: Draw) -> float:
    random = np.random.default_rng(2026)
    hits = 0
    for _ in range(REPETITIONS):
        found = stats.mean_interval(draw(random, UNITS).tolist())
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    return hits / REPETITIONS


@pytest.mark.parametrize("draw", [half_ties, normal, skewed], ids=lambda draw: draw.__name__)
def test_the_95_percent_interval_at_20_units_covers_94_to_96_percent(draw: Draw) -> None:
    assert 0.94 <= coverage(draw) <= 0.96


def test_heavy_tails_make_the_interval_careful_and_never_bold() -> None:
    assert 0.94 <= coverage(heavy) <= 0.98


def rejections(steps: int) -> tuple[float, float, float]:
    """How often a true null is rejected at 0.05 with `steps` steps a session, their correlation 0.5:
    by unit means, by cluster-robust errors, and by wrongly taking every step as a unit.
    """
    random = np.random.default_rng(7)
    clusters = np.repeat(np.arange(UNITS), steps).tolist()
    by_unit = robust = naive = 0
    for _ in range(REPETITIONS):
        session = random.normal(0, 0.5**0.5, (UNITS, 1))
        values = session + random.normal(0, 0.5**0.5, (UNITS, steps))
        units, every = stats.mean_interval(values.mean(axis=1).tolist()), stats.mean_interval(values.ravel().tolist())
        check = clustered(values.ravel().tolist(), clusters)
        assert units is not None
        assert every is not None
        assert check is not None
        by_unit += not units.low <= 0 <= units.high  # type: ignore[operator]
        naive += not every.low <= 0 <= every.high  # type: ignore[operator]
        robust += not check.low <= 0 <= check.high
    return by_unit / REPETITIONS, robust / REPETITIONS, naive / REPETITIONS


def test_type_one_error_with_five_steps_a_session_stays_below_8_percent() -> None:
    by_unit, robust, naive = rejections(steps=5)
    assert by_unit <= 0.08
    assert robust <= 0.08
    assert naive >= 0.20, "steps taken as units must fail here, or the simulation proves nothing"


def test_the_sign_flip_test_rejects_a_true_null_as_often_as_it_says() -> None:
    random = np.random.default_rng(12)
    hits = sum(stats.sign_flip(half_ties(random, 12).tolist()).p <= 0.05 for _ in range(REPETITIONS))
    assert hits / REPETITIONS <= 0.055


def test_a_verdict_is_seldom_better_or_worse_when_nothing_is_true() -> None:
    """The rule asks for the interval and the permutation test: it can only be more careful than either alone."""
    random = np.random.default_rng(13)
    called = 0
    for _ in range(2000):
        found = stats.paired(normal(random, 10).tolist(), [0.0] * 10)
        assert found is not None
        called += stats.verdict(found, found.flip.p, 0.05) in ("better", "worse")
    assert called / 2000 <= 0.065
