"""`leadline replay`, `resume` and `calibrate` as a person meets them: messages, exit codes, the resume command."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import pytest
import tiny_replay
from typer.testing import CliRunner

from leadline import progress
from leadline.cli import app, main
from leadline.config import load_spec
from leadline.errors import UsageError

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    tiny_replay.write_sessions(folder / "sessions", count=1)
    tiny_replay.write_calibration(folder / "cal.safetensors", tiny_replay.model())
    (folder / "run.toml").write_text(
        'model = "tiny"\nmax_context = 1500\nk = 40\nmax_new_tokens = 4\nprefill_chunk = 128\nnoise_chunk = 96\n'
        'scanners = ["sparq:r=16", "fathom:budget=48"]\nbaseline = "sparq"\n'
    )
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_replay.model()
    monkeypatch.setattr("leadline.replaying.load_model", lambda *_, **__: loaded)


def arguments(place: Path, database: Path, *more: str) -> list[str]:
    return [
        "replay", str(place / "sessions"), "--db", str(database), "--config", str(place / "run.toml"),
        "--calibration", str(place / "cal.safetensors"), *more,
    ]  # fmt: skip


def stored(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        return int(connection.execute("SELECT count(*) FROM step_result").fetchone()[0])


@pytest.mark.usefixtures("tiny")
def test_interrupted_it_prints_the_command_that_goes_on_and_that_command_does(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "results.sqlite"
    done = 0

    def stop(self: progress.Plain, label: str) -> None:
        nonlocal done
        done += 1
        if done == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(progress.Plain, "branch", stop)
        result = RUNNER.invoke(app, arguments(place, database))
    assert result.exit_code == 130
    command = shlex.split(result.stderr.strip().splitlines()[-1])
    assert command[:2] == ["leadline", "resume"]
    assert stored(database) == 4
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT status FROM run").fetchall() == [("interrupted",)]
    result = RUNNER.invoke(app, command[1:])
    assert result.exit_code == 0, result.stderr
    assert "6 branches decoded, 4 were there already" in result.stdout
    assert "leadline report" in result.stdout
    again = RUNNER.invoke(app, arguments(place, database))
    assert "0 branches decoded, 10 were there already" in again.stdout


@pytest.mark.usefixtures("tiny")
def test_a_failing_scanner_ends_with_exit_code_1_and_keeps_the_rest(place: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "bad.py"
    plugin.write_text(
        "from typing import ClassVar\nfrom leadline.scanners.quest import Quest\n\n\nclass Bad(Quest):\n"
        '    name: ClassVar[str] = "bad"\n\n    def plan(self, query, state, index):\n        return None\n'
    )
    result = RUNNER.invoke(app, arguments(place, tmp_path / "bad.sqlite", "--scanner", f"{plugin}:Bad"))
    assert result.exit_code == 1
    assert "2 failed" in result.stdout
    assert stored(tmp_path / "bad.sqlite") == 6


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--scanner", "fathm"], ["there is no scanner 'fathm'", "Did you mean fathom?"]),
        (["--scanner", "fathom:budget=many"], ["fathom", "budget", "many"]),
        (["--baseline", "nothing"], ["nothing"]),
        (["--k", "20"], ["k=20", "sink + local = 36"]),
        (["--calibration", "nowhere.safetensors"], ["nowhere.safetensors", "leadline calibrate"]),
        (["--config", "nowhere.toml"], ["nowhere.toml"]),
    ],
)
def test_wrong_arguments_are_explained_before_any_model_is_loaded(
    place: Path,
    tmp_path: Path,
    extra: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("leadline.replaying.load_model", refuse)
    monkeypatch.setattr("sys.argv", ["leadline", *arguments(place, tmp_path / "x.sqlite", *extra)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert "Traceback" not in message
    assert not (tmp_path / "x.sqlite").exists()


def test_a_folder_without_sessions_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    monkeypatch.setattr("sys.argv", ["leadline", "replay", str(tmp_path), "--db", str(tmp_path / "x.sqlite")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2


def test_toml_then_environment_then_flags(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = place / "run.toml"
    assert load_spec({"sessions": ("a",)}, toml).k == 40
    monkeypatch.setenv("LEADLINE_K", "50")
    monkeypatch.setenv("LEADLINE_SCANNERS", "quest landmarks")
    spec = load_spec({"sessions": ("a",), "steps": None}, toml)
    assert (spec.k, spec.scanners, spec.steps) == (50, ("quest", "landmarks"), 2)
    assert load_spec({"sessions": ("a",), "k": 60}, toml).k == 60


def test_a_misspelt_field_is_named(tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text("max_contxt = 4\n")
    with pytest.raises(UsageError, match="max_contxt"):
        load_spec({"sessions": ("a",)}, toml)
    toml.write_text("k = [\n")
    with pytest.raises(UsageError, match="not TOML"):
        load_spec({"sessions": ("a",)}, toml)


def test_no_sessions_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="sessions"):
        load_spec({})
