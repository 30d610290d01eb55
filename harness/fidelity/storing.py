"""Fidelity measurements in a results database: a window at a time on the way in, a whole measurement on the way out."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, text

from leadline.database import Results
from leadline.database_checks import record_of, refuse_not_finite
from leadline.database_fidelity import FidelityFigureRow, FidelityWindowRow
from leadline.database_schema import MeasurementRow
from leadline.fidelity.records import FidelityResult, FidelitySpec, FigureRecord, WindowRecord

KIND = "fidelity"


def save_window(results: Results, measurement: int, window: WindowRecord, figures: Sequence[FigureRecord]) -> None:
    """Store a window with all its figures in one transaction."""
    for figure in figures:
        refuse_not_finite(figure.model_dump(), f"{figure.label}, k = {figure.k}, layer {figure.layer}")
    with results.transaction() as db:
        db.add(FidelityWindowRow(measurement_id=measurement, **window.model_dump()))
        db.flush()
        db.add_all(FidelityFigureRow(measurement_id=measurement, **figure.model_dump()) for figure in figures)


def measurements(results: Results) -> list[int]:
    """The fidelity measurements that hold at least one window, oldest first."""
    if not results.has("fidelity_window"):
        return []
    query = select(FidelityWindowRow.measurement_id).distinct().order_by(FidelityWindowRow.measurement_id)
    with results.transaction() as db:
        return list(db.scalars(query))


def load_measurement(results: Results, measurement: int) -> FidelityResult:
    """What was stored of a measurement: all of it, or the windows that were done when it stopped."""
    with results.transaction() as db:
        spec = FidelitySpec.model_validate(db.get_one(MeasurementRow, measurement).spec)
        windows = select(FidelityWindowRow).where(FidelityWindowRow.measurement_id == measurement)
        figures = select(FidelityFigureRow).where(FidelityFigureRow.measurement_id == measurement)
        return FidelityResult(
            spec=spec,
            windows=tuple(
                record_of(WindowRecord, row) for row in db.scalars(windows.order_by(FidelityWindowRow.window))
            ),
            figures=tuple(record_of(FigureRecord, row) for row in db.scalars(figures.order_by(text("rowid")))),
        )
