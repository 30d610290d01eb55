"""Checks beside the headline interval: other ways to look at the same paired differences, which should agree with it.

None of them decides a verdict. The bootstrap resamples units; the cluster-robust standard error weighs every step alike
instead of every unit; McNemar's test reads a yes/no outcome.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from leadline.reports.stats import ALPHA, TIE, Difference

RESAMPLES = 9_999
FEW_CLUSTERS = 10


@dataclass(frozen=True)
class Bootstrap:
    """A percentile bootstrap interval of a mean over units, with how it was drawn."""

    low: float
    high: float
    resamples: int
    seed: int


@dataclass(frozen=True)
class Clustered:
    """The mean over all steps with its cluster-robust standard error and 95% t interval on clusters - 1 df.

    `reliable` is False below 10 clusters, where such standard errors are known to come out too small.
    """

    observations: int
    clusters: int
    mean: float
    se: float
    low: float
    high: float
    reliable: bool


@dataclass(frozen=True)
class McNemar:
    """A yes/no outcome in pairs: the four counts, and the exact two-sided p over the pairs that differ."""

    both: int
    only_scanner: int
    only_baseline: int
    neither: int
    p: float


def bootstrap(differences: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Bootstrap | None:
    """The 95% percentile interval of the mean of unit differences [n]; None for fewer than two or without variance."""
    values = np.asarray(differences, dtype=np.float64)
    if values.size < 2 or float(np.ptp(values)) <= TIE:
        return None
    chosen = np.random.default_rng(seed).integers(0, values.size, (resamples, values.size))
    low, high = np.percentile(values[chosen].mean(axis=1), [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    return Bootstrap(float(low), float(high), resamples, seed)


def clustered(differences: Sequence[float], clusters: Sequence[Hashable]) -> Clustered | None:
    """The mean of step differences [m] with a standard error robust to dependence inside `clusters` [m].

    The sandwich estimate for a mean with the finite-cluster correction G / (G - 1); None below two clusters or where
    it would be zero.
    """
    if len(differences) != len(clusters):
        raise ValueError(f"{len(differences)} differences with {len(clusters)} clusters: one cluster per difference")
    values = np.asarray(differences, dtype=np.float64)
    count = len(set(clusters))
    if count < 2:
        return None
    mean = float(values.mean())
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(values.tolist(), clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    se = math.sqrt(count / (count - 1) * sum(total**2 for total in sums.values())) / values.size
    if se <= TIE:
        return None
    reach = float(special.stdtrit(count - 1, 1 - ALPHA / 2)) * se
    return Clustered(values.size, count, mean, se, mean - reach, mean + reach, count >= FEW_CLUSTERS)


def mcnemar(scanner: Sequence[bool], baseline: Sequence[bool]) -> McNemar | None:
    """McNemar's exact test of two yes/no outcomes on the same steps [m]; None for none.

    It takes steps as independent: with several steps a unit its p is a hint, and the sign-flip p over units decides.
    """
    if len(scanner) != len(baseline):
        raise ValueError(f"{len(scanner)} outcomes against {len(baseline)} of the baseline: steps must be paired")
    if not scanner:
        return None
    pairs = list(zip(map(bool, scanner), map(bool, baseline), strict=True))
    ours, theirs = pairs.count((True, False)), pairs.count((False, True))
    p = min(1.0, 2 * float(special.bdtr(min(ours, theirs), ours + theirs, 0.5))) if ours + theirs else 1.0
    return McNemar(pairs.count((True, True)), ours, theirs, pairs.count((False, False)), p)


def disagree_on_zero(difference: Difference, check: Bootstrap | Clustered | None) -> bool:
    """Whether the headline interval and a check differ on excluding zero."""
    if difference.low is None or difference.high is None or check is None:
        return False
    return (difference.low > 0 or difference.high < 0) != (check.low > 0 or check.high < 0)
