"""Tables that other commands may leave in a results database: shown as they are stored when they are there.

A command that measures without replaying (calibration, fidelity) owns the shape of what it stores. The report knows the
names alone and prints columns and rows as found, so that neither has to wait for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leadline.database import Results
from leadline.reports.query import Query

NAMES = {"calibration": "Calibration", "fidelity": "Fidelity"}
MOST_ROWS = 400


@dataclass(frozen=True)
class StoredTable:
    """One such table: columns and the first 400 of its `total` rows, of this run where it has a `run_id`."""

    name: str
    title: str
    query: Query
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


def stored_tables(results: Results, run: int) -> list[StoredTable]:
    """The tables called `calibration` or `fidelity`, or beginning so (`fidelity_by_layer`), that have rows."""
    names = results.query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
    found = []
    for name in (row["name"] for row in names):
        title = next((title for stem, title in NAMES.items() if name == stem or name.startswith(f"{stem}_")), None)
        if title is None:
            continue
        quoted = '"' + name.replace('"', '""') + '"'
        columns = [row["name"] for row in results.query("SELECT name FROM pragma_table_info(:name)", {"name": name})]
        if "measurement_id" in columns:  # ours: it has sections of its own
            continue
        where = " WHERE run_id = :run" if "run_id" in columns else ""
        query = Query(name, f"SELECT * FROM {quoted}{where}")
        rows = results.query(query.sql.replace(":run", str(run)))
        if rows:
            rest = name.replace("_", " ").removeprefix(title.lower())
            shown = tuple(tuple(row.values()) for row in rows[:MOST_ROWS])
            found.append(StoredTable(name, title + rest, query, tuple(columns), shown, len(rows)))
    return found
