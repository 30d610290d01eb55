"""Every published results database gives the page that stands beside it, figure for figure."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from leadline.cli.report import report

PUBLISHED = Path(__file__).resolve().parents[2] / "reports" / "reference"
DATABASES = sorted(PUBLISHED.glob("*/*.sqlite"))

app = typer.Typer()
app.command()(report)


@pytest.mark.skipif(not DATABASES, reason="the published databases do not lie beside these tests")
def test_there_is_a_page_for_every_database_and_no_other() -> None:
    pages = {path for path in PUBLISHED.glob("*/*.md") if path.name != "README.md"}
    assert pages == {path.with_suffix(".md") for path in DATABASES}


@pytest.mark.parametrize("database", DATABASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_page_follows_from_the_database(database: Path, tmp_path: Path) -> None:
    arguments = [str(database), "--format", "md", "--no-texts", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "report.md").read_text() == database.with_suffix(".md").read_text()
