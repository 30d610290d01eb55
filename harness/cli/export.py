"""`leadline export`: one table of a results database as CSV, JSON or Parquet."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Table(StrEnum):
    """What to export."""

    results = "results"
    sessions = "sessions"
    scanners = "scanners"
    branch_points = "branch_points"
    teacher_forced = "teacher_forced"
    costs = "costs"
    decode_times = "decode_times"


class Format(StrEnum):
    """What to write."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


def export(
    database: Annotated[
        Path, typer.Argument(metavar="DB", help="Results database; read-only, also while a run writes.")
    ],
    table: Annotated[Table, typer.Option(help="What to export.")] = Table.results,
    format: Annotated[Format, typer.Option(help="What to write.")] = Format.csv,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output where left out.")] = None,
    run: Annotated[int | None, typer.Option(help="Run id; every run where left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write one table, natural keys first, to standard output or to a file."""
    from leadline.database import Results
    from leadline.errors import UsageError, explain
    from leadline.reports.contents import choose_run
    from leadline.reports.export import rows, to_csv, to_json, to_parquet

    chosen = Format.json if as_json else format
    if chosen is Format.parquet and out is None:
        raise UsageError(explain("Parquet is a binary format", found="standard output", do="name a file with --out"))
    with Results.open(database, read_only=True) as results:
        if run is not None:
            choose_run(results, run)
        found = rows(results, table.value, run)
    if chosen is Format.parquet:
        data = to_parquet(table.value, found)
    else:
        data = (to_csv(table.value, found) if chosen is Format.csv else to_json(found)).encode()
    if out is None:
        sys.stdout.buffer.write(data)
        return
    try:
        out.write_bytes(data)
    except OSError as error:
        raise UsageError(
            explain("cannot write the export", file=out, found=error.strerror, do="name another file")
        ) from None
    print(f"{out}: {len(found)} rows")
