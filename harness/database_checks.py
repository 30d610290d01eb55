"""What the database checks of a record: that its figures are finite, and that it agrees with the one already stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from leadline.database_schema import Base, storable
from leadline.errors import LeadlineError, UsageError, explain

R = TypeVar("R", bound=BaseModel)


def record_of(record: type[R], row: Base, **more: Any) -> R:
    """The record that `row` stores; `more` gives fields that lie in other tables."""
    values = {field: getattr(row, field) for field in record.model_fields if field not in more}
    return record.model_validate({**values, **more})


def agree(path: Path, what: str, new: R, row: Base, record: type[R], lenient: Set[str] = frozenset()) -> None:
    """Raise UsageError where a field of `new`, `lenient` ones aside, is not what `row` stores."""
    stored = record_of(record, row)
    for field in record.model_fields:
        found, expected = _stored_form(getattr(new, field)), _stored_form(getattr(stored, field))
        if field not in lenient and found != expected:
            raise UsageError(
                explain(
                    f"{what} is not what this run has stored",
                    file=path,
                    field=field,
                    found=_short(found),
                    expected=_short(expected),
                    do="replay into a new database, or with what the run began with",
                )
            )


def _stored_form(value: Any) -> Any:
    """`value` after the way to the database and back, for comparison: JSON types, storable text."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping | Sequence):
        return json.loads(json.dumps(value))
    return value


def refuse_not_finite(values: Any, where: str, field: str = "") -> None:
    """Refuse NaN and infinity, which neither SQLite nor JSON can hold."""
    if isinstance(values, float) and not math.isfinite(values):
        raise LeadlineError(
            explain(f"a figure of {where} is not finite", field=field, found=values, expected="a number")
        )
    if isinstance(values, Mapping):
        for key, value in values.items():
            refuse_not_finite(value, where, f"{field}.{key}".lstrip("."))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for index, value in enumerate(values):
            refuse_not_finite(value, where, f"{field}[{index}]")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
