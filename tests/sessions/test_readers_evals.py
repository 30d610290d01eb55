"""Evaluation records: the histories they hold, the task they name, and what is said when something is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from session_forms import PAIRS, RESOLVER, V0, V1, lines
from session_logs import v0_run, v1_action, v1_result, v1_system

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session


def read(tmp_path: Path, *records: Any) -> list[Session]:
    (tmp_path / "output.jsonl").write_bytes(lines(list(records)))
    found = discover(tmp_path)
    assert found.skipped == ()
    return list(found.sessions)


def shape(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in session.segments[0].messages]


def test_v0_history_reads_as_a_trajectory_does(tmp_path: Path) -> None:
    (record,) = read(tmp_path, {"instance_id": "i", "instruction": "Other words.", "history": V0})
    (tmp_path / "output.jsonl").unlink()
    (tmp_path / "t.json").write_bytes(lines([V0]))
    (trajectory,) = discover(tmp_path).sessions
    assert record.sha256 == trajectory.sha256, "the instruction is not added where a user message is"
    assert record.format == "oh-v0-eval-output"


def test_pairs(tmp_path: Path) -> None:
    (session,) = read(tmp_path, {"question_id": 3, "history": PAIRS})
    assert session.format == "oh-v0-eval-pairs"
    assert shape(session) == [
        ("user", "Do it."),
        ("assistant", "Look.\n<execute_bash>\nls\n</execute_bash>"),
        ("user", "OBSERVATION:\na.py\n[Command None finished with exit code 0]"),
        ("assistant", "Done."),
    ]


def test_resolver(tmp_path: Path) -> None:
    (session,) = read(tmp_path, {"issue": {"number": 1}, "history": RESOLVER, "success": True})
    assert session.format == "oh-v0-resolver-output"
    assert shape(session) == [
        ("user", "Fix it."),
        ("assistant", "Look.\n<execute_bash>\nls\n</execute_bash>"),
        ("user", "OBSERVATION:\na.py\n[Command -1 finished with exit code 0]"),
        ("assistant", "All done."),
    ]


def test_instruction_is_the_first_user_message_where_there_is_none(tmp_path: Path) -> None:
    acts = [v1_action("a", "r"), v1_result("o", "a")]
    bare, with_system, whole = read(
        tmp_path,
        {"instance_id": "a", "instruction": "The task.", "history": acts},
        {"instance_id": "b", "instruction": "The task.", "history": [v1_system(), *acts]},
        {"instance_id": "c", "instruction": "The task.", "history": V1},
    )
    assert [role for role, _ in shape(bare)] == ["user", "assistant", "tool"]
    assert shape(with_system)[:2] == [("system", "Be good."), ("user", "The task.")]
    assert shape(whole)[1] == ("user", "Do it.")
    for session in (bare, with_system):
        assert [note.where for note in session.notes if note.kind == "repaired"] == ["instruction"]
    assert bare.source == with_system.source != whole.source
    (v0,) = read(tmp_path, {"instance_id": "d", "instruction": "The task.", "history": v0_run(2, "c")})
    assert shape(v0)[0] == ("user", "The task.")


def test_empty_histories_and_errors_are_said(tmp_path: Path) -> None:
    empty, failed = read(
        tmp_path,
        {"instance_id": "a", "history": [], "metrics": {}},
        {"instance_id": "b", "history": V0, "error": "RuntimeError: too\nmany steps"},
    )
    assert (len(empty.steps), empty.segments[0].messages) == (0, ())
    assert any("history is empty" in note.reason for note in empty.notes)
    assert any(note.reason.endswith("error: RuntimeError: too many steps") for note in failed.notes)


def test_strays_in_a_history_are_noted(tmp_path: Path) -> None:
    (session,) = read(tmp_path, {"instance_id": "a", "history": [*V1, None, {"x": 1}], "metrics": {}})
    assert [(note.where, note.reason) for note in session.notes if note.kind == "dropped"] == [
        ("item 8", "not an OpenHands V1 event"),
        ("item 9", "not an OpenHands V1 event"),
    ]


def test_images_reach_no_prompt_by_way_of_commands_or_summaries(tmp_path: Path) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    act = {"command": f"echo {image}", "thought": image, "action": "run"}
    result = {"content": "x", "observation": "run", "metadata": {"prefix": image}, "exit_code": 0}
    (session,) = read(tmp_path, {"issue": {}, "history": [RESOLVER[0], act, result]})
    assert not any("base64" in text for _, text in shape(session))
    assert any(note.kind == "image" for note in session.notes)
    events = [*V1[:-2], {**V1[-2], "summary": f"Sum. {image}"}, V1[-1]]
    (session,) = read(tmp_path, {"instance_id": "i", "history": events})
    assert session.segments[1].messages[2].content == "Sum. [image]"
