"""The completion-log reader: last files, directories, attempts, condensation, text-form calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from session_logs import chat, completion, says

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session, View


def write(root: Path, logs: list[dict[str, Any]], name: str = "model") -> Path:
    """Logs as files whose names sort backwards: order must come from the time stamps inside."""
    root.mkdir(parents=True, exist_ok=True)
    for number, log in enumerate(logs):
        (root / f"{name}-{900 - number}.5.json").write_text(json.dumps(log))
    return root


def sessions(root: Path, view: View = "condensed") -> list[Session]:
    found = discover(root, view)
    assert [item.reason for item in found.skipped] == []
    return list(found.sessions)


def grow(first: int, last: int, start: str = "Task.", at: float = 0.0) -> list[dict[str, Any]]:
    """One log for each call of an attempt of `last - first + 1` turns."""
    return [completion(chat(n, start), says(n), at + n) for n in range(first, last + 1)]


def test_one_file_is_a_whole_session(tmp_path: Path) -> None:
    (session,) = sessions(write(tmp_path / "d", [completion(chat(3), says(3), 1.0)]))
    assert (session.format, session.id) == ("oh-v0-llm-completion-last", "model-900.5")
    assert (len(session.steps), len(session.segments[0].messages)) == (4, 9)
    assert session.steps[-1].message.tool_calls[0].id == "c3"
    assert (len(session.tools), session.tools_complete, session.notes) == (1, True, ())


def test_a_directory_of_calls_is_one_session(tmp_path: Path) -> None:
    (session,) = sessions(write(tmp_path / "d", grow(0, 4)))
    assert (session.format, session.id, len(session.steps), len(session.segments)) == (
        "oh-v0-llm-completions-dir",
        "d",
        5,
        1,
    )


def test_last_files_of_several_tasks_are_sessions_of_their_own(tmp_path: Path) -> None:
    for task in ("a", "b", "c"):
        write(tmp_path / "d", [completion(chat(2, task), says(2), 1.0)], name=task)
    found = sessions(tmp_path)
    assert [(session.id, session.format) for session in found] == [
        (f"d/{task}-900.5", "oh-v0-llm-completion-last") for task in "abc"
    ]
    assert len({session.source for session in found}) == 3


def test_attempts_are_told_apart(tmp_path: Path) -> None:
    first, second, third = sessions(write(tmp_path / "d", grow(0, 3) + grow(0, 5, at=100.0) + grow(0, 0, at=200.0)))
    assert [session.id for session in (first, second, third)] == ["d#attempt-1", "d#attempt-2", "d#attempt-3"]
    assert [len(session.steps) for session in (first, second, third)] == [4, 6, 1]
    assert len({session.source for session in (first, second)}) == 1, "attempts share their source"


def test_a_repeated_prompt_is_no_attempt(tmp_path: Path) -> None:
    logs = [completion(chat(0), {"role": "assistant", "content": "lost"}, 0.0), *grow(0, 2, at=1.0)]
    (session,) = sessions(write(tmp_path / "d", logs))
    assert len(session.steps) == 3
    assert [note.reason for note in session.notes] == ["the same prompt was sent again; this answer was not used"]


def condensed() -> list[dict[str, Any]]:
    """Five calls, then a prompt of which the first four turns became a summary, then one more call."""
    summary = [{"role": "user", "content": "Summary."}]
    short = chat(0) + summary + chat(5)[-2:]
    later = [*short, {"role": "assistant", "content": "six"}, {"role": "user", "content": "Go on."}]
    logs = [*grow(0, 4), completion(short, {"role": "assistant", "content": "six"}, 10.0)]
    return [*logs, completion(later, {"role": "assistant", "content": "seven"}, 11.0)]


def test_condensation_opens_a_segment(tmp_path: Path) -> None:
    root = write(tmp_path / "d", condensed())
    (session,) = sessions(root)
    assert [(len(segment.messages), segment.carried) for segment in session.segments] == [(11, 0), (8, 5)]
    said = [step.message.content for step in session.steps]
    assert said == ["turn 0", "turn 1", "turn 2", "turn 3", "turn 4", "six", "seven"]
    (full,) = sessions(root, "full")
    assert len(full.segments) == 1
    assert [step.message.content for step in full.steps] == said
    assert full.segments[0].messages[11].role == "tool", "the result of the last call before the condensation is kept"


def test_structured_form_is_preferred(tmp_path: Path) -> None:
    text = [{"role": "user", "content": "Task. <function=run>"}]
    log = completion(text, {"role": "assistant", "content": "<function=run>"}, 1.0)
    log["fncall_messages"] = chat(1)
    log["fncall_response"] = {"choices": [{"message": says(1)}]}
    (session,) = sessions(write(tmp_path / "d", [log]))
    assert [len(step.message.tool_calls) for step in session.steps] == [1, 1]


def test_time_stamp_from_the_name(tmp_path: Path) -> None:
    root = tmp_path / "d"
    root.mkdir()
    for number in range(12):
        log = completion(chat(number), says(number), None)
        (root / f"m-{8 + number}.json").write_text(json.dumps(log))
    (session,) = sessions(root)
    assert (len(session.steps), len(session.segments)) == (12, 1)


def test_damaged_logs_are_listed(tmp_path: Path) -> None:
    root = write(tmp_path / "d", grow(0, 2))
    (root / "bad.json").write_text('{"messages": [{"role": "user"')
    (root / "odd.json").write_text(json.dumps({"messages": [], "response": None}))
    found = discover(root)
    assert len(found.sessions) == 1
    assert [(Path(item.path).name, item.kind) for item in found.skipped] == [
        ("bad.json", "broken"),
        ("odd.json", "other"),
    ]
