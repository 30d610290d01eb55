"""What docs/reports.md shows works as it stands: each SQL text, each command line, and the workflow."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import typer

from leadline.cli.compare import compare
from leadline.cli.export import export
from leadline.cli.replay import replay
from leadline.cli.report import report
from leadline.cli.share import share
from leadline.database_tables import Base
from leadline.reports.gates import ABSOLUTE, BYTES, TIMES, parse_rules
from reports import factory


@pytest.fixture(scope="module")
def page() -> str:
    path = Path(__file__).resolve().parents[2] / "docs" / "reports.md"
    if not path.is_file():
        pytest.skip("docs/reports.md does not lie beside these tests")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documented") / "results.sqlite"
    factory.fill(path)
    return path


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_five_queries_run_and_answer(page: str, database: Path) -> None:
    queries = blocks(page, "sql")
    assert len(queries) == 5
    answers = []
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as raw:
        for query in queries:
            found = raw.execute(query)
            answers.append([dict(zip([column[0] for column in found.description], row, strict=True)) for row in found])
    assert answers[0][0] == {"label": "exact", "agreement": 1.0, "bits": 1024.0, "steps": 6}
    # By construction fathom is 0.25 above sparq in all sessions but the first.
    assert [row["difference"] for row in answers[1]] == [0.0, 0.25, 0.25]
    assert {row["margin"] for row in answers[2]} == {0.25}
    assert all(row["thousand_tokens"] == 2 and row["steps"] == 6 for row in answers[3])
    assert {(row["label"], row["token"]) for row in answers[4]} == {
        (label, token) for label in ("fathom:budget=48", "sparq:r=16") for token in (0, 1)
    }


def parse(line: str) -> dict[str, Any]:
    """The parameters of a documented command line, as its command would get them; nothing is run."""
    app = typer.Typer()
    for command in (report, compare, export, share, replay):
        app.command()(command)
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    parameters: dict[str, Any] = command.make_context(words[0], words[1:]).params
    return parameters


def test_the_command_lines_parse(page: str) -> None:
    lines = [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("leadline ")]
    assert len(lines) == 7
    assert all(parse(line) for line in lines)


def test_the_workflow_compares_with_rules_that_exist(page: str) -> None:
    yaml = pytest.importorskip("yaml")
    [text] = blocks(page, "yaml")
    steps = yaml.safe_load(text)["jobs"]["compare"]["steps"]
    [line] = [step["run"] for step in steps if "leadline compare" in step.get("run", "")]
    parameters = parse(line[line.index("leadline compare") :])
    assert [rule.metric for rule in parse_rules(parameters["fail"], 0.05)] == ["agreement", "scan_bytes"]
    told = [step for step in steps if "compare.md" in step.get("run", "") and step["run"] != line]
    assert [step["if"] for step in told] == ["always()"] * 2
    [replayed] = re.findall(r'leadline" (replay .*)', text)
    assert parse(f"leadline {replayed}")["db"] == Path("$side.sqlite")


def test_every_rule_is_documented(page: str) -> None:
    assert set(re.findall(r"`(\w+):[\d.]+%?`", page)) == {*ABSOLUTE, *BYTES, *TIMES}


def test_the_file_opens_cleanly_in_other_clients(database: Path) -> None:
    """What Datasette and others ask of a file: sound pages and keys, a primary key in every table, JSON that parses."""
    with sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = raw.execute(f"PRAGMA table_info({table})").fetchall()
            assert any(column[5] for column in columns), f"{table} has no primary key"
            for column in columns:
                if column[2] == "JSON":
                    bad = f"SELECT count(*) FROM {table} WHERE {column[1]} IS NOT NULL AND NOT json_valid({column[1]})"
                    assert raw.execute(bad).fetchone() == (0,), (table, column[1])
        assert set(tables) == set(Base.metadata.tables)
