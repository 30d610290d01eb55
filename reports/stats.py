"""Statistics of paired differences: pure functions on unit values, computed by rule and never NaN.

A *unit* is a source cluster: one session, or the sessions that share a source; its value is the mean over its steps
(SPEC section 5). The headline interval is Student's t over units, because at 20 to 40 units it covers what it promises
and bootstrap intervals do not. What cannot be computed (an interval from one unit, or without variance) is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

Verdict = Literal["better", "worse", "equivalent", "inconclusive"]
ALPHA = 0.05
POWER = 0.8
TIE = 1e-12  # differences of means nearer to zero than this are rounding, and count as ties
EXACT_UNITS = 16
FLIPS = 99_999


@dataclass(frozen=True)
class Mean:
    """A mean over `n` units with its standard error and 95% t interval; None where n = 1 or all values are equal."""

    n: int
    mean: float
    se: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SignFlip:
    """A two-sided sign-flip permutation test: `p`, the smallest p it could reach, and whether all flips were tried."""

    p: float
    floor: float
    exact: bool


@dataclass(frozen=True)
class Difference:
    """A paired difference (scanner minus baseline) over units, before any adjustment for a family.

    `low`, `high`: 95% t interval on `df` degrees of freedom. `low90`, `high90`: the interval that TOST reads.
    `wins` counts units where the scanner is better. `superiority` is (wins + ties / 2) / n. `mde` is the smallest true
    difference that a two-sided test at 0.05 finds with 80% power at this n and spread.
    """

    n: int
    mean: float
    baseline_mean: float
    difference: float
    sd: float | None
    se: float | None
    df: int
    low: float | None
    high: float | None
    low90: float | None
    high90: float | None
    wins: int
    ties: int
    losses: int
    d_z: float | None
    superiority: float
    mde: float | None
    flip: SignFlip


def mean_interval(values: Sequence[float]) -> Mean | None:
    """The mean of unit values [n] with its 95% t interval on n - 1 degrees of freedom; None for no values."""
    n = len(values)
    if n == 0:
        return None
    mean, sd = _spread(values)
    if sd is None:
        return Mean(n, mean, None, None, None)
    se = sd / math.sqrt(n)
    reach = _t(1 - ALPHA / 2, n - 1) * se
    return Mean(n, mean, se, mean - reach, mean + reach)


def paired(
    values: Sequence[float], baseline: Sequence[float], *, higher_is_better: bool = True, seed: int = 0
) -> Difference | None:
    """The paired difference of unit values [n] against the baseline's [n], unit by unit; None for no units."""
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} values against {len(baseline)} of the baseline: units must be paired")
    n = len(values)
    if n == 0:
        return None
    raw = np.asarray(values, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    differences = np.where(np.abs(raw) <= TIE, 0.0, raw)
    mean, sd = _spread(differences.tolist())
    se = None if sd is None else sd / math.sqrt(n)
    reach = None if se is None else _t(1 - ALPHA / 2, n - 1) * se
    reach90 = None if se is None else _t(1 - ALPHA, n - 1) * se
    better = differences if higher_is_better else -differences
    wins, losses = int((better > 0).sum()), int((better < 0).sum())
    ties = n - wins - losses
    return Difference(
        n=n,
        mean=float(np.mean(values)),
        baseline_mean=float(np.mean(baseline)),
        difference=mean,
        sd=sd,
        se=se,
        df=n - 1,
        low=None if reach is None else mean - reach,
        high=None if reach is None else mean + reach,
        low90=None if reach90 is None else mean - reach90,
        high90=None if reach90 is None else mean + reach90,
        wins=wins,
        ties=ties,
        losses=losses,
        d_z=None if sd is None else mean / sd,
        superiority=(wins + ties / 2) / n,
        mde=None if se is None else detectable(se, n),
        flip=sign_flip(differences.tolist(), seed=seed),
    )


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> SignFlip:
    """Two-sided sign-flip permutation test of a zero mean of paired differences [n].

    All 2^m flips of the m non-zero differences where m <= 16; else 99,999 seeded ones, p = (1 + hits) / (1 + flips).
    """
    values = np.asarray([d for d in differences if d != 0.0], dtype=np.float64)
    m = values.size
    if m == 0:
        return SignFlip(1.0, 1.0, True)
    observed = abs(values.sum())
    # A flip that gives the same sum in another order of addition must count as the same.
    threshold = observed - 1e-9 * np.abs(values).sum()
    if m <= EXACT_UNITS:
        signs = 1.0 - 2.0 * ((np.arange(2**m)[:, None] >> np.arange(m)) & 1)
        hits = int((np.abs(signs @ values) >= threshold).sum())
        return SignFlip(hits / 2**m, 2 / 2**m, True)
    random = np.random.default_rng(seed)
    hits = 0
    for start in range(0, FLIPS, 10_000):
        rows = min(10_000, FLIPS - start)
        signs = random.integers(0, 2, size=(rows, m), dtype=np.int8) * 2.0 - 1.0
        hits += int((np.abs(signs @ values) >= threshold).sum())
    return SignFlip((1 + hits) / (1 + FLIPS), 1 / (1 + FLIPS), False)


def holm(p: Sequence[float], size: int | None = None) -> list[float]:
    """Holm's step-down adjusted p values, in the order given; `size` counts declared tests that were not made too."""
    m = max(size or 0, len(p))
    adjusted = [0.0] * len(p)
    worst = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (m - rank) * p[index]))
        adjusted[index] = worst
    return adjusted


def tost_p(difference: Difference, margin: float) -> float | None:
    """p of two one-sided t tests that the mean difference lies inside (-margin, margin); None without variance."""
    if difference.se is None:
        return None
    lower = (difference.difference + margin) / difference.se
    upper = (difference.difference - margin) / difference.se
    return float(max(special.stdtr(difference.df, -lower), special.stdtr(difference.df, upper)))


def detectable(se: float, n: int) -> float:
    """The smallest true mean difference that a two-sided t test at 0.05 finds with 80% power at this standard error."""
    return (_t(1 - ALPHA / 2, n - 1) + _t(POWER, n - 1)) * se


def units_needed(sd: float, difference: float) -> int:
    """The units at which `difference` becomes detectable with 80% power, given the spread of paired differences."""
    low, high = 2, 2
    while detectable(sd / math.sqrt(high), high) > difference:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if detectable(sd / math.sqrt(middle), middle) > difference:
            low = middle + 1
        else:
            high = middle
    return high


def verdict(difference: Difference, p: float, margin: float | None, *, higher_is_better: bool = True) -> Verdict:
    """The verdict by rule.

    better or worse: the 95% t interval excludes 0 and `p` (Holm-adjusted in a declared family) is at most 0.05;
    else equivalent: TOST at `margin` has p at most 0.05 (the 90% interval lies inside the margin); else inconclusive.
    """
    if difference.low is None or difference.high is None:
        return "inconclusive"
    if p <= ALPHA and (difference.low > 0 or difference.high < 0):
        return "better" if (difference.low > 0) == higher_is_better else "worse"
    inside = tost_p(difference, margin) if margin is not None else None
    return "equivalent" if inside is not None and inside <= ALPHA else "inconclusive"


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation (ddof = 1); the latter None for one value, or where all are equal up to rounding."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if array.size < 2 or float(np.ptp(array)) <= TIE:
        return mean, None
    return mean, float(array.std(ddof=1))


def _t(quantile: float, df: int) -> float:
    """Student's t quantile."""
    return float(special.stdtrit(df, quantile))
