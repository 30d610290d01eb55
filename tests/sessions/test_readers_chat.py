"""The chat-record reader: content forms, calls as strings and objects, JSON lines, records it must leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_logs import SCHEMA, call, chat

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session


def read(tmp_path: Path, record: Any) -> Session:
    (tmp_path / "r.json").write_text(json.dumps(record))
    found = discover(tmp_path / "r.json")
    assert [item.reason for item in found.skipped] == []
    (session,) = found.sessions
    return session


@pytest.mark.parametrize("key", ["messages", "trajectory"])
@pytest.mark.parametrize("packed", [False, True])
def test_records(tmp_path: Path, key: str, packed: bool) -> None:
    messages: Any = json.dumps(chat(3)) if packed else chat(3)
    tools: Any = json.dumps([SCHEMA]) if packed else [SCHEMA]
    session = read(tmp_path, {"instance_id": "x__y-1", key: messages, "tools": tools})
    assert (session.format, session.id, len(session.steps)) == ("chat-openai-tools", "r", 3)
    assert (len(session.segments), len(session.segments[0].messages)) == (1, 8)
    assert session.tools == (SCHEMA,)
    assert session.notes == ()


def test_chained_records_are_called_so(tmp_path: Path) -> None:
    assert read(tmp_path, {"repo": "chained", "trajectory": chat(1)}).format == "chat-openai-tools-chained"


def test_content_and_argument_forms(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call("1", '{"x":1,  "y": "é"}')]},
        {"role": "tool", "tool_call_id": "1", "content": None},
        {"role": "assistant", "content": [], "tool_calls": [call("2", {"x": "é"})]},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": "  ", "tool_calls": [call("3", "")]},
        {"role": "tool", "content": "by order"},
        {"role": "assistant", "content": "", "tool_calls": [call("4", '{"x": ')]},
        {"role": "assistant", "content": "", "tool_calls": [call("5", None)]},
        {"role": "assistant", "content": "end", "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": None, "function_call": {"name": "old", "arguments": "{}"}},
    ]
    session = read(tmp_path, {"messages": messages})
    held = session.segments[0].messages
    assert [message.content for message in held] == ["a\nb", "", "", "", "t", "  ", "by order", "", "", "end", ""]
    arguments = [made.arguments for message in held for made in message.tool_calls]
    assert arguments == ['{"x":1,  "y": "é"}', '{"x": "é"}', "", '{"x": ', "{}", "{}"]
    assert held[3].tool_calls[0].parsed() == {"x": "é"}
    assert held[7].tool_calls[0].parsed() is None
    assert held[6].tool_call_id == "3"
    verbatim = [note.where for note in session.notes if "kept verbatim" in note.reason]
    assert verbatim == ["message 5", "message 7"]
    assert len(session.steps) == 7


def test_orphan_results_and_strange_messages(tmp_path: Path) -> None:
    stray = [{"role": "tool", "tool_call_id": "zzz", "content": "stray"}, None, 3, {"role": "assistant"}]
    session = read(tmp_path, {"messages": [*chat(1), *stray]})
    assert [m.role for m in session.segments[0].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert [note.where for note in session.notes if note.kind == "dropped"] == ["message 5", "message 6"]
    assert [note.where for note in session.notes if note.kind == "repaired"] == ["message 4"]


def test_json_lines(tmp_path: Path) -> None:
    good = json.dumps({"messages": chat(2)})
    lines = [good, "", "{broken", "null", json.dumps({"a": 1}), good.replace("Task.", "Other.") + "\r"]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    found = discover(tmp_path)
    assert [session.id for session in found.sessions] == ["r#line-1", "r#line-6"]
    assert [(item.path.rsplit("#")[-1], item.kind) for item in found.skipped] == [
        ("line-3", "broken"),
        ("line-4", "broken"),
        ("line-5", "other"),
    ]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"kind": "PauseEvent", "id": "1", "source": "user"}, "OpenHands V1 event outside"),
        ({"action": "run", "args": {}, "id": 3}, "OpenHands V0 event outside"),
        ({"id": "a", "content": [{"class_": "text_observation", "content": "x"}]}, "standardised record"),
    ],
)
def test_known_formats_that_are_not_read_are_named(tmp_path: Path, document: Any, reason: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps(document))
    found = discover(tmp_path)
    assert found.sessions == ()
    (item,) = found.skipped
    assert item.kind == "unsupported"
    assert item.reason.startswith(reason)


@pytest.mark.parametrize(
    "document",
    [
        *(None, 3, "text", [], {}, [1], [[]], {"messages": []}, {"messages": {"role": "user"}}, {"trajectory": "[1"}),
        {"messages": [{"role": ["user"], "content": "x"}]},
        {"messages": [{"role": "alien", "content": "x"}]},
    ],
)
def test_strangers_are_listed(tmp_path: Path, document: Any) -> None:
    (tmp_path / "r.json").write_text(json.dumps(document))
    found = discover(tmp_path)
    assert found.sessions == ()
    assert found.skipped[0].reason.startswith("not a session: a JSON")
