"""A shared copy holds every figure and nothing of what was recorded."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from decode_times import decode_time
from typer.testing import CliRunner

import leadline.sharing
from leadline.bench.records import DecodeSpec
from leadline.bench.storage import save
from leadline.cli import app
from leadline.database import Results
from leadline.database_schema import AnyText
from leadline.database_tables import Base
from leadline.errors import MachineError, UsageError
from leadline.records import SEEN
from leadline.reports.contents import gather
from leadline.reports.html import html
from leadline.reports.json_report import report_json
from leadline.reports.markdown import markdown
from leadline.reports.paired_runs import pair_runs
from leadline.reports.summary import summary
from leadline.sharing import share
from reports import factory

DECODED = "what-the-scanner-said"
LONG = " and so on" * 2000  # longer than a page of the file


def planted(table: str, column: str) -> str:
    return f"planted-in-{table}-{column}-"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a sentinel in every place that holds text of a session, and a table that is not leadline's."""
    path = tmp_path_factory.mktemp("share") / "r.sqlite"
    factory.fill(path, changes=lambda label, index, step: {"text": DECODED})
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        text, tail = planted("branch_point", "recorded_text"), planted("branch_point", "prompt_tail")
        db.execute("UPDATE branch_point SET recorded_text = ?, prompt_tail = ?", (text + LONG, tail + LONG))
        db.execute("UPDATE branch_point SET recorded_tokens = ?", (json.dumps([70001] * 3000),))
        notes = [["dropped", "message 3", planted("session", "notes")], list(SEEN)]
        db.execute("UPDATE session SET notes = ?", (json.dumps(notes),))
        query = "INSERT INTO exclusion VALUES (NULL, 1, ?, 'p', ?, NULL, ?)"
        db.execute(query, ("a", "s", f"failed: ValueError: {planted('exclusion', 'reason')}"))
        db.execute(query, ("b", None, f"not a session: {planted('exclusion', 'reason')}"))
        db.execute(query, ("c", "s", "prompt of 9 tokens is shorter than 8k = 16"))
        db.execute("CREATE TABLE mine AS SELECT recorded_text FROM branch_point")
        db.execute("CREATE TRIGGER t AFTER UPDATE ON branch_point BEGIN INSERT INTO mine VALUES (new.prompt_tail); END")
        db.execute("CREATE INDEX i ON branch_point (recorded_text)")
    return path


def figures(path: Path) -> dict[str, Any]:
    """What the report says in figures, the file's name and what a copy says of itself aside."""
    with Results.open(path, read_only=True) as results:
        found: dict[str, Any] = json.loads(report_json(gather(results)))
    for session in found["sessions"]:
        session["notes"] = [note[:2] for note in json.loads(session["notes"])]
    for exclusion in found["exclusions"]:
        exclusion["reason"] = exclusion["reason"].partition(":")[0]
    found["exclusions"] = [each for each in found["exclusions"] if each["session_sha256"]]
    return found | {
        "database": "",
        "shared": None,
        "tails": None,
        "summary": [s for s in found["summary"] if "share`" not in s],
    }


@pytest.mark.parametrize("by_token", [True, False])
def test_the_figures_stay_and_what_was_recorded_goes(path: Path, tmp_path: Path, by_token: bool) -> None:
    whole = path.read_bytes()
    assert whole.count(b"planted-in-") >= 3 * 6
    found = share(path, tmp_path / "copy.sqlite", by_token=by_token)
    copy = (tmp_path / "copy.sqlite").read_bytes()
    assert b"planted-in-" not in copy
    assert b"70001,70001" not in copy.replace(b" ", b"")
    assert DECODED.encode() in copy
    assert (found.points, found.decoded, found.bytes_after) == (6, 30, len(copy))
    assert found.bytes_before == len(whole)
    assert figures(tmp_path / "copy.sqlite") == figures(path)
    assert [one.name for one in tmp_path.iterdir()] == ["copy.sqlite"]
    assert path.read_bytes() == whole
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite")) as db:
        reasons = [row[0] for row in db.execute("SELECT reason FROM exclusion ORDER BY id DESC LIMIT 3")]
        assert reasons == ["prompt of 9 tokens is shorter than 8k = 16", "not read", "failed"]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_every_column_of_text_is_kept_or_left_out_on_purpose(path: Path, tmp_path: Path) -> None:
    """A column that comes to the schema must be looked at: is it the session's, or leadline's?"""
    share(path, tmp_path / "copy.sqlite")
    changed = set()
    with (
        contextlib.closing(sqlite3.connect(path)) as a,
        contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite")) as b,
    ):
        for table in Base.metadata.sorted_tables:
            for column in table.columns:
                query = f"SELECT {column.name} FROM {table.name} ORDER BY rowid"
                if a.execute(query).fetchall() != b.execute(query).fetchall():
                    changed.add(f"{table.name}.{column.name}")
    marks = {f"shared_copy.{name}" for name in ("id", "created", "leadline", "by_token")}
    recorded = {"branch_point.recorded_tokens", "branch_point.recorded_text", "branch_point.prompt_tail"}
    assert changed == recorded | {"session.notes", "exclusion.reason"} | marks
    named = {"session_sha256", "sha256", "prompt_sha256", "scanner_sha256", "content_sha256", "created", "id", "format"}
    kept = {"path", "source", "view", "text"}  # names, and what scanners decoded
    for table in ("branch_point", "session", "exclusion", "step_result"):
        texts = {c.name for c in Base.metadata.tables[table].columns if isinstance(c.type, AnyText)}
        assert texts - named - kept - {name.partition(".")[2] for name in changed} == set(), table


def test_without_tokens_their_means_stay(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "copy.sqlite", by_token=False)
    query = "SELECT kl_dense, kl_exact FROM teacher_forced ORDER BY step_result_id, text"
    with Results.open(tmp_path / "copy.sqlite", read_only=True) as copy, Results.open(path, read_only=True) as whole:
        rows = copy.query("SELECT DISTINCT kl_dense_by_token, kl_exact_by_token FROM teacher_forced")
        assert rows == [{"kl_dense_by_token": "[]", "kl_exact_by_token": "[]"}]
        assert copy.query(query) == whole.query(query)
        assert copy.query("SELECT by_token FROM shared_copy") == [{"by_token": 0}]
        assert (gather(copy).tails, len(gather(whole).tails)) == ((), 5)


def test_every_page_of_a_copy_says_that_it_is_one(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "copy.sqlite")
    with Results.open(tmp_path / "copy.sqlite", read_only=True) as results:
        contents = gather(results)
    said = "A copy made by `leadline share`: the recorded steps were left out of it."
    assert summary(contents)[1] == said
    for page in (markdown(contents), html(contents)):
        assert page.count("(left out of this copy by `leadline share`)") == 6
    with Results.open(path, read_only=True) as results:
        assert "leadline share" not in markdown(gather(results))


def test_no_run_goes_on_in_a_copy(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "copy.sqlite")
    with Results.open(tmp_path / "copy.sqlite") as results, pytest.raises(UsageError, match="shared copy"):
        results.start_run(factory.spec(), factory.model(), factory.environment(), "leadline replay")
    with Results.open(tmp_path / "copy.sqlite", read_only=True) as results:
        assert [run.status for run in results.runs()] == ["complete"]


def test_a_copy_of_a_copy_is_one(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "a.sqlite")
    found = share(tmp_path / "a.sqlite", tmp_path / "b.sqlite", by_token=False)
    assert (found.points, found.decoded) == (0, 30)
    assert figures(tmp_path / "b.sqlite") == figures(path)


def test_it_pairs_with_the_original(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "copy.sqlite")
    with Results.open(path, read_only=True) as a, Results.open(tmp_path / "copy.sqlite", read_only=True) as b:
        runs = pair_runs(a, b, None, None)
    assert [change.identical for change in runs.changes] == [change.items for change in runs.changes]
    assert not any(runs.unpaired.values())


def test_what_a_run_has_in_its_log_is_in_the_copy(tmp_path: Path) -> None:
    """The log is not folded into the file while a writer holds it, and what it commits later is not in the copy."""
    path = tmp_path / "r.sqlite"
    factory.fill(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE run SET status = 'interrupted'")
        stop = threading.Event()

        def write() -> None:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
                while not stop.wait(0.001):
                    other.execute("UPDATE branch_point SET prompt_tokens = prompt_tokens + 1")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            share(path, tmp_path / "copy.sqlite")
        finally:
            stop.set()
            thread.join()
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite")) as db:
        assert db.execute("SELECT status FROM run").fetchone() == ("interrupted",)
        written = {row[0] for row in db.execute("SELECT prompt_tokens - step FROM branch_point")}
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert len(written) == len({row[0] for row in db.execute("SELECT prompt_tokens - step FROM branch_point")})


def test_a_file_of_measurements_and_an_older_file_are_copied_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Results.open(path, create=True) as results:
        number = results.start_measurement("decode", DecodeSpec(), factory.environment(), "leadline bench decode")
        save(results, number, [decode_time(), decode_time("landmarks")])
    found = share(path, tmp_path / "copy.sqlite")
    assert (found.points, found.decoded) == (0, 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM decode_time").fetchone() == (2,)
    with contextlib.closing(sqlite3.connect(path)) as db:
        for table in ("shared_copy", "selection_check", "decode_time", "measurement"):
            db.execute(f"DROP TABLE {table}")
        db.execute("UPDATE schema_version SET version = 1")
        db.commit()
    share(path, tmp_path / "older.sqlite")
    with Results.open(tmp_path / "older.sqlite", read_only=True) as results:
        assert results.query("SELECT version FROM schema_version") == [{"version": 2}]
        assert results.runs() == []


def test_what_is_there_is_not_overwritten(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.sqlite"
    out.write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for there in (out, tmp_path, tmp_path / "dangling", path, path.with_name("r.sqlite-wal")):
        with pytest.raises(UsageError, match="would overwrite"):
            share(path, there)
    assert out.read_text() == "mine"
    (tmp_path / "other.sqlite.part").write_text("somebody's")
    with pytest.raises(UsageError, match=r"other\.sqlite\.part"):
        share(path, tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite.part").read_text() == "somebody's"
    with pytest.raises(MachineError, match="cannot write the copy"):
        share(path, tmp_path / "no" / "copy.sqlite")


def test_a_copy_that_cannot_be_finished_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(notes: str) -> str:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(leadline.sharing, "_own_notes", full)
    with pytest.raises(MachineError, match="make room"):
        share(path, tmp_path / "copy.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_no_copy_is_made_of_what_is_no_results_database(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("not a database, but long enough to be read as one")
    with pytest.raises(UsageError):
        share(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    assert [one.name for one in tmp_path.iterdir()] == ["a.sqlite"]


def test_the_command_says_what_is_still_in_it(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.sqlite"
    result = CliRunner().invoke(app, ["share", str(path), str(out), "--no-by-token"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "the recorded text of 6 branch points left out, divergences of single tokens too" in result.output
    assert "What scanners decoded in 30 branches is in it" in result.output
