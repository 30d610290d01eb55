"""The recorder: what it runs, normalises and refuses, and that a bundled script gives the committed bytes again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.errors import UsageError
from leadline.sessions import recorder
from leadline.sessions.recorder_log import Stamps
from leadline.sessions.recorder_script import SCRIPTS, load
from leadline.sessions.recorder_workspace import TOOLS, Workspace

SAMPLES = SCRIPTS.parent
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the recorder needs {', '.join(MISSING)}")

SCRIPT = """
id = "tiny"
set = "replay"
format = "{format}"
project = "tiny"
task = "Say hello."

[[files]]
path = "a.txt"
text = "one\\n"

{turns}
"""
BASH = '[[turns]]\nsay = "Look."\nbash = ["cat a.txt", "exit 3"]\n'
EDITS = """
[[turns]]
say = "Change it."
[turns.replace]
path = "/workspace/tiny/a.txt"
old_str = "one"
new_str = "two"

[[turns]]
say = "Again."
[turns.replace]
path = "/workspace/tiny/a.txt"
old_str = "one"
new_str = "three"
"""


def script(folder: Path, turns: str, form: str = "openhands-v1") -> Path:
    path = folder / "tiny.toml"
    path.write_text(SCRIPT.format(format=form, turns=turns), encoding="utf-8")
    return path


def contents(path: Path) -> dict[str, str]:
    """{relative name: text} of a recorded session, a folder or one file."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_text(encoding="utf-8") for file in files}


# One of each format; neither uses git or make, whose wording depends on their version.
@pytest.mark.parametrize("name", ["replay/print-spool", "calibration/seed-inventory.json"])
def test_recording_again_gives_the_committed_session(name: str, tmp_path: Path) -> None:
    written = recorder.record(SCRIPTS / f"{Path(name).stem}.toml", tmp_path)
    assert written == tmp_path / name
    assert contents(written) == contents(SAMPLES / name)


def test_a_command_keeps_the_folder_of_the_one_before(tmp_path: Path) -> None:
    with Workspace() as workspace:
        workspace.bash("mkdir inner && cd inner && exit 0")
        outcome = workspace.bash("pwd; echo oops >&2; false")
        held = workspace.root
    assert outcome.text == "/workspace/inner\noops"
    assert (outcome.working_dir, outcome.exit_code) == ("/workspace/inner", 1)
    assert not held.exists()


def test_only_unittests_seconds_are_normalised() -> None:
    with Workspace() as workspace:
        outcome = workspace.bash("echo 'Ran 3 tests in 1.234s'; echo 'waited 1.234s'")
    assert outcome.text == "Ran 3 tests in 0.000s\nwaited 1.234s"


def test_the_environment_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_SECRET", "value")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    with Workspace() as workspace:
        names = workspace.bash("env").text
    assert "LEADLINE_SECRET" not in names
    assert "Somebody" not in names


def test_editor_errors_change_nothing() -> None:
    with Workspace() as workspace:
        workspace.write("/workspace/a.txt", "x x\n")
        assert workspace.replace("/workspace/a.txt", "x", "y").is_error
        assert workspace.replace("/workspace/b.txt", "x", "y").is_error
        assert workspace.insert("/workspace/a.txt", 2, "y").is_error
        assert workspace.create("/workspace/a.txt", "y").is_error
        assert workspace.view("/workspace/a.txt", (1, 2)).is_error
        assert workspace.bash("cat a.txt").text == "x x"


def test_editor_insert_and_view_number_the_lines() -> None:
    with Workspace() as workspace:
        workspace.create("/workspace/a.txt", "one\nthree\n")
        inserted = workspace.insert("/workspace/a.txt", 1, "two")
        viewed = workspace.view("/workspace/a.txt", (2, 3))
    assert inserted.new_content == "one\ntwo\nthree\n"
    assert viewed.text.splitlines()[1:] == ["     2\ttwo", "     3\tthree"]


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspace/../out.txt"])
def test_a_path_outside_the_workspace_is_refused(path: str) -> None:
    with Workspace() as workspace, pytest.raises(UsageError, match="leaves its workspace"):
        workspace.view(path, None)


def test_v1_parallel_calls_share_the_response_and_come_before_their_results(tmp_path: Path) -> None:
    folder = recorder.record(script(tmp_path, BASH), tmp_path / "out")
    events = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "events").iterdir())]
    kinds = ["SystemPromptEvent", "MessageEvent", *["ActionEvent"] * 2, *["ObservationEvent"] * 2]
    assert [event["kind"] for event in events] == kinds
    first, second, *results = events[2:]
    assert first["llm_response_id"] == second["llm_response_id"]
    assert [event["tool_call_id"] for event in results] == [first["tool_call_id"], second["tool_call_id"]]
    assert [event["observation"]["exit_code"] for event in results] == [0, 3]
    assert results[0]["observation"]["content"][0]["text"] == "one"


def test_v0_events_carry_their_model_response_and_a_failed_edit_is_an_error(tmp_path: Path) -> None:
    path = recorder.record(script(tmp_path, EDITS, "openhands-v0"), tmp_path / "out")
    events = json.loads(path.read_text(encoding="utf-8"))
    assert [event["id"] for event in events] == list(range(len(events)))
    calls = [event for event in events if "tool_call_metadata" in event]
    assert [event.get("action") or event.get("observation") for event in calls] == ["edit", "edit", "edit", "error"]
    for action, result in zip(calls[::2], calls[1::2], strict=True):
        assert result["cause"] == action["id"]
        assert result["tool_call_metadata"] == action["tool_call_metadata"]
    assert calls[1]["extras"]["new_content"] == "two\n"
    message = calls[0]["tool_call_metadata"]["model_response"]["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"])["old_str"] == "one"


def test_a_second_condensation_counts_its_offset_in_the_condensed_view(tmp_path: Path) -> None:
    look = '[[turns]]\nsay = "Look."\nbash = "cat a.txt"\n'
    turns = look * 3 + "[[turns]]\ncondense = { forget = [1, 2], summary = 'S1' }\n"
    turns += look * 2 + "[[turns]]\ncondense = { forget = [5, 5], summary = 'S2' }\n"
    folder = recorder.record(script(tmp_path, turns), tmp_path / "out")
    events = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "events").iterdir())]
    found = [event for event in events if event["kind"] == "Condensation"]
    # Before the second summary stand the system prompt, the task, the first summary and the two events of turn 3.
    assert [(len(event["forgotten_event_ids"]), event["summary_offset"]) for event in found] == [(4, 2), (2, 5)]


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ('[[turns]]\nuser = "Hi."\nsay = "Hello."\n', "one user message"),
        ('[[turns]]\nsay = "x"\nbash = "ls"\nthink = "y"\n', "at most one kind of call"),
        (BASH + '[[turns]]\ncondense = { forget = [1, 2], summary = "s" }\n', "must lie before"),
        (BASH * 2 + "[[turns]]\ncondense = { forget = [1, 1], summary = 's' }\n" * 2, "forgotten already"),
        ('[[turns]]\nsay = "x"\nrun = "ls"\n', "Extra inputs"),
        ("[[turns]\n", "TOML"),
    ],
)
def test_a_broken_script_is_explained(turns: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=found):
        load(script(tmp_path, turns))


def test_condensation_is_refused_where_it_has_no_form(tmp_path: Path) -> None:
    turns = BASH + '[[turns]]\ncondense = { forget = [1, 1], summary = "s" }\n'
    with pytest.raises(UsageError, match="openhands-v1 format only"):
        load(script(tmp_path, turns, "openhands-v0"))


def test_the_recorder_does_not_overwrite(tmp_path: Path) -> None:
    path = script(tmp_path, BASH)
    recorder.record(path, tmp_path / "out")
    with pytest.raises(UsageError, match="does not overwrite"):
        recorder.record(path, tmp_path / "out")


def test_stamps_repeat_for_a_name_and_differ_between_names() -> None:
    one, again, other = Stamps("a"), Stamps("a"), Stamps("b")
    assert (one.uuid(), one.time()) == (again.uuid(), again.time())
    assert other.uuid() != Stamps("a").uuid()
    assert one.time() < one.time()


def test_the_command_names_an_unknown_script_and_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leadline.sessions.recorder", str(tmp_path), "tide-tabel"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tide-table" in done.stderr
    assert "Traceback" not in done.stderr
