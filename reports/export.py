"""Export of a results database: seven flat tables, natural keys first, as CSV, JSON or Parquet.

CSV holds lists and nested values as JSON text. JSON holds them as they are. Parquet has a fixed, typed schema: lists of
numbers are lists, other nested values JSON text, so that files of different runs can be read as one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import JSON, Boolean, Float, Integer
from sqlalchemy.types import TypeEngine

from leadline.database import Results
from leadline.database_decode import DecodeTimeRow
from leadline.database_schema import (
    Base,
    BranchPointRow,
    ScannerRow,
    SessionRow,
    StepCostRow,
    StepResultRow,
    TeacherForcedRow,
)

Name = Literal["results", "sessions", "scanners", "branch_points", "teacher_forced", "costs", "decode_times"]
Row = dict[str, Any]

KEY = ("run_id", "session_sha256", "step", "scanner_sha256")
NAMED = ("session", "scanner")
_TABLES: dict[str, type[Base]] = {
    "results": StepResultRow,
    "sessions": SessionRow,
    "scanners": ScannerRow,
    "branch_points": BranchPointRow,
    "teacher_forced": TeacherForcedRow,
    "costs": StepCostRow,
    "decode_times": DecodeTimeRow,
}
_INTERNAL = {"step_result_id", "environment_id"}
_LISTS = {
    "tokens": pa.int64(),
    "recorded_tokens": pa.int64(),
    "margins": pa.float64(),
    "layer_bits": pa.float64(),
    "kl_dense_by_token": pa.float64(),
    "kl_exact_by_token": pa.float64(),
}


def columns(table: Name) -> list[str]:
    """The columns of an exported table, in order: natural key, readable names, figures."""
    own = [column.name for column in _TABLES[table].__table__.columns if column.name not in _INTERNAL]
    if table in ("results", "teacher_forced", "costs"):
        rest = [name for name in own if name not in (*KEY, "id")]
        return [*KEY, *NAMED, *rest]
    return own


def sql(table: Name) -> str:
    """The SELECT behind an exported table; `:run` NULL means every run. Timed decode steps belong to no run."""
    if table == "decode_times":
        return f"SELECT {', '.join(columns(table))} FROM decode_time ORDER BY id"
    if table in ("sessions", "scanners"):
        name = _TABLES[table].__tablename__
        return f"""SELECT {", ".join(columns(table))} FROM {name}
WHERE :run IS NULL OR run_id = :run ORDER BY run_id, position"""
    if table == "branch_points":
        chosen = ", ".join(f"p.{name}" for name in columns(table))
        return f"""SELECT {chosen} FROM branch_point p
JOIN session s ON s.run_id = p.run_id AND s.sha256 = p.session_sha256
WHERE :run IS NULL OR p.run_id = :run ORDER BY p.run_id, s.position, p.step"""
    chosen = ", ".join([*(f"r.{name}" for name in KEY), "s.id AS session", "c.label AS scanner"])
    own = {"results": "r", "teacher_forced": "t", "costs": "t"}[table]
    chosen += "".join(f", {own}.{name}" for name in columns(table)[len(KEY) + len(NAMED) :])
    join = "" if own == "r" else f"\nJOIN {_TABLES[table].__tablename__} t ON t.step_result_id = r.id"
    last = ", t.text" if table == "teacher_forced" else ""
    return f"""SELECT {chosen} FROM step_result r{join}
JOIN session s ON s.run_id = r.run_id AND s.sha256 = r.session_sha256
JOIN scanner c ON c.run_id = r.run_id AND c.sha256 = r.scanner_sha256
WHERE :run IS NULL OR r.run_id = :run ORDER BY r.run_id, s.position, r.step, c.position{last}"""


def rows(results: Results, table: Name, run: int | None = None) -> list[Row]:
    """The rows of a table with their types: booleans as such, lists and nested values parsed."""
    kinds = {name: _kind(table, name) for name in columns(table)}
    found: list[Row] = []
    if not results.has(_TABLES[table].__tablename__):  # an older file
        return found
    query = sql(table)
    for raw in results.query(query, {"run": run} if ":run" in query else None):
        row: Row = {}
        for name, value in raw.items():
            kind = kinds[name]
            if value is not None and kind is not None and isinstance(kind, JSON):
                row[name] = json.loads(value)
            elif value is not None and kind is not None and isinstance(kind, Boolean):
                row[name] = bool(value)
            else:
                row[name] = value
        found.append(row)
    return found


def to_csv(table: Name, found: Sequence[Row]) -> str:
    """CSV with a header, RFC 4180 quoting, JSON text in nested cells; empty cells are nulls."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns(table), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in row.items()} for row in found)
    return out.getvalue()


def to_json(found: Sequence[Row]) -> str:
    """A JSON list of objects."""
    return json.dumps(list(found), indent=1, allow_nan=False) + "\n"


def to_parquet(table: Name, found: Sequence[Row]) -> bytes:
    """A Parquet file with the table's fixed schema."""
    schema = pa.schema([(name, _arrow(table, name)) for name in columns(table)])
    typed = [{name: value if name in _LISTS else _nested(value) for name, value in row.items()} for row in found]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(typed, schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())


def _kind(table: Name, name: str) -> TypeEngine[Any] | None:
    """The type of the stored column behind an exported one; None for the two readable names."""
    for owner in (_TABLES[table], StepResultRow):
        if name in owner.__table__.columns:
            return owner.__table__.columns[name].type
    return None


def _arrow(table: Name, name: str) -> Any:
    kind = _kind(table, name)
    if name in _LISTS and isinstance(kind, JSON):
        return pa.list_(_LISTS[name])
    for stored, arrow in ((Boolean, pa.bool_()), (Integer, pa.int64()), (Float, pa.float64())):
        if kind is not None and isinstance(kind, stored):
            return arrow
    return pa.string()


def _flat(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | list | dict) else value


def _nested(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else value
