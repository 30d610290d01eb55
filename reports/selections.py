"""How a run's branches were decoded: what its kernels selected against the references, and which scanners had none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.database import Results
from leadline.records import ModelRecord
from leadline.reports.query import Query
from leadline.reports.rows import ScannerLine

SELECTIONS = Query(
    "selections by kernels against the references",
    """SELECT scanner_sha256 AS scanner, count(*) AS comparisons, sum(selected) AS selected, sum(flipped) AS flipped,
  sum(unexplained) AS unexplained, tolerance
FROM selection_check WHERE run_id = :run
GROUP BY scanner_sha256, tolerance HAVING sum(selected) > 0 ORDER BY min(id)""",
)


@dataclass(frozen=True)
class SelectionFigures:
    """One scanner's comparisons, summed: decode steps taken by kernels and by the references from the same stores.

    selected: tokens that the references select, over layers and query heads. flipped: those that the kernels did not.
    unexplained: tokens that only one of the two selected although their score lies further from the k-th than
    `tolerance` times the query head's largest |score|; rounding explains all others.
    """

    scanner: str
    comparisons: int
    selected: int
    flipped: int
    unexplained: int
    tolerance: float

    @property
    def flip_rate(self) -> float:
        """The share of the references' tokens that the kernels did not select."""
        return self.flipped / self.selected if self.selected else 0.0


@dataclass(frozen=True)
class Eager:
    """A scanner (hash) that a GPU decoded through the references, and why."""

    scanner: str
    reason: str


def selections(results: Results, run: int) -> list[SelectionFigures]:
    """The comparisons of a run by scanner, in the order they were stored; none in a file without the table, nor of a
    scanner that selects nothing (dense).
    """
    if not results.has("selection_check"):
        return []
    return [SelectionFigures(**row) for row in results.query(SELECTIONS.sql, {"run": run})]


def eager(lines: Sequence[ScannerLine], model: ModelRecord) -> list[Eager]:
    """The scanners of a run on a GPU that were decoded without kernels; none where the model computed on a CPU."""
    if not model.device.startswith("cuda"):
        return []
    reason = "there are no kernels for this scanner"
    if not any(line.fused for line in lines):
        reason = f"the run had no kernels for a decode step of its model ({model.architecture})"
    return [Eager(line.sha256, reason) for line in lines if not line.fused]
