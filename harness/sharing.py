"""A copy of a results database to pass on: every figure, without what was recorded of the sessions.

The copy is built anew, table by table, so that what is left out never reaches it, nor does anything that is not
leadline's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from leadline import __version__
from leadline.database import Results
from leadline.database_file import APPLICATION, BUSY_SECONDS, read_only_uri
from leadline.database_schema import SCHEMA_VERSION
from leadline.database_tables import Base
from leadline.errors import MachineError, UsageError, explain

_OWN = ("calibration", "decoding")  # where a note says something that leadline found, and quotes no session
_LEFT_OUT = {
    "branch_point": {"recorded_tokens": "'[]'", "recorded_text": "''", "prompt_tail": "''"},
    "session": {"notes": "own_notes(notes)"},
    "exclusion": {"reason": "own_reason(reason, session_sha256)"},
}
_BY_TOKEN = {"teacher_forced": {"kl_dense_by_token": "'[]'", "kl_exact_by_token": "'[]'"}}
_APART = ("schema_version", "shared_copy")  # tables that say what the copy is, and are not copied


@dataclass(frozen=True)
class Shared:
    """What `share` wrote: of how many branch points it left recorded text out, how many branches with decoded text are
    in it, and bytes of the file before and after.
    """

    points: int
    decoded: int
    bytes_before: int
    bytes_after: int


def share(path: Path, out: Path, by_token: bool = True) -> Shared:
    """Copy the results database at `path` to the new file `out` without recorded steps, ends of prompts, and what the
    readers' notes and failures quote.

    What scanners decoded stays, since agreement is counted from it; so do names: of sessions, files and sources (the
    first words of a task), and the commands of the runs. Without `by_token` the divergences of single tokens go too:
    their means stay. Every figure of a report stays what it was. The copy is one consistent read, also while a run
    writes. Raises UsageError where `out` is there already or `path` is no results database, MachineError where the
    copy cannot be written; `out` is then not made.
    """
    if os.path.lexists(out) or out.resolve() in {
        Path(f"{path.resolve()}{end}") for end in ("-wal", "-shm", "-journal")
    }:
        found = "a directory" if out.is_dir() else "a file, or the log of the database"
        raise UsageError(explain("the copy would overwrite something", file=out, found=found, do="name another file"))
    part = out.with_name(out.name + ".part")
    with Results.open(path, read_only=True):  # is it one?
        pass
    try:
        part.open("xb").close()
        try:
            points, decoded = _copy(path, part, by_token)
            part.rename(out)
        finally:
            part.unlink(missing_ok=True)
        return Shared(points, decoded, path.stat().st_size, out.stat().st_size)
    except FileExistsError:
        raise UsageError(
            explain("the copy would overwrite a file", file=part, found="a file", do="name another file")
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise MachineError(
            explain(
                "cannot write the copy",
                file=part,
                found=error,
                do="name a file in a folder that can be written, or make room",
            )
        ) from None


def _copy(path: Path, part: Path, by_token: bool) -> tuple[int, int]:
    changes = _LEFT_OUT if by_token else _LEFT_OUT | _BY_TOKEN
    uri = f"file:{quote(str(part.absolute()))}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as copy:
        copy.create_function("own_notes", 1, _own_notes, deterministic=True)
        copy.create_function("own_reason", 2, _own_reason, deterministic=True)
        copy.execute("PRAGMA journal_mode = OFF")  # a copy that fails is thrown away
        copy.execute("PRAGMA synchronous = OFF")
        copy.execute("ATTACH ? AS source", (read_only_uri(path),))
        for table in Base.metadata.sorted_tables:
            for statement in _declared(table):
                copy.execute(statement)
        copy.execute("BEGIN")
        there = {name for (name,) in copy.execute("SELECT name FROM source.sqlite_master WHERE type = 'table'")}
        for table in Base.metadata.sorted_tables:
            if table.name in there and table.name not in _APART:
                instead = changes.get(table.name, {})
                names = [column.name for column in table.columns]
                chosen = ", ".join(instead.get(name, name) for name in names)
                copy.execute(
                    f"INSERT INTO main.{table.name} ({', '.join(names)}) SELECT {chosen} FROM source.{table.name}"
                )
        copy.execute("INSERT INTO schema_version VALUES (1, ?, ?, ?)", (APPLICATION, SCHEMA_VERSION, __version__))
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        copy.execute("INSERT INTO shared_copy VALUES (1, ?, ?, ?)", (now, __version__, by_token))
        (points,) = copy.execute("SELECT count(*) FROM source.branch_point WHERE recorded_text <> ''").fetchone()
        (decoded,) = copy.execute("SELECT count(*) FROM main.step_result WHERE text <> ''").fetchone()
        copy.execute("COMMIT")
        copy.execute("DETACH source")
    with part.open("rb") as written:
        os.fsync(written.fileno())
    return points, decoded


def _declared(table: Table) -> Iterator[str]:
    yield str(CreateTable(table).compile(dialect=sqlite.dialect()))
    for index in sorted(table.indexes, key=lambda each: str(each.name)):
        yield str(CreateIndex(index).compile(dialect=sqlite.dialect()))


def _own_notes(notes: str) -> str:
    """A session's notes, of which those that may quote the session keep their kind and place."""
    kept = [[kind, where, reason if where in _OWN else ""] for kind, where, reason in json.loads(notes)]
    return json.dumps(kept, separators=(",", ":"))


def _own_reason(reason: str, session: str | None) -> str:
    """Why something was left out, where that is leadline's own rule; a file that was not read may be quoted in it."""
    if session is None:
        return "not read"
    return "failed" if reason.startswith("failed: ") else reason
