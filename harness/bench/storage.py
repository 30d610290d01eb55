"""Timed decode steps into a results database and back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from leadline.bench.records import DecodeTime, Moved
from leadline.database import Results
from leadline.database_checks import record_of, refuse_not_finite
from leadline.database_decode import DecodeTimeRow
from leadline.errors import LeadlineError, explain
from leadline.meter_figures import StepTime

KIND = "decode"  # of the measurements these figures belong to


def save(results: Results, measurement: int, times: Sequence[DecodeTime]) -> None:
    """Store the figures of a measurement, all of them in one transaction.

    Raises LeadlineError where one is not finite, or stored already, or the measurement was not started.
    """
    for time in times:
        refuse_not_finite(time.model_dump(), f"{time.label} at {time.context} tokens")
    try:
        with results.transaction() as db:
            for time in times:
                values = time.model_dump(mode="json")
                parts = values.pop("moved") | values.pop("time")
                db.add(DecodeTimeRow(measurement_id=measurement, **values, **parts))
    except IntegrityError as error:
        unknown = "FOREIGN KEY" in str(error.orig)
        raise LeadlineError(
            explain(
                f"there is no such measurement: {measurement}" if unknown else "a figure is stored already",
                file=results.path,
                found=error.orig,
                expected="one figure per measurement, scanner and setting",
            )
        ) from None


def load(results: Results) -> list[tuple[int, DecodeTime]]:
    """Every stored figure with the measurement it belongs to, in the order they were stored; none in an older file."""
    if not results.has(DecodeTimeRow.__tablename__):
        return []
    with results.transaction() as db:
        return [
            (
                row.measurement_id,
                record_of(DecodeTime, row, moved=record_of(Moved, row), time=record_of(StepTime, row)),
            )
            for row in db.scalars(select(DecodeTimeRow).order_by(DecodeTimeRow.id))
        ]
