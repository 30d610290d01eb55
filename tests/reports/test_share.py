"""A shared copy holds every figure and nothing of the recorded text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from leadline.cli import app
from leadline.database import Results
from leadline.errors import UsageError
from leadline.reports.contents import gather
from leadline.reports.json_report import report_json
from leadline.reports.paired_runs import pair_runs
from leadline.sharing import share
from reports import factory

RECORDED, PROMPT, DECODED = "what-the-agent-did", "what-the-user-asked", "what-the-scanner-said"
REMOVED = (RECORDED.encode(), PROMPT.encode(), b"70001,70002,70003")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("share") / "r.sqlite"
    factory.fill(path, changes=lambda label, index, step: {"text": DECODED})
    with Results.open(path) as results, results.transaction() as db:
        given = {"text": RECORDED, "tail": PROMPT, "tokens": json.dumps([70001, 70002, 70003], separators=(",", ":"))}
        db.execute(
            text("UPDATE branch_point SET recorded_text = :text, prompt_tail = :tail, recorded_tokens = :tokens"),
            given,
        )
    return path


def figures(path: Path) -> dict[str, object]:
    with Results.open(path, read_only=True) as results:
        found: dict[str, object] = json.loads(report_json(gather(results)))
    return found | {"database": ""}


@pytest.mark.parametrize("by_token", [True, False])
def test_the_figures_stay_and_the_recorded_text_goes(path: Path, tmp_path: Path, by_token: bool) -> None:
    assert all(text in path.read_bytes() for text in REMOVED)
    found = share(path, tmp_path / "copy.sqlite", by_token=by_token)
    copy = (tmp_path / "copy.sqlite").read_bytes()
    assert [text for text in REMOVED if text in copy] == []
    assert DECODED.encode() in copy
    assert (found.points, found.bytes_after) == (6, len(copy))
    assert figures(tmp_path / "copy.sqlite") == figures(path)
    assert [one.name for one in tmp_path.iterdir()] == ["copy.sqlite"]


def test_without_tokens_their_means_stay(path: Path, tmp_path: Path) -> None:
    share(path, tmp_path / "copy.sqlite", by_token=False)
    with Results.open(tmp_path / "copy.sqlite", read_only=True) as results:
        rows = results.query("SELECT DISTINCT kl_dense_by_token, kl_exact_by_token FROM teacher_forced")
        means = results.query("SELECT kl_dense, kl_exact FROM teacher_forced ORDER BY step_result_id, text")
    assert rows == [{"kl_dense_by_token": "[]", "kl_exact_by_token": "[]"}]
    with Results.open(path, read_only=True) as results:
        assert means == results.query("SELECT kl_dense, kl_exact FROM teacher_forced ORDER BY step_result_id, text")


def test_the_original_is_not_touched_and_pairs_with_its_copy(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    share(path, tmp_path / "copy.sqlite")
    assert path.read_bytes() == before
    with Results.open(path, read_only=True) as a, Results.open(tmp_path / "copy.sqlite", read_only=True) as b:
        runs = pair_runs(a, b, None, None)
    assert [change.identical for change in runs.changes] == [change.items for change in runs.changes]
    assert not any(runs.unpaired.values())


def test_what_is_there_is_not_overwritten(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.sqlite"
    out.write_text("mine")
    with pytest.raises(UsageError, match="would overwrite"):
        share(path, out)
    assert out.read_text() == "mine"
    with pytest.raises(UsageError, match="cannot write the copy"):
        share(path, tmp_path / "no" / "copy.sqlite")
    (tmp_path / "other.sqlite.part").write_text("somebody's")
    with pytest.raises(UsageError, match="or remove it"):
        share(path, tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite.part").read_text() == "somebody's"


def test_no_copy_is_made_of_what_is_no_results_database(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("not a database, but long enough to be read as one")
    with pytest.raises(UsageError):
        share(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    assert [one.name for one in tmp_path.iterdir()] == ["a.sqlite"]


def test_the_command_says_what_is_still_in_it(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.sqlite"
    result = CliRunner().invoke(app, ["share", str(path), str(out), "--no-by-token"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "the recorded text of 6 branch points left out" in result.output
    assert "What scanners decoded is in it" in result.output
