"""Sessions of one event a line: Claude Code, Codex, OpenHands events with noise between them, chat messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from session_forms import (
    CLAUDE,
    CODEX,
    V1,
    claude,
    claude_result,
    claude_use,
    codex,
    codex_item,
    codex_says,
    dump,
    lines,
)

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session


def read(tmp_path: Path, values: list[Any], name: str = "s.jsonl", view: Any = "condensed") -> Session:
    (tmp_path / name).write_bytes(lines(values))
    (session,) = discover(tmp_path / name, view).sessions
    return session


def shape(session: Session, segment: int = 0) -> list[tuple[str, str, int]]:
    return [(m.role, m.content, len(m.tool_calls)) for m in session.segments[segment].messages]


def reasons(session: Session, kind: str) -> list[str]:
    return [note.reason for note in session.notes if note.kind == kind]


def test_claude_blocks_of_one_response_are_one_step(tmp_path: Path) -> None:
    session = read(tmp_path, CLAUDE)
    assert shape(session) == [
        ("user", "Do it.", 0),
        ("assistant", "Look.", 1),
        ("tool", "a.py", 0),
        ("assistant", "Done.", 0),
    ]
    call = session.steps[0].message.tool_calls[0]
    assert (call.id, call.name, call.parsed()) == ("t1", "Bash", {"command": "ls"})
    assert session.segments[0].messages[2].name == "Bash"
    assert not session.tools_complete
    assert "1 thinking block(s) are not part of the messages" in reasons(session, "info")
    assert set(reasons(session, "missing")) == {"no tools are recorded", "no system prompt is recorded"}
    assert "lines that hold no message: summary (1)" in reasons(session, "info")


def test_claude_parallel_results_hang_beside_the_way(tmp_path: Path) -> None:
    both = {"message": {"id": "r1"}}
    session = read(
        tmp_path,
        [
            claude("user", 1, "Do it."),
            claude("assistant", 2, [claude_use("t1")], **both),
            claude("assistant", 3, [claude_use("t2")], **both),
            claude("user", 4, [claude_result("t1", "one")], parent=2),
            claude("user", 5, [claude_result("t2", "two")], parent=3),
            claude("assistant", 6, "Done."),
        ],
    )
    assert shape(session)[1:] == [
        ("assistant", "", 2),
        ("tool", "one", 0),
        ("tool", "two", 0),
        ("assistant", "Done.", 0),
    ]
    assert not any("rewound" in reason for reason in reasons(session, "info"))


def test_claude_rewound_branches_are_left_out(tmp_path: Path) -> None:
    session = read(
        tmp_path,
        [
            claude("user", 1, "Do it."),
            claude("assistant", 2, "Wrong way."),
            claude("user", 3, "No."),
            claude("user", 4, "Do it well.", parent=0),
            claude("assistant", 5, "Right."),
        ],
    )
    assert shape(session) == [("user", "Do it well.", 0), ("assistant", "Right.", 0)]
    assert "3 line(s) of branches that were rewound are left out" in reasons(session, "info")


def test_claude_cycles_and_missing_parents_end(tmp_path: Path) -> None:
    loop = [claude("user", 1, "Do it.", parent=2), claude("assistant", 2, "Done.")]
    assert len(read(tmp_path, loop).steps) == 1
    gap = [claude("user", 1, "Do it."), claude("assistant", 2, "Done.", parent=77)]
    session = read(tmp_path, gap)
    assert len(session.segments[0].messages) == 2
    assert reasons(session, "repaired") == ["parent 'u77' is not in the log; the line before is taken"]


def test_claude_sub_agents_are_sessions_of_their_own(tmp_path: Path) -> None:
    values = [
        *CLAUDE,
        claude("user", 11, "Sub task.", parent=0, isSidechain=True, agentId="ab"),
        claude("assistant", 12, "Sub done.", isSidechain=True, agentId="ab"),
    ]
    (tmp_path / "s.jsonl").write_bytes(lines(values))
    main, sub = discover(tmp_path / "s.jsonl").sessions
    assert (main.id, sub.id) == ("s", "s#agent-ab")
    assert shape(sub) == [("user", "Sub task.", 0), ("assistant", "Sub done.", 0)]
    assert len(main.steps) == 2
    alone = read(tmp_path, values[-2:], "agent-ab.jsonl")
    assert (alone.id, len(alone.steps)) == ("agent-ab", 1)


def test_claude_compaction_opens_a_segment(tmp_path: Path) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "u7", "parentUuid": None}
    values = [
        *CLAUDE,
        {**boundary, "logicalParentUuid": "u6"},
        claude("user", 8, "This session continues: all was done.", isCompactSummary=True),
        claude("assistant", 9, "Go on."),
    ]
    session = read(tmp_path, values)
    assert [len(segment.messages) for segment in session.segments] == [4, 2]
    assert shape(session, 1)[0][1].startswith("This session continues")
    assert len(session.steps) == 3
    full = read(tmp_path, values, view="full")
    assert [len(segment.messages) for segment in full.segments] == [6]
    assert len(full.steps) == 3


def test_claude_stream_output_and_made_up_answers(tmp_path: Path) -> None:
    values: list[Any] = [
        {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"]},
        {"type": "user", "session_id": "s", "message": {"role": "user", "content": "Do it."}},
        {
            "type": "assistant",
            "session_id": "s",
            "message": {"id": "r1", "content": [{"type": "text", "text": "Yes."}]},
        },
        {"type": "assistant", "session_id": "s", "message": {"id": "r2", "model": "<synthetic>", "content": "Error"}},
        {"type": "result", "session_id": "s", "result": "Yes."},
    ]
    session = read(tmp_path, values)
    assert shape(session) == [("user", "Do it.", 0), ("assistant", "Yes.", 0)]
    assert any("made up" in reason for reason in reasons(session, "info"))


def test_claude_broken_line_is_a_loss(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(lines(CLAUDE) + b'{"type": "assistant", "uu')
    (session,) = discover(tmp_path / "s.jsonl").sessions
    assert len(session.steps) == 2
    (lost,) = [note for note in session.notes if note.kind == "dropped"]
    assert lost.where == "line 8"
    assert lost.reason.startswith("JSON is cut off")


def test_codex_items(tmp_path: Path) -> None:
    session = read(tmp_path, CODEX)
    assert shape(session) == [
        ("system", "Be good.", 0),
        ("system", "Sandbox rules.", 0),
        ("user", "Do it.", 0),
        ("assistant", "Look.", 1),
        ("tool", "a.py", 0),
        ("assistant", "", 1),
        ("tool", "ok", 0),
        ("assistant", "Done.", 0),
    ]
    first, second = (step.message.tool_calls[0] for step in session.steps[:2])
    assert (first.name, first.arguments) == ("shell", '{"command":  ["ls"]}')
    assert (second.name, second.parsed()) == ("apply_patch", {"input": "*** Begin"})
    assert "items that are no part of the messages: reasoning (1)" in reasons(session, "info")
    assert reasons(session, "dropped") == []


def test_codex_before_the_envelope(tmp_path: Path) -> None:
    bare = [line["payload"] for line in CODEX if line["type"] == "response_item"]
    session = read(tmp_path, [{"id": "x", "timestamp": "t", "instructions": None}, {"record_type": "state"}, *bare])
    assert session.format == "codex-rollout"
    assert shape(session) == shape(read(tmp_path, CODEX))[1:]
    assert reasons(session, "dropped") == []


@pytest.mark.parametrize("rewritten", [False, True])
def test_codex_compaction(tmp_path: Path, rewritten: bool) -> None:
    history = [codex_says("user", "Do it.")["payload"], codex_says("user", "Summary.")["payload"]]
    payload = {"message": "Summary.", **({"replacement_history": history} if rewritten else {})}
    values = [*CODEX, codex("compacted", **payload), codex_says("user", "Go on."), codex_says("assistant", "Yes.")]
    session = read(tmp_path, values)
    assert len(session.segments) == 2
    opening = [] if rewritten else [("system", "Be good.", 0), ("system", "Sandbox rules.", 0)]
    assert shape(session, 1) == [
        *opening,
        ("user", "Do it.", 0),
        ("user", "Summary.", 0),
        ("user", "Go on.", 0),
        ("assistant", "Yes.", 0),
    ]
    assert len(session.steps) == len(read(tmp_path, values, view="full").steps) == 4


def test_codex_shell_calls_and_unknown_lines(tmp_path: Path) -> None:
    shell = codex_item("local_shell_call", call_id="c9", action={"type": "exec", "command": ["ls"]})
    values = [CODEX[2], shell, codex_item("function_call_output", call_id="c9", output={"content": "x"}), {"odd": 1}]
    session = read(tmp_path, values)
    assert shape(session) == [("user", "Do it.", 0), ("assistant", "", 1), ("tool", "x", 0)]
    assert session.steps[0].message.tool_calls[0].name == "local_shell"
    assert reasons(session, "dropped") == ["a line of type None"]


def test_events_between_noise(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"\x1b[1mhello\x1b[0m\n[1, 2\n" + lines(V1[:4]) + b'{"kind": "ActionEv\n')
    (session,) = discover(tmp_path / "out.txt").sessions
    assert len(session.steps) == 1
    assert "2 line(s) that are no JSON were skipped" in reasons(session, "info")
    assert len(reasons(session, "dropped")) == 1


def test_one_event_is_no_session_but_a_line_of_them_is(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(dump(V1[1]))
    assert discover(tmp_path).skipped[0].reason.startswith("OpenHands V1 event outside")
    (tmp_path / "e.json").write_bytes(lines([V1[1], {"a": 1}, 3]))
    (session,) = discover(tmp_path).sessions
    assert session.steps == ()
    assert [note.where for note in session.notes if note.kind == "dropped"] == ["line 2", "line 3"]
