"""`leadline report` and `leadline export` as a user calls them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from leadline.cli.export import export
from leadline.cli.report import report
from leadline.errors import UsageError
from reports import factory

app = typer.Typer()
app.command()(report)
app.command()(export)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    factory.fill(tmp_path / "results.sqlite")
    return tmp_path / "results.sqlite"


def test_the_report_is_written_beside_the_database_and_named(database: Path) -> None:
    before = database.read_bytes()
    result = call("report", database)
    assert result.exit_code == 0
    assert result.stdout.split("\n")[:-1] == [str(database.parent / "report.html"), str(database.parent / "report.md")]
    assert (database.parent / "report.html").read_text().startswith("<!doctype html>")
    assert (database.parent / "report.md").read_text().startswith("# ")
    assert database.read_bytes() == before
    assert sorted(path.name for path in database.parent.iterdir()) == ["report.html", "report.md", "results.sqlite"]


def test_out_and_format_choose_where_and_what(database: Path, tmp_path: Path) -> None:
    result = call("report", database, "--out", tmp_path / "new" / "folder", "--format", "json", "--run", 1)
    assert result.exit_code == 0
    assert json.loads((tmp_path / "new" / "folder" / "report.json").read_text())["run"]["id"] == 1
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["report.json"]


def test_json_goes_to_standard_output_and_writes_nothing(database: Path) -> None:
    result = call("report", database, "--json")
    assert json.loads(result.stdout)["model"]["id"] == "tiny-llama"
    assert [path.name for path in database.parent.iterdir()] == ["results.sqlite"]


def test_export_writes_standard_output_and_files(database: Path, tmp_path: Path) -> None:
    text = call("export", database, "--table", "costs").stdout
    assert len(list(csv.DictReader(io.StringIO(text)))) == 30
    assert len(json.loads(call("export", database, "--table", "sessions", "--json").stdout)) == 3
    out = tmp_path / "results.parquet"
    assert call("export", database, "--format", "parquet", "--out", out).exit_code == 0
    assert pq.read_table(out).num_rows == 30


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("report", "nowhere.sqlite"), "no such file"),
        (("report", "{db}", "--run", 5), "no such run"),
        (("report", "{db}", "--out", "{db}"), "cannot write the report"),
        (("export", "{db}", "--format", "parquet"), "name a file with --out"),
        (("export", "{db}", "--run", 5), "no such run"),
        (("export", "{db}", "--out", "{db}/x.csv"), "cannot write the export"),
    ],
)
def test_wrong_arguments_are_explained(database: Path, arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call(*(str(argument).format(db=database) for argument in arguments))
