"""The table that says how often the kernels selected another token than the references (see graph/comparison.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ForeignKey, UniqueConstraint, select
from sqlalchemy.orm import Mapped, mapped_column

from leadline.database_schema import Base
from leadline.graph.comparison import TOLERANCE, Flips

if TYPE_CHECKING:
    from leadline.database import Results


class SelectionCheckRow(Base):
    """One comparison: the first decode step of a scanner at a session's first branch point, all scanned layers."""

    __tablename__ = "selection_check"
    __table_args__ = (UniqueConstraint("run_id", "session_sha256", "step", "scanner_sha256"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), index=True)
    session_sha256: Mapped[str]
    step: Mapped[int]
    scanner_sha256: Mapped[str]
    selected: Mapped[int]
    flipped: Mapped[int]
    unexplained: Mapped[int]
    tolerance: Mapped[float]


def save_check(results: Results, run: int, session_sha256: str, step: int, scanner_sha256: str, flips: Flips) -> None:
    """Store a comparison; one that is stored already is left as it is."""
    key = {"run_id": run, "session_sha256": session_sha256, "step": step, "scanner_sha256": scanner_sha256}
    with results.transaction() as db:
        if db.scalar(select(SelectionCheckRow.id).filter_by(**key)) is None:
            found = vars(flips)
            db.add(SelectionCheckRow(**key, **found, tolerance=TOLERANCE))
