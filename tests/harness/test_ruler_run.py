"""A whole run of RULER-style tasks in seconds: dense first, what is stored is kept, a plugin's failure costs itself."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import tiny_replay
from typer.testing import CliRunner

from leadline.cli import app
from leadline.database import Results
from leadline.database_ruler import RulerAnswerRow
from leadline.errors import UsageError
from leadline.progress import Plain
from leadline.reports.contents import gather
from leadline.reports.markdown import markdown
from leadline.reports.ruler_scores import RulerScores, ruler_scores
from leadline.ruler.records import RulerAnswer, RulerSpec
from leadline.ruler.running import run
from leadline.ruler.scoring import score
from leadline.ruler.storing import load

RUNNER = CliRunner()
SCANNERS = ("fathom:budget=48", "fathom:budget=48,statistics=session", "sparq:r=16", "landmark_fathom")
FAILING = '''"""Fails at its second answer."""
from leadline.scanners.uniform import Thumbnail
class Failing(Thumbnail):
    name = "failing"
    def score(self, query, reads, state):
        if reads.tokens > 800: raise KeyError("gone")
        return super().score(query, reads, state)
'''


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    loaded = tiny_replay.model()
    monkeypatch.setattr("leadline.ruler.running.load_model", lambda *_, **__: loaded)
    return str(tiny_replay.write_calibration(tmp_path / "cal.safetensors", loaded))


def spec(calibration: str, **changes: Any) -> RulerSpec:
    values: dict[str, Any] = {
        "model": "tiny", "length": 700, "tasks": ("single-needle", "frequent-words"), "samples": 2, "k": 40,
        "scanners": SCANNERS, "max_new_tokens": 6, "calibration": calibration,
    }  # fmt: skip
    return RulerSpec.model_validate(values | changes)


def scores(database: Path) -> RulerScores:
    with Results.open(database, read_only=True) as results:
        (found,) = ruler_scores(results)
        return found


def answers(database: Path) -> dict[tuple[str, int, str], RulerAnswer]:
    """Answers by task, sample and label."""
    with Results.open(database, read_only=True) as results:
        scanners, found = load(results, 1)
    label = {scanner.sha256: scanner.label for scanner in scanners}
    return {(each.task, each.sample, label[each.scanner_sha256]): each for each in found}


def test_every_scanner_answers_every_sample_dense_first(calibration: str, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    outcome = run(spec(calibration), database, "test", Plain())
    assert (outcome.written, outcome.kept, outcome.failed) == (24, 0, 0)
    found = scores(database)
    assert [each.label for each in found.scanners][:2] == ["dense", "exact"]
    assert {each.overall.n for each in found.scanners} == {4}
    assert (found.tasks, found.samples) == (("single-needle", "frequent-words"), 4)
    assert 636 <= found.shortest <= found.longest <= 700
    for each in found.scanners:
        assert (each.difference is None) == (each.label == "exact")
        assert (each.bits > 0) == (each.label != "dense")
    stored = answers(database)
    for each in stored.values():
        assert each.score == score(each.gold, each.text)
        assert len(each.tokens) <= 6
    prompts = {(task, sample, each.prompt_sha256) for (task, sample, _), each in stored.items()}
    assert len(prompts) == 4, "one prompt a sample, whoever answers"


def test_exact_with_k_of_the_whole_context_answers_and_scores_as_dense(calibration: str, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    run(spec(calibration, k=800, samples=3), database, "test", Plain())
    stored = answers(database)
    for (task, sample, label), each in stored.items():
        assert each.tokens == stored[task, sample, "dense"].tokens, label
    assert {each.overall.mean for each in scores(database).scanners} == {scores(database).scanners[0].overall.mean}


def test_what_is_stored_is_kept_and_more_of_everything_adds_to_it(calibration: str, tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts.sqlite", tmp_path / "whole.sqlite"
    first = run(spec(calibration, samples=1, tasks=("single-needle",), scanners=SCANNERS[:1]), parts, "test", Plain())
    assert (first.written, first.kept) == (3, 0)
    again = run(spec(calibration, samples=1, tasks=("single-needle",), scanners=SCANNERS[:1]), parts, "test", Plain())
    assert (again.written, again.kept) == (0, 3)
    more = run(spec(calibration), parts, "test", Plain())
    assert (more.written, more.kept) == (21, 3)
    run(spec(calibration), whole, "test", Plain())
    assert answers(parts) == answers(whole)
    other = run(spec(calibration, seed=1), parts, "test", Plain())
    assert (other.written, other.protocol) == (24, 2), "another seed is another protocol"


def test_an_interrupted_run_goes_on_where_it_was(
    calibration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, whole = tmp_path / "cut.sqlite", tmp_path / "whole.sqlite"
    done = 0

    def stop(self: Plain, label: str) -> None:
        nonlocal done
        done += 1
        if done == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Plain, "branch", stop)
        with pytest.raises(KeyboardInterrupt):
            run(spec(calibration), cut, "test", Plain())
    assert len(answers(cut)) == 8
    assert run(spec(calibration), cut, "test", Plain()).kept == 8
    run(spec(calibration), whole, "test", Plain())
    assert answers(cut) == answers(whole)


def test_a_plugins_failure_costs_its_own_answer(calibration: str, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    database = tmp_path / "r.sqlite"
    asked = spec(calibration, length=1200, samples=1, scanners=(f"{tmp_path}/failing.py:Failing", "sparq:r=16"))
    outcome = run(asked, database, "test", Plain())
    assert (outcome.written, outcome.failed) == (6, 2)
    assert {label for _, _, label in answers(database)} == {"dense", "exact", "sparq:r=16"}


def test_a_calibration_that_lacks_what_a_scanner_wants_is_refused_before_anything_is_written(
    calibration: str, tmp_path: Path
) -> None:
    database = tmp_path / "r.sqlite"
    with pytest.raises(UsageError, match="leadline calibrate"):
        run(spec(calibration, scanners=("fathom:basis=auto",)), database, "test", Plain())
    assert not database.exists()


def test_a_length_beyond_the_models_positions_is_refused(calibration: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--length"):
        run(spec(calibration, length=4095), tmp_path / "r.sqlite", "test", Plain())


def test_scores_stand_in_the_report_of_a_replay_beside_them(calibration: str, tmp_path: Path) -> None:
    database = tmp_path / "both.sqlite"
    sessions = tiny_replay.write_sessions(tmp_path / "sessions", count=1)
    tiny_replay.run(tiny_replay.spec(sessions, Path(calibration), scanners=("sparq:r=16",)), database)
    run(spec(calibration, samples=1, scanners=("sparq:r=16",)), database, "test", Plain())
    with Results.open(database, read_only=True) as results:
        contents = gather(results)
    text = markdown(contents)
    assert "RULER-style scores: tiny-llama at 700 tokens, k = 40" in text
    assert text.index("| dense | 0.0 |") < text.index("| sparq:r=16 |", text.index("RULER-style scores"))


# --- the command ------------------------------------------------------------------------------------------------------


def arguments(calibration: str, database: Path, *more: str) -> list[str]:
    return [
        "ruler", "tiny", "--length", "700", "--task", "single-needle,multi-key", "--samples", "1", "--k", "40",
        "--scanner", "sparq:r=16", "--max-new-tokens", "4", "--calibration", calibration, "--db", str(database), *more,
    ]  # fmt: skip


def test_the_command_prints_dense_first_and_reports(calibration: str, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    result = RUNNER.invoke(app, arguments(calibration, database))
    assert result.exit_code == 0, result.output
    lines = [line.split()[0] for line in result.stdout.splitlines() if line]
    assert lines.index("dense") < lines.index("exact") < lines.index("sparq:r=16")
    assert "6 answers decoded" in result.stderr
    again = RUNNER.invoke(app, arguments(calibration, database, "--json"))
    found = json.loads(again.stdout)
    assert "6 were there already" in again.stderr
    assert [each["label"] for each in found[0]["scanners"]] == ["dense", "exact", "sparq:r=16"]
    out = tmp_path / "report"
    formats = [part for name in ("html", "md", "json", "csv", "parquet") for part in ("--format", name)]
    report = RUNNER.invoke(app, ["report", str(database), "--out", str(out), *formats])
    assert report.exit_code == 0, report.output
    assert sorted(path.name for path in out.iterdir()) == sorted(f"report.{f}" for f in formats[1::2])
    assert "multi-key" in (out / "report.html").read_text()
    assert "ruler difference" in (out / "report.csv").read_text()


def test_a_failed_answer_ends_with_exit_code_1(calibration: str, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING.replace("> 800", "> 0"))
    plugin = f"{tmp_path}/failing.py:Failing"
    result = RUNNER.invoke(app, arguments(calibration, tmp_path / "r.sqlite", "--scanner", plugin))
    assert result.exit_code == 1
    assert "2 failed" in result.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "single-needle,haystack"], "haystack"),
        (["--task", ""], "no such task"),
        (["--length", "12"], "length"),
        (["--k", "30"], "k=30"),
        (["--samples", "0"], "samples"),
        (["--scanner", "nothing"], "nothing"),
        (["--dtype", "float8"], "dtype"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_loaded(flags: list[str], said: str, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    result = RUNNER.invoke(app, ["ruler", "embedded", "--db", str(database), *flags])
    assert isinstance(result.exception, UsageError), result.output
    assert said in str(result.exception)
    assert not database.exists()


def test_without_a_calibration_it_says_how_to_make_one(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["ruler", "tiny", "--db", str(tmp_path / "r.sqlite")])
    assert isinstance(result.exception, UsageError)
    assert "leadline calibrate tiny" in str(result.exception)


def test_an_answer_is_stored_once(calibration: str, tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    run(spec(calibration, samples=1, tasks=("single-needle",), scanners=("sparq:r=16",)), database, "test", Plain())
    columns = ", ".join(c.name for c in RulerAnswerRow.__table__.columns if c.name != "id")
    with sqlite3.connect(database) as connection, pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        connection.execute(f"INSERT INTO ruler_answer ({columns}) SELECT {columns} FROM ruler_answer LIMIT 1")
