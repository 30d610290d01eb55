"""The checks and ratios against statsmodels, scipy and hand computation."""

from __future__ import annotations

import importlib
import math
import os
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import t, ttest_1samp

from leadline.reports import stats
from leadline.reports.stats_checks import (
    bootstrap,
    clustered,
    disagree_on_zero,
    mcnemar,
)
from leadline.reports.stats_ratios import exact_ratio, log_ratio, quartiles


def statsmodels(name: str) -> Any:
    """A module of statsmodels; where it is not installed the test is skipped, and fails where CI is set."""
    try:
        return importlib.import_module(f"statsmodels.{name}")
    except ModuleNotFoundError:
        if os.environ.get("CI"):
            raise
        pytest.skip("statsmodels is not installed")


CLOSE = {"rel": 1e-10, "abs": 1e-12}


def random_pairs(seed: int, n: int) -> tuple[list[float], list[float]]:
    random = np.random.default_rng(seed)
    values = random.normal(0.6, 0.2, n)
    return values.tolist(), (values - random.normal(0.03, 0.1, n)).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_tost_equals_statsmodels(seed: int) -> None:
    weightstats = statsmodels("stats.weightstats")
    a, b = random_pairs(seed, 12 + seed)
    found = stats.paired(a, b)
    assert found is not None
    for margin in (0.02, 0.05, 0.1, 0.3):
        expected = weightstats.ttost_paired(np.array(a), np.array(b), -margin, margin)[0]
        assert stats.tost_p(found, margin) == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_the_paired_interval_equals_statsmodels(seed: int) -> None:
    weightstats = statsmodels("stats.weightstats")
    a, b = random_pairs(seed, 9 + seed)
    found = stats.paired(a, b)
    expected = weightstats.DescrStatsW(np.subtract(a, b))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(expected.tconfint_mean(0.05), **CLOSE)
    assert (found.low90, found.high90) == pytest.approx(expected.tconfint_mean(0.10), **CLOSE)
    assert found.se == pytest.approx(expected.std_mean, **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_statsmodels(seed: int) -> None:
    multitest = statsmodels("stats.multitest")
    p = np.random.default_rng(seed).random(3 + seed) ** 3
    assert stats.holm(p.tolist()) == pytest.approx(multitest.multipletests(p, method="holm")[1], **CLOSE)


@pytest.mark.parametrize("counts", [(3, 7), (0, 5), (5, 5), (12, 2), (0, 0)])
def test_mcnemar_equals_statsmodels(counts: tuple[int, int]) -> None:
    tables = statsmodels("stats.contingency_tables")
    ours, theirs = counts
    scanner = [True] * ours + [False] * theirs + [True] * 4 + [False] * 2
    baseline = [False] * ours + [True] * theirs + [True] * 4 + [False] * 2
    found = mcnemar(scanner, baseline)
    assert found is not None
    assert (found.both, found.only_scanner, found.only_baseline, found.neither) == (4, ours, theirs, 2)
    expected = tables.mcnemar([[4, ours], [theirs, 2]], exact=True).pvalue if ours + theirs else 1.0
    assert found.p == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_the_cluster_robust_error_equals_statsmodels(seed: int) -> None:
    regression = statsmodels("api")
    random = np.random.default_rng(seed)
    clusters = random.integers(0, 6 + seed, 40)
    values = random.normal(0, 0.1, 40) + random.normal(0, 0.2, 20)[clusters]
    fitted = regression.OLS(values, np.ones(40)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "df_correction": True}, use_t=True
    )
    found = clustered(values.tolist(), clusters.tolist())
    assert found is not None
    assert found.mean == pytest.approx(fitted.params[0], **CLOSE)
    assert found.se == pytest.approx(fitted.bse[0], **CLOSE)
    assert (found.low, found.high) == pytest.approx(fitted.conf_int()[0], **CLOSE)
    assert found.reliable == (len(set(clusters.tolist())) >= 10)


def test_clusters_of_one_give_the_plain_standard_error() -> None:
    a, b = random_pairs(3, 15)
    found, plain = clustered(np.subtract(a, b).tolist(), range(15)), stats.paired(a, b)
    assert found is not None
    assert plain is not None
    assert (found.se, found.low, found.high) == pytest.approx((plain.se, plain.low, plain.high), **CLOSE)


def test_the_bootstrap_equals_scipys() -> None:
    values = np.random.default_rng(5).normal(0.1, 0.3, 23)
    found = bootstrap(values.tolist(), seed=11, resamples=2000)
    expected = scipy_bootstrap(
        (values,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(11), vectorized=True
    ).confidence_interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), **CLOSE)
    assert bootstrap(values.tolist(), seed=11) == bootstrap(values.tolist(), seed=11)
    assert bootstrap(values.tolist(), seed=12) != bootstrap(values.tolist(), seed=11)


def test_the_detectable_effect_has_its_power_by_simulation() -> None:
    """`mde` is the usual approximation (shifted t); the power of the t test at it is 80% within a few points."""
    random = np.random.default_rng(8)
    for n in (10, 20, 40):
        effect = stats.detectable(1 / math.sqrt(n), n)
        draws = random.normal(effect, 1, (5000, n))
        power = (ttest_1samp(draws, 0, axis=1).pvalue <= 0.05).mean()
        assert power == pytest.approx(0.80, abs=0.04)


def test_a_ratio_of_times_by_hand() -> None:
    # unit a: ratios 2 and 8, geometric mean 4; unit b: 1; over units exp((ln 4 + 0) / 2) = 2
    found = log_ratio([2.0, 8.0, 3.0], [1.0, 1.0, 3.0], ["a", "a", "b"])
    assert found is not None
    assert (found.units, found.steps) == (2, 3)
    assert found.geometric_mean == pytest.approx(2.0)
    half = t.ppf(0.975, 1) * math.log(4) / 2
    assert found.low == pytest.approx(math.exp(math.log(2) - half))
    assert found.high == pytest.approx(math.exp(math.log(2) + half))
    assert found.of_medians == pytest.approx(3.0)
    swapped = log_ratio([1.0, 1.0, 3.0], [2.0, 8.0, 3.0], ["a", "a", "b"])
    assert swapped is not None
    assert swapped.high is not None
    assert swapped.high == pytest.approx(1 / found.low)


def test_a_ratio_needs_pairs_and_positive_times() -> None:
    assert log_ratio([], [], []) is None
    single = log_ratio([4.0], [2.0], ["a"])
    assert single is not None
    assert (single.geometric_mean, single.low, single.high) == (pytest.approx(2.0), None, None)
    with pytest.raises(ValueError, match="positive"):
        log_ratio([0.0], [1.0], ["a"])
    with pytest.raises(ValueError, match="paired"):
        log_ratio([1.0], [1.0, 2.0], ["a"])
    assert exact_ratio([3, 3], [2, 1]) == 2.0
    assert exact_ratio([1], [0]) is None


def test_quartiles_equal_numpys() -> None:
    found = quartiles([4.0, 1.0, 3.0, 2.0])
    assert found is not None
    assert (found.n, found.low, found.median, found.high) == (4, 1.75, 2.5, 3.25)
    assert quartiles([]) is None


def test_checks_that_have_nothing_to_say_say_nothing() -> None:
    assert bootstrap([0.5]) is None
    assert bootstrap([0.5, 0.5]) is None
    assert clustered([0.1, 0.2], ["a", "a"]) is None
    assert clustered([0.1, 0.1], ["a", "b"]) is None
    assert mcnemar([], []) is None
    with pytest.raises(ValueError, match="cluster"):
        clustered([0.1], [])
    with pytest.raises(ValueError, match="paired"):
        mcnemar([True], [])


def test_a_check_that_differs_on_zero_is_noticed() -> None:
    values = [0.0] * 14 + [0.1, 0.2, 0.1, 0.3, 0.1, 0.2]
    found = stats.paired(values, [0.0] * 20)
    assert found is not None
    assert not disagree_on_zero(found, bootstrap(values))
    skewed = [0.4, 0.5, 0.6, 0.02, 0.01]
    wide, check = stats.paired(skewed, [0.0] * 5), bootstrap(skewed)
    assert wide is not None
    assert wide.low is not None
    assert wide.low < 0
    assert check is not None
    assert check.low > 0
    assert disagree_on_zero(wide, check)
    assert not disagree_on_zero(wide, None)
