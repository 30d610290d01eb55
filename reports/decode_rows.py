"""Timed decode steps as a report reads them: every figure of a database with the machine it was taken on."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.bench import storage
from leadline.bench.printing import named_machine
from leadline.bench.records import DecodeTime
from leadline.database import Results
from leadline.records import Environment
from leadline.reports.query import Query
from leadline.reports.rows import InvocationRow

DECODE = Query(
    "timed decode steps",
    """SELECT t.*, m.gpu, m.pcie_generation, m.pcie_width
FROM decode_time t
JOIN measurement m ON m.id = t.measurement_id
ORDER BY t.id""",
)
MEASUREMENTS = Query("measurements", "SELECT * FROM measurement ORDER BY id")


@dataclass(frozen=True)
class Timed:
    """One timed step; `measurement` numbers the invocation that took it, `machine` names its GPU and link."""

    measurement: int
    machine: str
    time: DecodeTime


def timed(results: Results) -> tuple[Timed, ...]:
    """Every timed step of a database, in the order they were stored; none in a file without the table."""
    found = storage.load(results)
    if not found:
        return ()
    machines = {row.id: named_machine(_environment(row)) for row in measurements(results)}
    return tuple(Timed(number, machines[number], time) for number, time in found)


def measurements(results: Results) -> list[InvocationRow]:
    """The invocations that measured without replaying, with their machines, oldest first."""
    if not results.has("measurement"):
        return []
    found = results.query(MEASUREMENTS.sql)
    shown = ({name: value for name, value in row.items() if name not in ("kind", "spec")} for row in found)
    return [InvocationRow(row["id"], row["command"], row["started"], row["ended"], row) for row in shown]


def _environment(row: InvocationRow) -> Environment:
    known = {name: row.environment[name] for name in Environment.model_fields if name != "packages"}
    return Environment(**known, packages={})
