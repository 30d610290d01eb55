"""A results database that version 1 wrote: read as it is, upgraded whole or not at all when opened for writing.

tests/databases/v1.sqlite is a replay of `tiny_replay` (one session, one step, five scanners), by the first release.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, event
from typer.testing import CliRunner

from leadline.cli import app
from leadline.config import RunSpec
from leadline.database import Results
from leadline.database_schema import SCHEMA_VERSION, MeasurementRow
from leadline.database_tables import Base
from leadline.errors import UsageError
from leadline.records import Environment
from reports import factory

V1 = Path(__file__).resolve().parents[1] / "databases" / "v1.sqlite"
REPLAY = {"run", "environment", "model", "session", "exclusion", "branch_point", "scanner", "step_result", "step_cost"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(V1, tmp_path / "old.sqlite"))


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every table's rows, as another client sees them."""
    with sqlite3.connect(path) as raw:
        names = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: raw.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def test_the_old_file_is_small_and_of_version_1(old: Path) -> None:
    found = tables(old)
    assert V1.stat().st_size < 100_000
    assert found["schema_version"][0][2] == 1
    assert set(found) == REPLAY | {"schema_version", "teacher_forced"}
    assert len(found["step_result"]) == 5


def test_reading_leaves_it_as_it_is(old: Path) -> None:
    with Results.open(old, read_only=True) as results:
        [run] = results.runs()
        assert (run.results, run.status) == (5, "complete")
        assert not results.has("measurement")
    assert old.read_bytes() == V1.read_bytes()


def test_writing_upgrades_it_and_changes_no_row(old: Path) -> None:
    before = tables(old)
    with Results.open(old) as results:
        assert results.has("measurement")
        assert results.runs()[0].results == 5
    after = tables(old)
    assert after.pop("schema_version")[0][2] == SCHEMA_VERSION
    assert set(after) == set(Base.metadata.tables) - {"schema_version"}
    assert {name: rows for name, rows in after.items() if rows} == {
        name: rows for name, rows in before.items() if rows and name != "schema_version"
    }


def test_the_upgraded_file_has_the_form_of_a_new_one(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.sqlite"
    for path, create in ((old, False), (new, True)):
        Results.open(path, create=create).close()
    query = "SELECT name FROM sqlite_master ORDER BY name"
    with sqlite3.connect(old) as a, sqlite3.connect(new) as b:
        assert a.execute(query).fetchall() == b.execute(query).fetchall()
        for name in Base.metadata.tables:
            columns = f"SELECT name, type, pk FROM pragma_table_info('{name}') ORDER BY name"
            assert a.execute(columns).fetchall() == b.execute(columns).fetchall(), name


def test_an_upgrade_that_fails_leaves_the_old_version(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_target: object, connection: Connection, **_: object) -> None:
        connection.exec_driver_sql("SELECT * FROM no_such_table")

    event.listen(MeasurementRow.__table__, "after_create", fail)
    try:
        with pytest.raises(UsageError, match="no_such_table"):
            Results.open(old)
    finally:
        event.remove(MeasurementRow.__table__, "after_create", fail)
    found = tables(old)
    assert found["schema_version"][0][2] == 1
    assert "measurement" not in found
    Results.open(old).close()
    assert tables(old)["schema_version"][0][2] == SCHEMA_VERSION


def test_a_table_that_came_later_is_made_in_a_file_of_this_version(old: Path) -> None:
    Results.open(old).close()
    with sqlite3.connect(old) as raw:
        raw.execute("DROP TABLE measurement")
    with Results.open(old) as results:
        assert results.has("measurement")


def test_the_old_file_reports_before_and_after(old: Path) -> None:
    def report() -> str:
        ran = CliRunner().invoke(app, ["report", str(old), "--format", "md", "--format", "html"])
        assert ran.exit_code == 0, ran.output
        return (old.parent / "report.md").read_text()

    before = report()
    assert "fathom:budget=48" in before
    Results.open(old).close()
    assert report() == before


@pytest.mark.parametrize("version", [0, -1, 99, "x"])
def test_unknown_versions_are_refused_and_kept(old: Path, version: object) -> None:
    with sqlite3.connect(old) as raw:
        raw.execute("UPDATE schema_version SET version = ?", (version,))
    said = "update leadline" if version == 99 else "the leadline that wrote it"
    for read_only in (True, False):
        with pytest.raises(UsageError, match=rf"found: +{version},[\s\S]*expected: +1 to 2[\s\S]*{said}"):
            Results.open(old, read_only=read_only)
    assert tables(old)["schema_version"][0][2] == version


def test_a_measurement_keeps_its_settings_and_its_machine(old: Path) -> None:
    with Results.open(old) as results:
        spec, machine = factory.spec(), factory.environment(gpu="a GPU", link_gb_per_second=55.0)
        number = results.start_measurement("decode", spec, machine, "leadline bench decode")
        assert results.query("SELECT ended FROM measurement") == [{"ended": None}]
        results.finish_measurement(number)
        [row] = results.query("SELECT * FROM measurement")
        assert (row["kind"], row["command"], row["gpu"]) == ("decode", "leadline bench decode", "a GPU")
        assert row["ended"] >= row["started"]
        assert RunSpec.model_validate_json(row["spec"]) == spec
        assert set(Environment.model_fields) <= set(row)
