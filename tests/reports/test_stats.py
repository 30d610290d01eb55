"""The statistics against hand-computed values, scipy, and the published worked figures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import permutation_test, ttest_1samp, ttest_rel

from leadline.reports import stats

A = [0.9, 0.7, 0.8, 0.6, 0.95, 0.5, 0.75]
B = [0.6, 0.7, 0.5, 0.65, 0.7, 0.45, 0.6]


def difference_of(mean: float, se: float, n: int) -> stats.Difference:
    """A paired difference with exactly this mean and standard error."""
    shape = np.linspace(-1, 1, n)
    values = mean + shape / shape.std(ddof=1) * se * math.sqrt(n)
    found = stats.paired(values.tolist(), [0.0] * n)
    assert found is not None
    assert found.se == pytest.approx(se, rel=1e-12)
    return found


def test_the_mean_interval_equals_scipys() -> None:
    found = stats.mean_interval(A)
    expected = ttest_1samp(A, 0).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert found.mean == pytest.approx(sum(A) / 7)


def test_the_mean_of_two_by_hand() -> None:
    found = stats.mean_interval([0.25, 0.75])
    assert found is not None
    # sd = sqrt(0.125), se = sd / sqrt(2) = 0.25, t(0.975, 1) = 12.7062
    assert found.se == pytest.approx(0.25)
    assert found.high == pytest.approx(0.5 + 12.706204736 * 0.25)


def test_the_paired_difference_equals_scipys() -> None:
    found = stats.paired(A, B)
    expected = ttest_rel(A, B)
    assert found is not None
    assert found.difference == pytest.approx(np.mean(A) - np.mean(B))
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-10)
    assert (found.low90, found.high90) == pytest.approx(tuple(expected.confidence_interval(0.90)), rel=1e-10)
    assert (found.wins, found.ties, found.losses) == (5, 1, 1)
    assert found.superiority == pytest.approx(5.5 / 7)
    d = np.subtract(A, B)
    assert found.d_z == pytest.approx(d.mean() / d.std(ddof=1))


def test_lower_can_be_better() -> None:
    found = stats.paired(A, B, higher_is_better=False)
    assert found is not None
    assert (found.wins, found.ties, found.losses) == (1, 1, 5)


def test_the_sign_flip_test_equals_enumeration_and_scipys() -> None:
    d = np.subtract(A, B)
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=7)]
    by_hand = sum(value >= abs(d.sum()) - 1e-12 for value in sums) / 2**7
    found = stats.sign_flip(np.where(abs(d) < 1e-12, 0, d).tolist())
    assert found == stats.SignFlip(by_hand, 2 / 2**6, True)
    scipys = permutation_test((d,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert found.p == pytest.approx(scipys.pvalue)


def test_three_units_cannot_go_below_a_quarter() -> None:
    assert stats.sign_flip([0.1, 0.2, 0.3]) == stats.SignFlip(0.25, 0.25, True)
    assert stats.sign_flip([0.0, 0.0]) == stats.SignFlip(1.0, 1.0, True)
    assert stats.sign_flip([]) == stats.SignFlip(1.0, 1.0, True)


def test_many_units_use_seeded_flips() -> None:
    values = np.random.default_rng(1).normal(0.02, 0.1, 40).tolist()
    first, again, other = (stats.sign_flip(values, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert not first.exact
    assert first.p == pytest.approx(other.p, abs=0.01)
    assert first.p == pytest.approx(ttest_1samp(values, 0).pvalue, abs=0.02)
    assert stats.sign_flip([1.0] * 40).p == pytest.approx(1e-5)


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04 -> x4 x3 x2 x1 = .04 .06 .06 .04, made monotone
    assert stats.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert stats.holm([0.01, 0.6], size=4) == pytest.approx([0.04, 1.0])
    assert stats.holm([]) == []


def test_the_published_agent_figures() -> None:
    """n = 20, +0.18 with SE 0.05; n = 40, 0.00 with SE 0.04 (SPEC section 9)."""
    twenty = difference_of(0.18, 0.05, 20)
    assert twenty.high is not None
    assert twenty.high - 0.18 == pytest.approx(0.105, abs=0.0005)
    assert twenty.mde == pytest.approx(0.148, abs=0.0005)
    assert stats.verdict(twenty, twenty.flip.p, 0.05) == "better"
    assert stats.verdict(twenty, twenty.flip.p, 0.05, higher_is_better=False) == "worse"
    forty = difference_of(0.0, 0.04, 40)
    assert forty.mde == pytest.approx(0.115, abs=0.0005)
    assert stats.verdict(forty, forty.flip.p, 0.067) == "inconclusive"
    assert stats.verdict(forty, forty.flip.p, 0.068) == "equivalent"
    assert forty.sd is not None
    assert stats.units_needed(forty.sd, 0.05) == pytest.approx(203, abs=3)


def test_tost_equals_two_one_sided_t_tests() -> None:
    found = stats.paired(A, B)
    assert found is not None
    d = np.subtract(A, B)
    for margin in (0.05, 0.2, 0.4):
        expected = max(
            ttest_1samp(d, -margin, alternative="greater").pvalue, ttest_1samp(d, margin, alternative="less").pvalue
        )
        assert stats.tost_p(found, margin) == pytest.approx(expected, rel=1e-9)
        inside = found.low90 > -margin and found.high90 < margin  # type: ignore[operator]
        assert (stats.tost_p(found, margin) <= 0.05) == inside  # type: ignore[operator]


def test_one_unit_and_no_variance_have_no_interval() -> None:
    single = stats.paired([0.9], [0.5])
    same = stats.paired([0.75, 0.75, 0.75], [0.5, 0.5, 0.5])
    tied = stats.paired([0.1 + 0.2, 0.5], [0.3, 0.5])
    for found in (single, same, tied):
        assert found is not None
        assert [found.sd, found.se, found.low, found.high, found.low90, found.mde, found.d_z] == [None] * 7
        assert stats.verdict(found, found.flip.p, 0.05) == "inconclusive"
        assert stats.tost_p(found, 0.05) is None
    assert tied is not None
    assert (tied.wins, tied.ties, tied.losses, tied.flip.p) == (0, 2, 0, 1.0)
    assert stats.mean_interval([0.5]) == stats.Mean(1, 0.5, None, None, None)
    assert stats.mean_interval([]) is None
    assert stats.paired([], []) is None
    with pytest.raises(ValueError, match="paired"):
        stats.paired([0.1], [])


def test_a_significant_interval_alone_is_not_enough() -> None:
    """Three units of nearly equal differences: t excludes 0, but no sign-flip test of three units can be below 0.25."""
    found = stats.paired([0.5, 0.51, 0.52], [0.3, 0.3, 0.3])
    assert found is not None
    assert found.low is not None
    assert found.low > 0
    assert stats.verdict(found, found.flip.p, 0.05) == "inconclusive"


def test_the_t_interval_covers_what_it_promises() -> None:
    random = np.random.default_rng(20)
    hits = 0
    for _ in range(1000):
        values = np.where(random.random(20) < 0.5, 0.0, random.normal(0.0, 0.2, 20))
        found = stats.mean_interval(values.tolist())
        assert found is not None
        hits += found.low is not None and found.high is not None and found.low <= 0 <= found.high
    assert 0.93 <= hits / 1000 <= 0.98
