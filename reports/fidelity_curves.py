"""Error against bits as a monotone curve, and the bits at which it reaches an error: never past what was measured.

Measured errors of growing budgets need not fall at every step. The curve is the isotonic (pool-adjacent-violators)
regression of log error on log bits, never rising, joined by straight lines in those logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from scipy.optimize import isotonic_regression

Where = Literal["reached", "below", "not reached"]


@dataclass(frozen=True)
class Reach:
    """Where a curve meets an error. `bits` is the crossing, or the end of the grid that it lies beyond.

    "below": the smallest budget measured is at least as good; "not reached": the largest is not good enough.
    """

    where: Where
    bits: float


@dataclass(frozen=True)
class Curve:
    """Logarithms of bits, ascending, and of the monotone errors there."""

    log_bits: tuple[float, ...]
    log_errors: tuple[float, ...]

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Self:
        """The curve of measured (bits, error) points, all positive; equal bits are averaged in log error."""
        grouped: dict[float, list[float]] = {}
        for bits, error in points:
            grouped.setdefault(math.log(bits), []).append(math.log(error))
        if not grouped:
            raise ValueError("a curve needs at least one point")
        log_bits = sorted(grouped)
        means = [sum(grouped[x]) / len(grouped[x]) for x in log_bits]
        weights = [len(grouped[x]) for x in log_bits]
        fitted = isotonic_regression(np.array(means), weights=np.array(weights), increasing=False).x
        return cls(tuple(log_bits), tuple(fitted.tolist()))

    def bits_at(self, error: float) -> Reach:
        """The fewest bits at which the curve's error is at most `error`, interpolated, not extrapolated."""
        wanted = math.log(error)
        if self.log_errors[0] <= wanted:
            at_end = self.log_errors[0] == wanted
            return Reach("reached" if at_end else "below", math.exp(self.log_bits[0]))
        for i in range(1, len(self.log_bits)):
            left, right = self.log_errors[i - 1], self.log_errors[i]
            if right <= wanted:
                share = (left - wanted) / (left - right)
                return Reach(
                    "reached", math.exp(self.log_bits[i - 1] + share * (self.log_bits[i] - self.log_bits[i - 1]))
                )
        return Reach("not reached", math.exp(self.log_bits[-1]))
