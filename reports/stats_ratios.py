"""Ratios of two costs over the same steps: exact for bytes, on the log scale with an interval for times.

Bytes are counted, not sampled, so their ratio has no interval. Times are compared step by step as log ratios, averaged
inside a unit, and the interval is Student's t over units on that scale, so that 2x slower and 2x faster weigh alike.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from leadline.reports.stats import mean_interval


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, scanner over baseline: geometric mean over units with its 95% t interval on the log scale.

    `of_medians` is the ratio of the two medians over steps; the interval is None for one unit or without variance.
    """

    units: int
    steps: int
    geometric_mean: float
    low: float | None
    high: float | None
    of_medians: float


@dataclass(frozen=True)
class Quartiles:
    """The median over steps with the quartiles around it (linear interpolation)."""

    n: int
    low: float
    median: float
    high: float


def log_ratio(times: Sequence[float], baseline: Sequence[float], units: Sequence[Hashable]) -> Ratio | None:
    """The ratio of positive `times` [m] to the baseline's [m] on the same steps, by unit [m]; None for no steps.

    Raises ValueError where a time is not positive: such a step was not timed and does not belong here.
    """
    if not len(times) == len(baseline) == len(units):
        raise ValueError(f"{len(times)} times, {len(baseline)} of the baseline, {len(units)} units: must be paired")
    if not times:
        return None
    if min(*times, *baseline) <= 0:
        raise ValueError(f"times must be positive, found {min(*times, *baseline)}")
    logs: dict[Hashable, list[float]] = {}
    for time, other, unit in zip(times, baseline, units, strict=True):
        logs.setdefault(unit, []).append(math.log(time / other))
    mean = mean_interval([sum(values) / len(values) for values in logs.values()])
    assert mean is not None
    return Ratio(
        units=mean.n,
        steps=len(times),
        geometric_mean=math.exp(mean.mean),
        low=None if mean.low is None else math.exp(mean.low),
        high=None if mean.high is None else math.exp(mean.high),
        of_medians=float(np.median(times) / np.median(baseline)),
    )


def exact_ratio(amounts: Sequence[float], baseline: Sequence[float]) -> float | None:
    """The ratio of two sums of counted amounts over the same steps; None where the baseline's is zero."""
    total = sum(baseline)
    return sum(amounts) / total if total else None


def quartiles(values: Sequence[float]) -> Quartiles | None:
    """Median and quartiles of values [m]; None for none."""
    if not values:
        return None
    low, median, high = (float(q) for q in np.percentile(values, [25, 50, 75]))
    return Quartiles(len(values), low, median, high)
