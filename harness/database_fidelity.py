"""The tables of fidelity measurements; each points to its `measurement`, whose spec is the protocol."""

from __future__ import annotations

from sqlalchemy import ForeignKey, ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from leadline.database_schema import Base


class FidelityWindowRow(Base):
    """A window of text that was measured."""

    __tablename__ = "fidelity_window"

    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), primary_key=True)
    window: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    sha256: Mapped[str]


class FidelityFigureRow(Base):
    """One scanner at one k in one layer of one window."""

    __tablename__ = "fidelity"
    __table_args__ = (
        ForeignKeyConstraint(
            ["measurement_id", "window"], ["fidelity_window.measurement_id", "fidelity_window.window"]
        ),
    )

    measurement_id: Mapped[int] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    k: Mapped[int] = mapped_column(primary_key=True)
    window: Mapped[int] = mapped_column(primary_key=True)
    layer: Mapped[int] = mapped_column(primary_key=True)
    family: Mapped[str]
    error: Mapped[float]
    recall: Mapped[float]
    bits: Mapped[float]
    rows: Mapped[float]
