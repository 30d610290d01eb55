"""Opening a results database: the SQLite connection, its pragmas, the refusal of files that are something else, and the
upgrade of a file that an older version wrote.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

from leadline import __version__
from leadline.database_schema import SCHEMA_VERSION
from leadline.database_tables import Base
from leadline.errors import UsageError, explain

APPLICATION = "leadline"
BUSY_SECONDS = 30

_Empty = Literal["refused", "passes", "filled"]  # what becomes of a file without tables


def open_engine(path: Path, *, create: bool, read_only: bool) -> Engine:
    """An engine on the results database at `path`, its schema checked (and made, with `create`, in a new file).

    A file of an older version is read as it is, and upgraded when it is opened for writing. Raises UsageError where the
    file is missing, is no leadline database, or has a schema version that this leadline does not know.
    """
    if path.is_dir():
        raise UsageError(
            explain("a results database is a file", file=path, found="a directory", do="name a file in it")
        )
    if not create and not path.exists():
        raise UsageError(
            explain(
                "no results database",
                file=path,
                found="no such file",
                do=f"make it with `leadline replay SESSIONS --db {path}`",
            )
        )
    if create and not path.parent.is_dir():
        raise UsageError(explain("no such directory", file=path.parent, do="create it, or name another file"))
    fresh = not path.exists() or path.stat().st_size == 0
    if not (fresh and create):
        # Checked read-only first: opening for writing would turn a stranger's SQLite file into WAL. A file without
        # tables is nobody's: another process may be making this very database now.
        _checked(_engine(path, read_only=True), path, empty="passes" if create else "refused", upgrade=False).dispose()
    empty: _Empty = "filled" if create else "refused"
    return _checked(_engine(path, read_only=read_only), path, empty=empty, upgrade=not read_only)


def _checked(engine: Engine, path: Path, *, empty: _Empty, upgrade: bool) -> Engine:
    try:
        with engine.begin() as connection:
            _check(connection, path, empty=empty)
            if upgrade:
                _upgrade(connection)
    except DatabaseError as error:
        engine.dispose()
        raise UsageError(
            explain("cannot read the results database", file=path, found=error.orig, expected="a SQLite database")
        ) from None
    except UsageError:
        engine.dispose()
        raise
    return engine


def _engine(path: Path, *, read_only: bool) -> Engine:
    uri = read_only_uri(path) if read_only else f"file:{quote(str(path.absolute()))}?mode=rwc"

    def connect() -> sqlite3.Connection:
        # Autocommit mode, so that the BEGIN below is the only one and covers the creation of tables too.
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    dumps = partial(json.dumps, allow_nan=False, separators=(",", ":"))
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, json_serializer=dumps)

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            _to_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: what a transaction has read cannot change before it writes.
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _to_wal(connection: sqlite3.Connection) -> None:
    """Keep a write-ahead log. SQLite does not wait by itself for another process that is turning the same file."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def read_only_uri(path: Path) -> str:
    """How a reader opens the file: to clear away the log's files after it where it may, else touching nothing."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        options = "mode=rw"
    else:
        # SQLite cannot set up a log's index where it may not write, and needs none where no log lies beside the file.
        options = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    return f"file:{quote(str(path.absolute()))}?{options}"


def _check(connection: Connection, path: Path, *, empty: _Empty) -> None:
    tables = set(inspect(connection).get_table_names())
    if not tables and empty == "passes":
        return
    if not tables and empty == "filled":
        Base.metadata.create_all(connection)
        row = {"application": APPLICATION, "version": SCHEMA_VERSION, "written_by": __version__}
        connection.execute(text("INSERT INTO schema_version VALUES (1, :application, :version, :written_by)"), row)
        return
    named = "schema_version" in tables
    columns = {column["name"] for column in inspect(connection).get_columns("schema_version")} if named else set()
    known = {"application", "version", "written_by"} <= columns
    query = text("SELECT application, version, written_by FROM schema_version")
    rows = connection.execute(query).all() if known else []
    if len(rows) != 1 or rows[0].application != APPLICATION:
        raise UsageError(
            explain(
                "not a leadline results database",
                file=path,
                found=f"tables {', '.join(sorted(tables)[:6])}" if tables else "an empty database",
                expected="a file written by `leadline replay`",
                do="name another file",
            )
        )
    version = rows[0].version
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise UsageError(
            explain(
                "the results database has another schema version",
                file=path,
                field="schema_version.version",
                found=f"{version}, written by leadline {rows[0].written_by}",
                expected=f"1 to {SCHEMA_VERSION}, as leadline {__version__} reads them",
                do="update leadline" if newer else "read it with the leadline that wrote it, or replay into a new file",
            )
        )


def _upgrade(connection: Connection) -> None:
    """Create the tables that the file lacks, and say its version; in the transaction that holds the writer's lock."""
    Base.metadata.create_all(connection)
    row = {"version": SCHEMA_VERSION, "written_by": __version__}
    query = "UPDATE schema_version SET version = :version, written_by = :written_by WHERE version < :version"
    connection.execute(text(query), row)
