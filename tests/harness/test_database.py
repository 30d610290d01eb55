"""The results database: what goes in comes out, nothing is overwritten, a kill loses nothing committed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadline.database import Results
from leadline.database_schema import Base, EnvironmentRow, ModelRow, StepCostRow, StepResultRow, TeacherForcedRow
from leadline.errors import LeadlineError, MachineError, UsageError
from leadline.records import Environment, Exclusion, ModelRecord, StepCost, StepResult, TeacherForced
from reports import factory

EXACT, SPARQ = factory.sha("scanner exact"), factory.sha("scanner sparq:r=16")
SESSION = factory.sha("session 0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


def begin(results: Results, model: ModelRecord | None = None, **changes: object) -> int:
    spec = factory.spec(**changes)
    return results.start_run(spec, model or factory.model(), factory.environment(), "leadline replay")


def test_a_stored_branch_comes_back_field_for_field(path: Path) -> None:
    run = factory.fill(path)
    stored = factory.branch(SESSION, 4, "sparq:r=16", factory.plain_agreement("sparq:r=16", 0, 4))
    with Results.open(path, read_only=True) as results:
        assert results.result(run, SESSION, 4, SPARQ) == stored.result
        assert results.cost(run, SESSION, 4, SPARQ) == stored.cost
        assert results.result(run, SESSION, 5, SPARQ) is None
        assert results.model(run) == factory.model()
        assert results.done(run, SESSION) == {
            (step, factory.sha(f"scanner {label}")) for step in (4, 9) for label in factory.LABELS
        }


@pytest.mark.parametrize(
    ("record", "row", "elsewhere"),
    [
        (StepResult, StepResultRow, {"teacher_forced"}),
        (StepCost, StepCostRow, set()),
        (TeacherForced, TeacherForcedRow, set()),
        (Environment, EnvironmentRow, set()),
        (ModelRecord, ModelRow, set()),
    ],
)
def test_every_field_of_a_record_has_its_column(record: type, row: type[Base], elsewhere: set[str]) -> None:
    assert set(record.model_fields) - elsewhere <= set(row.__table__.columns.keys())


def test_one_protocol_is_one_run_and_its_sessions_and_scanners_add_up(path: Path) -> None:
    with Results.open(path, create=True) as results:
        first = begin(results, sessions=("a", "b"), scanners=("exact", "dense"))
        results.finish(first, "interrupted")
        again = begin(results, sessions=("c", "b"), scanners=("dense", "sparq:r=16"), limit=3)
        other = begin(results, k=256)
        assert again == first != other
        spec = results.spec(first)
        assert spec.sessions == ("a", "b", "c")
        assert spec.scanners == ("exact", "dense", "sparq:r=16")
        assert spec.limit == 3
        assert [run.status for run in results.runs()] == ["running", "running"]
        assert len(results.query("SELECT * FROM environment WHERE run_id = :run", {"run": first})) == 2


def test_results_point_to_the_invocation_that_made_them(path: Path) -> None:
    run = factory.fill(path, sessions=1)
    factory.fill(path, sessions=[factory.session(1)], run_environment=factory.environment(cpu="another CPU"))
    with Results.open(path, read_only=True) as results:
        query = (
            "SELECT DISTINCT r.session_sha256 s, e.cpu FROM step_result r JOIN environment e ON e.id = r.environment_id"
        )
        found = {row["s"]: row["cpu"] for row in results.query(query)}
        assert found == {SESSION: "a test CPU", factory.sha("session 1"): "another CPU"}
        assert [summary.id for summary in results.runs()] == [run]


def test_adding_twice_stores_once(path: Path) -> None:
    exclusions = [Exclusion(path="x", session_sha256=None, step=None, reason="not a session")] * 2
    with Results.open(path, create=True) as results:
        run = begin(results)
        for _ in range(2):
            results.add_session(run, factory.session(0))
            results.add_scanner(run, factory.scanner("exact"))
            results.add_branch_point(run, SESSION, factory.point(4))
            results.add_exclusions(run, exclusions)
        results.add_session(run, factory.session(0, path="moved/elsewhere.json"))
        counts = [len(results.query(f"SELECT * FROM {t}")) for t in ("session", "scanner", "branch_point", "exclusion")]
        assert counts == [1, 1, 1, 1]
        assert results.query("SELECT path FROM session")[0]["path"] == "sessions/session-0.json"


def test_a_contradiction_is_an_error_that_names_the_field(path: Path) -> None:
    factory.fill(path, sessions=1)
    with Results.open(path) as results:
        run = begin(results)
        with pytest.raises(UsageError, match=r"field: +weights_sha256"):
            results.start_run(
                factory.spec(),
                factory.model(weights_sha256=factory.sha("other")),
                factory.environment(),
                "leadline replay",
            )
        with pytest.raises(UsageError, match=r"field: +steps"):
            results.add_session(run, factory.session(0, steps=13))
        with pytest.raises(UsageError, match=r"field: +config"):
            results.add_scanner(run, factory.scanner("exact", config={"label": "changed"}))
        with pytest.raises(UsageError, match=r"field: +prompt_tokens"):
            results.add_branch_point(run, SESSION, factory.point(4, prompt_tokens=1))
        # Another device computes the same model: that is a row of its own environment, not a contradiction.
        assert (
            results.start_run(factory.spec(), factory.model(device="cuda"), factory.environment(), "leadline replay")
            == run
        )


def test_a_branch_is_never_overwritten(path: Path) -> None:
    run = factory.fill(path, sessions=1)
    with Results.open(path) as results:
        begin(results)
        with pytest.raises(UsageError, match="stored already"):
            results.save(run, factory.branch(SESSION, 4, "exact", 0.25))
        stored = results.result(run, SESSION, 4, EXACT)
        assert stored is not None
        assert stored.agreement == 1.0


def test_a_branch_needs_its_point_and_scanner_and_finite_figures(path: Path) -> None:
    with Results.open(path, create=True) as results:
        run = begin(results)
        results.add_session(run, factory.session(0))
        results.add_scanner(run, factory.scanner("exact"))
        with pytest.raises(LeadlineError, match="unknown branch point or scanner"):
            results.save(run, factory.branch(SESSION, 4, "exact"))
        results.add_branch_point(run, SESSION, factory.point(4))
        with pytest.raises(LeadlineError, match=r"cost.wall_ms[\s\S]*nan"):
            results.save(run, factory.branch(SESSION, 4, "exact", wall_ms=float("nan")))
        assert results.query("SELECT * FROM step_result") == []
        results.save(run, factory.branch(SESSION, 4, "exact"))
        assert results.done(run, SESSION) == {(4, EXACT)}


def test_text_of_any_origin_is_stored(path: Path) -> None:
    text = "\x1b[31mred\x1b[0m \x00 \ud800 \u202eltr <script> 'quotes' 漢字"
    with Results.open(path, create=True) as results:
        run = begin(results)
        results.add_session(run, factory.session(0, id=text))
        results.add_scanner(run, factory.scanner("exact"))
        for _ in range(2):
            results.add_branch_point(run, SESSION, factory.point(4, recorded_text=text))
        results.save(run, factory.branch(SESSION, 4, "exact", text=text))
        stored = results.result(run, SESSION, 4, EXACT)
        assert stored is not None
        assert stored.text == text.replace("\ud800", "\\ud800")


def test_another_schema_version_is_refused(path: Path) -> None:
    factory.fill(path, sessions=1)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE schema_version SET version = 99")
    for options in ({}, {"create": True}, {"read_only": True}):
        with pytest.raises(UsageError, match=r"found: +99[\s\S]*expected: +1[\s\S]*update leadline"):
            Results.open(path, **options)


def test_what_is_no_leadline_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.sqlite"
    with sqlite3.connect(stranger) as raw:
        raw.execute("CREATE TABLE schema_version (id INTEGER)")
        raw.execute("CREATE TABLE run (id INTEGER)")
    text = tmp_path / "notes.txt"
    text.write_text("no database " * 100)
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    for path, create in ((stranger, True), (text, True), (empty, False), (tmp_path, False), (tmp_path / "no", False)):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(UsageError):
            Results.open(path, create=create)
        assert before == (path.read_bytes() if path.is_file() else None)
    with pytest.raises(UsageError, match="no such directory"):
        Results.open(tmp_path / "no" / "results.sqlite", create=True)
    assert not (tmp_path / "no").exists()


def test_the_file_is_in_wal_with_foreign_keys_and_synced_commits(path: Path) -> None:
    with Results.open(path, create=True) as results:
        assert results.query("PRAGMA journal_mode") == [{"journal_mode": "wal"}]
        assert results.query("PRAGMA foreign_keys") == [{"foreign_keys": 1}]
        assert results.query("PRAGMA synchronous") == [{"synchronous": 2}]


def test_a_reader_sees_committed_rows_while_a_writer_is_in_a_transaction(path: Path) -> None:
    run = factory.fill(path, sessions=1)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM teacher_forced")
    with Results.open(path, read_only=True) as reader:
        stored = reader.result(run, SESSION, 4, EXACT)
        assert stored is not None
        assert len(stored.teacher_forced) == 2
        with pytest.raises(MachineError, match="readonly"):
            reader.finish(run)
    writer.execute("ROLLBACK")
    writer.close()


def test_a_snapshot_does_not_see_what_is_written_meanwhile(path: Path) -> None:
    run = factory.fill(path, sessions=1)
    with Results.open(path, read_only=True) as reader:
        with reader.snapshot():
            before = (len(reader.query("SELECT * FROM session")), [summary.sessions for summary in reader.runs()])
            with Results.open(path) as writer:
                writer.add_session(run, factory.session(1))
            assert (
                len(reader.query("SELECT * FROM session")),
                [summary.sessions for summary in reader.runs()],
            ) == before
        assert len(reader.query("SELECT * FROM session")) == 2


def test_an_unknown_run_names_the_known_ones(path: Path) -> None:
    factory.fill(path, sessions=1)
    with Results.open(path, read_only=True) as results, pytest.raises(UsageError, match=r"found: +7[\s\S]*one of 1"):
        results.spec(7)


WRITER = """
import sys
from pathlib import Path
from leadline.database import Results
from reports import factory
with Results.open(Path(sys.argv[1]), create=True) as results:
    run = results.start_run(factory.spec(), factory.model(), factory.environment(), "writer")
    results.add_session(run, factory.session(0))
    results.add_scanner(run, factory.scanner("exact"))
    for step in range(10_000):
        results.add_branch_point(run, factory.sha("session 0"), factory.point(step))
        results.save(run, factory.branch(factory.sha("session 0"), step, "exact"))
        print(step, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_had_saved(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment, cwd=path.parent
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.strip() == "20":
            break
    time.sleep(0.005)
    writer.send_signal(signal.SIGKILL)
    said = 20 + len(writer.stdout.read().split())
    writer.wait()
    with Results.open(path) as results:
        run = begin(results)
        done = {step for step, _ in results.done(run, SESSION)}
        assert set(range(said + 1)) <= done <= set(range(said + 2))
        # Whole or not at all: no result without its cost and its two teacher-forced rows.
        whole = """SELECT r.step, count(c.step_result_id) costs,
            (SELECT count(*) FROM teacher_forced t WHERE t.step_result_id = r.id) forced
            FROM step_result r LEFT JOIN step_cost c ON c.step_result_id = r.id GROUP BY r.id"""
        assert {(row["costs"], row["forced"]) for row in results.query(whole)} == {(1, 2)}
        assert results.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        results.add_branch_point(run, SESSION, factory.point(said + 1))
        if said + 1 not in done:
            results.save(run, factory.branch(SESSION, said + 1, "exact"))


def test_processes_may_make_one_file_together(tmp_path: Path) -> None:
    """Each finds it missing, empty, or half made, and none takes that for another's file or gives up waiting."""
    code = (
        "import sys\nfrom leadline.database import Results\nsys.stdin.readline()\n"
        "for i in range(20):\n    with Results.open(f'{sys.argv[1]}/{i}.sqlite', create=True) as r:\n        r.runs()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
