"""`leadline report` and `leadline export` as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from leadline.cli.export import export
from leadline.cli.report import report
from leadline.database import Results
from leadline.errors import UsageError
from leadline.records import Exclusion
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


def test_markdown_without_the_texts_has_the_same_tables(database: Path, tmp_path: Path) -> None:
    call("report", database, "--out", tmp_path / "whole", "--format", "md")
    call("report", database, "--out", tmp_path / "short", "--format", "md", "--no-texts")
    whole, short = ((tmp_path / name / "report.md").read_text() for name in ("whole", "short"))
    before, _, after = whole.partition("## Step texts\n\n")
    assert short.startswith(before)
    assert after.endswith(short[len(before) :])
    assert short[len(before) :].startswith("## ")
    call("report", database, "--out", tmp_path / "short", "--format", "html", "--no-texts")
    page = (tmp_path / "short" / "report.html").read_text()
    with sqlite3.connect(database) as connection:
        texts = [
            row[0]
            for row in connection.execute("SELECT text FROM step_result UNION SELECT recorded_text FROM branch_point")
        ]
    assert any(texts)
    assert not any(text and (text in page or text in short) for text in texts)
    assert 'id="steps"' not in page


def test_every_format_is_written_where_asked(database: Path, tmp_path: Path) -> None:
    names = ("md", "html", "json", "csv", "parquet")
    out = tmp_path / "all"
    result = call("report", database, "--out", out, *(word for name in names for word in ("--format", name)))
    assert result.stdout.split("\n")[:-1] == [str(out / f"report.{name}") for name in names]
    assert (out / "report.csv").read_text().startswith("run,kind,metric,scanner,baseline,")
    assert pq.read_table(out / "report.parquet").num_rows == len((out / "report.csv").read_text().splitlines()) - 1


def test_the_viewer_is_a_folder_of_pages(database: Path, tmp_path: Path) -> None:
    result = call("report", database, "--viewer", tmp_path / "viewer")
    assert result.stdout == f"{tmp_path / 'viewer' / 'index.html'}\n"
    assert len(list((tmp_path / "viewer").iterdir())) == 4
    assert not (database.parent / "report.html").exists()
    both = call("report", database, "--viewer", tmp_path / "viewer", "--format", "html")
    assert len(both.stdout.splitlines()) == 2
    assert (database.parent / "report.html").exists()


def test_a_run_in_progress_is_reported_while_its_writer_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    factory.fill(path, finish=False)
    with Results.open(path) as writer:
        run = writer.start_run(factory.spec(), factory.model(), factory.environment(), "leadline resume")
        assert call("report", path, "--format", "md", "--out", tmp_path / "out").exit_code == 0
        writer.add_session(run, factory.session(7))
    assert "still running" in (tmp_path / "out" / "report.md").read_text()


def test_only_failures_make_a_report_that_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    failed = Exclusion(path="a.json", session_sha256=None, step=3, reason="failed: out of memory")
    factory.fill(path, sessions=1, labels=(), exclusions=[failed])
    call("report", path)
    for name in ("report.html", "report.md"):
        assert "failed: out of memory" in (tmp_path / name).read_text()


@pytest.mark.parametrize("command", ["report", "export"])
def test_a_database_of_another_version_is_refused_in_words(database: Path, command: str) -> None:
    with sqlite3.connect(database) as raw:
        raw.execute("UPDATE schema_version SET version = 99, written_by = '7.0'")
    with pytest.raises(
        UsageError, match=r"another schema version(.|\n)*99, written by leadline 7.0(.|\n)*update leadline"
    ):
        call(command, database)


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
        (("report", "{db}", "--viewer", "{db}"), "cannot write the report"),
        (("export", "{db}", "--format", "parquet"), "name a file with --out"),
        (("export", "{db}", "--run", 5), "no such run"),
        (("export", "{db}", "--out", "{db}/x.csv"), "cannot write the export"),
    ],
)
def test_wrong_arguments_are_explained(database: Path, arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call(*(str(argument).format(db=database) for argument in arguments))
