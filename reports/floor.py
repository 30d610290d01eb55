"""Every scanner beside the noise floor: exact top-k after a prefill in other chunks, which differs by rounding alone.

No scanner can be seen to agree with the reference more than the reference does with itself, so the floor is what a
scanner's agreement is to be held against. Differences between scanners are another question: rounding blurs both sides
of a pair alike, and their interval already holds what it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leadline.database import Results
from leadline.reports import query, stats
from leadline.reports.query import METRICS
from leadline.reports.rows import ScannerLine

Reading = Literal["below", "not told apart", "above"]


@dataclass(frozen=True)
class AgainstFloor:
    """A scanner's agreement with exact top-k minus the noise floor's, over the steps that both have."""

    scanner: str
    steps: int
    difference: stats.Difference

    @property
    def reading(self) -> Reading:
        """Below or above where the 95% interval excludes zero; a single unit has none and tells nothing."""
        low, high = self.difference.low, self.difference.high
        if self.difference.n > 1 and low is None:  # every unit differs by the same
            low = high = self.difference.difference
        if high is not None and high < 0:
            return "below"
        return "above" if low is not None and low > 0 else "not told apart"


def against_floor(results: Results, run: int, scanners: Sequence[ScannerLine]) -> dict[str, AgainstFloor] | None:
    """By shown label, every scanner and dense, of those with steps in common; None where no noise floor was run."""
    floor = next((line for line in scanners if line.role == "noise-floor"), None)
    if floor is None:
        return None
    units = query.paired_units(results, run, METRICS[0], floor.sha256)
    found = {}
    for line in scanners:
        own = [unit for unit in units if unit.scanner == line.sha256]
        difference = stats.paired([unit.value for unit in own], [unit.baseline for unit in own])
        if line.role in ("scanner", "dense") and difference is not None:
            found[line.shown] = AgainstFloor(line.shown, sum(unit.steps for unit in own), difference)
    return found


def beyond_floor(scanner: str, baseline: str, floor: Mapping[str, AgainstFloor] | None) -> bool | None:
    """Whether at least one of a pair can be told from the noise floor; None where there is none, or of neither."""
    if floor is None or not {scanner, baseline} & set(floor):
        return None
    return any(label in floor and floor[label].reading != "not told apart" for label in (scanner, baseline))
