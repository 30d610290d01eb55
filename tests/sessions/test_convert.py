"""Writing sessions as ATIF and as chat records: valid files, nothing lost, nothing overwritten."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from atif import Trajectory
from session_forms import V1, lines
from session_logs import call, chat

from leadline.errors import UsageError
from leadline.sessions.convert import Target, write_sessions
from leadline.sessions.directory import discover
from leadline.sessions.schema import Message, Segment, Session, ToolCall, View

OUT = {"atif": "out", "chat": "out.jsonl"}


def session(*messages: Message, identity: str = "s", carried: int = 0) -> Session:
    held = Segment(messages=messages, carried=carried)
    return Session(id=identity, format="f", path="p", source="x", view="condensed", segments=(held,))


@pytest.fixture
def condensed(tmp_path: Path) -> Session:
    (tmp_path / "v1.jsonl").write_bytes(lines(V1))
    (found,) = discover(tmp_path / "v1.jsonl").sessions
    assert len(found.segments) == 2
    return found


def test_atif_files_are_valid(tmp_path: Path, condensed: Session) -> None:
    write_sessions([condensed], "atif", tmp_path / "out")
    first, second = json.loads((tmp_path / "out" / "v1.json").read_text())
    for document in (first, second):
        Trajectory.model_validate(document)
    assert first["continued_trajectory_ref"] == second["trajectory_id"] == "v1-2"
    assert first["session_id"] == second["session_id"] == "v1"
    copied = [step.get("is_copied_context", False) for step in second["steps"]]
    assert copied == sorted(copied, reverse=True), "what was carried stands first"
    assert any(copied)
    assert not any("is_copied_context" in step for step in first["steps"])


def test_chat_records_are_plain_messages(tmp_path: Path, condensed: Session) -> None:
    write_sessions([condensed], "chat", tmp_path / "out.jsonl")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["leadline"]["segment"] for record in records] == [0, 1]
    assert [message["role"] for message in records[0]["messages"]] == [
        message.role for message in condensed.segments[0].messages
    ]
    made = records[0]["messages"][2]["tool_calls"][0]
    assert made["function"]["arguments"] == '{"command":  "ls"}'
    assert isinstance(records[0]["tools"], list)


@pytest.mark.parametrize("target", ["atif", "chat"])
def test_segments_of_neighbouring_sessions_stay_apart(tmp_path: Path, condensed: Session, target: Target) -> None:
    other = condensed.model_copy(update={"id": "other"})
    again = session(Message(role="user", content="hi"), Message(role="assistant", content="yo"), identity="third")
    write_sessions([condensed, other, again], target, tmp_path / OUT[target])
    found = discover(tmp_path / OUT[target]).sessions
    assert Counter(one.sha256 for one in found) == Counter(one.sha256 for one in (condensed, other, again))


@pytest.mark.parametrize("target", ["atif", "chat"])
@pytest.mark.parametrize(
    "arguments", ['{"a":1}', '{ "a" : 1 }', "", "not json", '{"a": 1', "[1]", "null", '{"a": "é\\u00e9"}', '{"a":1e2}',
                  '{"a": NaN}', '{"x": ' + "[" * 300 + "]" * 300 + "}"]
)  # fmt: skip
def test_arguments_survive_as_recorded(tmp_path: Path, target: Target, arguments: str) -> None:
    made = Message(role="assistant", tool_calls=(ToolCall(id="c", name="run", arguments=arguments),))
    before = session(Message(role="user", content=""), made, Message(role="tool", tool_call_id="c", name="other"))
    write_sessions([before], target, tmp_path / OUT[target])
    (after,) = discover(tmp_path / OUT[target]).sessions
    assert after.segments == before.segments


def test_names_of_files_are_harmless_and_distinct(tmp_path: Path) -> None:
    said = Message(role="assistant", content="x")
    ids = ["../../etc/passwd", "/abs", "a/b#c", "a_b#c", "a_b_c", "A_B_C", "...", "", "é" * 300, "x" * 300]
    write_sessions([session(said, identity=identity) for identity in ids], "atif", tmp_path / "out")
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert len({name.casefold() for name in names}) == len(ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert all(not name.startswith(".") and len(name.encode()) < 255 for name in names), names
    assert len(discover(tmp_path / "out").sessions) == len(ids)


def test_nothing_is_overwritten_or_left_behind(tmp_path: Path) -> None:
    said = session(Message(role="assistant", content="x"))
    (tmp_path / "out.jsonl").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    for target in ("atif", "chat"):
        with pytest.raises(UsageError, match="there is something already"):
            write_sessions([said], target, tmp_path / OUT[target])
    with pytest.raises(UsageError, match="there is something already"):
        write_sessions([said], "chat", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert write_sessions([said], "atif", tmp_path / "empty") == 1

    def breaks() -> Iterator[Session]:
        yield said
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sessions(breaks(), "chat", tmp_path / "half.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "out", "out.jsonl"]
    with pytest.raises(UsageError, match="cannot be written"):
        write_sessions([said], "chat", tmp_path / "out.jsonl" / "x.jsonl")


@pytest.mark.parametrize("view", ["condensed", "full"])
def test_every_recorded_session_survives_both_ways(tmp_path: Path, view: View) -> None:
    named = os.environ.get("LEADLINE_RECORDINGS")
    if not named:
        pytest.skip("LEADLINE_RECORDINGS is not set: no recorded sessions to convert")
    before = discover(named, view).sessions
    targets: tuple[Target, ...] = ("atif", "chat")
    for target in targets:
        out = tmp_path / OUT[target]
        assert write_sessions(before, target, out) == len(before) == 205
        after = discover(out, view)
        assert after.skipped == ()
        assert Counter(one.sha256 for one in after.sessions) == Counter(one.sha256 for one in before)
        sources = [Counter(one.source for one in group if one.steps) for group in (before, after.sessions)]
        assert sources[0] == sources[1], "a session without words is named after its own file"


def test_a_foreign_leadline_object_is_no_danger(tmp_path: Path) -> None:
    own = {"session": 3, "segment": "x", "segments": [], "carried": 10**9, "tools_complete": "yes"}
    record = {"messages": [*chat(1), {"role": "assistant", "tool_calls": [call("z")]}], "leadline": own}
    (tmp_path / "c.jsonl").write_bytes(lines([record, record]))
    found = discover(tmp_path).sessions
    assert [len(one.segments) for one in found] == [1, 1]
    assert found[0].segments[0].carried == len(found[0].segments[0].messages)
