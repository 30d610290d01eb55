"""The OpenHands V1 reader, rule by rule: grouping, matching, condensation, holes and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_logs import v1, v1_action, v1_condensation, v1_message, v1_result, v1_system, write_v1

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session, View

START = [v1_system(), v1_message("u", "Do it.")]


def read(tmp_path: Path, events: list[Any], view: View = "condensed", **options: Any) -> Session:
    found = discover(write_v1(tmp_path / "s", events, **options), view)
    assert [item.reason for item in found.skipped] == []
    (session,) = found.sessions
    return session


def shape(session: Session, segment: int = 0) -> str:
    return " ".join(message.role[0] for message in session.segments[segment].messages)


def notes(session: Session, kind: str) -> list[str]:
    return [f"{note.where}: {note.reason}" for note in session.notes if note.kind == kind]


def test_plain_session(tmp_path: Path) -> None:
    session = read(
        tmp_path, [*START, v1_action("a", "r1", "Look."), v1_result("o", "a"), v1_message("b", "Done", "assistant")]
    )
    system, user, turn, result, last = session.segments[0].messages
    assert (session.format, session.id, session.view, session.notes) == ("oh-v1-session-dir", "s", "condensed", ())
    assert (system.content, user.content, turn.content, result.content, last.content) == (
        "Be good.",
        "Do it.",
        "Look.",
        "out",
        "Done",
    )
    assert turn.tool_calls[0].arguments == '{"command":  "ls"}', "arguments are not re-serialised"
    assert (result.role, result.tool_call_id, result.name) == ("tool", "c-a", "run")
    assert [step.position for step in session.steps] == [2, 4]
    assert session.prompt(session.steps[1]) == session.segments[0].messages[:4]
    assert session.tools[0]["function"]["name"] == "run"
    assert session.tools_complete


def test_nested_calls_of_the_first_schema_read_the_same(tmp_path: Path) -> None:
    flat = read(tmp_path / "1", [*START, v1_action("a", "r1")])
    nested = read(tmp_path / "2", [*START, v1_action("a", "r1", flat=False)])
    assert flat.segments == nested.segments
    assert flat.sha256 == nested.sha256


@pytest.mark.parametrize("order", ["a b o p", "a o b p", "a b p o"])
def test_parallel_calls_are_one_step_in_any_order_on_disk(tmp_path: Path, order: str) -> None:
    by_name = {"a": v1_action("a", "r1", "Both."), "b": v1_action("b", "r1"),
               "o": v1_result("o", "a", "from a"), "p": v1_result("p", "b", "from b")}  # fmt: skip
    session = read(tmp_path, [*START, *(by_name[name] for name in order.split()), v1_message("z", "Done", "assistant")])
    assert shape(session) == "s u a t t a"
    assert len(session.steps) == 2
    turn = session.steps[0].message
    assert (turn.content, [call.id for call in turn.tool_calls]) == ("Both.", ["c-a", "c-b"])
    logged = [result.content for result in session.segments[0].messages[3:5]]
    assert logged == (["from b", "from a"] if order == "a b p o" else ["from a", "from b"])


def test_turns_of_different_responses_stay_apart(tmp_path: Path) -> None:
    events = [v1_action("a", "r1"), v1_result("o", "a"), v1_action("b", "r2"), v1_result("p", "b")]
    assert shape(read(tmp_path / "1", [*START, *events])) == "s u a t a t"
    events = [v1_action("a", None), v1_action("b", None), v1_result("o", "a"), v1_result("p", "b")]
    assert shape(read(tmp_path / "2", [*START, *events])) == "s u a t a t", "no response id: a response of its own"
    events = [v1_action("a", "r"), v1_result("o", "a"), v1_message("m", "hm", "assistant"), v1_action("b", "r")]
    assert shape(read(tmp_path / "3", [*START, *events])) == "s u a t a a", "a reused response id does not go back"


def test_call_ids_reused_in_later_turns_match_the_latest(tmp_path: Path) -> None:
    events = []
    for turn in ("a", "b"):
        reused = {"id": "call_0", "name": "run", "arguments": "{}"}
        events.append(v1_action(turn, f"r-{turn}", tool_call=reused, tool_call_id="call_0"))
        events.append(v1_result(f"o-{turn}", turn, f"of {turn}", tool_call_id="call_0"))
    session = read(tmp_path, [*START, *events])
    assert [message.content for message in session.segments[0].messages if message.role == "tool"] == ["of a", "of b"]


def test_consecutive_user_messages_merge(tmp_path: Path) -> None:
    session = read(tmp_path, [*START, v1_message("v", "And that."), v1_message("a", "Yes", "assistant")])
    assert [message.content for message in session.segments[0].messages] == ["Be good.", "Do it.\nAnd that.", "Yes"]


def test_message_parts_and_images(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image", "image_urls": ["data:image/png;base64,AAAA"]}]
    more = [{"type": "text", "text": "data:image/png;base64,QUJD end"}]
    session = read(tmp_path, [v1_system(), v1_message("u", parts, extended_content=more)])
    assert session.segments[0].messages[1].content == "See\n[image]\n[image] end"
    assert len(notes(session, "image")) == 2


def test_dynamic_context_is_a_second_part_of_the_system_prompt(tmp_path: Path) -> None:
    session = read(tmp_path, [v1_system(dynamic_context={"type": "text", "text": "Today."}), START[1]])
    assert session.segments[0].messages[0].content == "Be good.\nToday."


def terminal(**fields: Any) -> dict[str, Any]:
    metadata = {"exit_code": 3, "working_dir": "/w", "py_interpreter_path": "/py", "prefix": "<", "suffix": ">"}
    return {"metadata": metadata, **fields}


TAIL = "\n[Current working directory: /w]\n[Python interpreter: /py]\n[Command finished with exit code 3]"


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (terminal(kind="TerminalObservation", content=[{"type": "text", "text": "x"}], is_error=False), "<x>" + TAIL),
        (
            terminal(kind="TerminalObservation", content=[{"type": "text", "text": "x"}], is_error=True),
            "[An error occurred during execution.]\n<x>" + TAIL,
        ),
        (terminal(kind="ExecuteBashObservation", output="x", error=False), "<x>" + TAIL),
        (
            terminal(kind="ExecuteBashObservation", output="x", error=True),
            "[There was an error during command execution.]\n<x>" + TAIL,
        ),
        ({"kind": "ExecuteBashObservation", "output": "x", "metadata": {"exit_code": -1}}, "x"),
        ({"kind": "StrReplaceEditorObservation", "output": "x", "old_content": "OLD", "new_content": "NEW"}, "x"),
        ({"kind": "StrReplaceEditorObservation", "output": "x", "error": "bad path"}, "bad path"),
        ({"kind": "StrReplaceEditorObservation", "output": "x", "error": ""}, "x"),
        ({"kind": "BrowserObservation", "output": "page", "error": None, "screenshot_data": "AAAA"}, "page"),
        ({"kind": "TaskTrackerObservation", "content": "2 tasks", "task_list": ["t"]}, "2 tasks"),
        ({"kind": "FinishObservation", "message": "bye"}, "bye"),
        ({"kind": "Whatever"}, ""),
        (None, ""),
    ],
)
def test_observation_texts(tmp_path: Path, observation: object, text: str) -> None:
    session = read(tmp_path, [*START, v1_action("a", "r"), v1_result("o", "a", observation=observation)])
    assert session.segments[0].messages[-1].content == text


def test_long_terminal_output_is_cut_and_other_text_is_not(tmp_path: Path) -> None:
    long = "h" * 20_000 + "t" * 20_000
    bash = {"kind": "ExecuteBashObservation", "output": long, "metadata": {}}
    editor = {"kind": "StrReplaceEditorObservation", "output": long}
    events = [v1_action("a", "r"), v1_result("o", "a", observation=bash)]
    events += [v1_action("b", "q"), v1_result("p", "b", observation=editor)]
    session = read(tmp_path, [*START, *events])
    cut, whole = (message.content for message in session.segments[0].messages if message.role == "tool")
    assert 29_998 <= len(cut) <= 30_000
    assert cut.startswith("hhh")
    assert cut.endswith("ttt")
    assert "<response clipped>" in cut
    assert whole == long
    assert notes(session, "truncated") == [
        "event 3: observation of 40000 characters cut to 30000, as the agent's prompt had it"
    ]


def test_errors_and_rejections_answer_their_calls(tmp_path: Path) -> None:
    error = v1("AgentErrorEvent", "e", error="no such tool", tool_name="run", tool_call_id="c-a")
    rejection = v1(
        "UserRejectObservation", "f", rejection_reason="no", action_id="b", tool_name="run", tool_call_id="c-b"
    )
    events = [v1_action("a", "r", action=None), error, v1_action("b", "q"), rejection]
    session = read(tmp_path, [*START, *events])
    assert [m.content for m in session.segments[0].messages if m.role == "tool"] == [
        "no such tool",
        "Action rejected: no",
    ]


def test_tool_definitions_without_schemas(tmp_path: Path) -> None:
    dump = {"title": "terminal", "description": "Run.", "action_type": "A", "annotations": {}, "kind": "TerminalTool"}
    session = read(tmp_path, [v1_system(tools=[dump]), START[1]])
    assert session.tools == ({"type": "function", "function": {"name": "terminal", "description": "Run."}},)
    assert not session.tools_complete
    assert notes(session, "missing") == ["event 0: tools are recorded without their parameter schemas"]


def test_internal_kinds_are_silent_and_unknown_ones_noted(tmp_path: Path) -> None:
    events = [v1("PauseEvent", "p"), v1("ConversationStateUpdateEvent", "q", key="k"), v1("FutureEvent", "f")]
    session = read(tmp_path, [*START, *events])
    assert shape(session) == "s u"
    assert notes(session, "dropped") == ["event 4: unknown event kind 'FutureEvent'"]


# Condensation -------------------------------------------------------------------------------------------------------


def three_turns() -> list[dict[str, Any]]:
    return [*START, *(event for n in "abc" for event in (v1_action(n, f"r{n}", n), v1_result(f"o{n}", n)))]


def test_condensation_opens_a_segment(tmp_path: Path) -> None:
    events = [*three_turns(), v1_condensation("k", ["a", "oa", "b", "ob"], "Summary.", 2)]
    events += [v1_action("d", "rd", "d"), v1_result("od", "d"), v1_message("z", "Done", "assistant")]
    session = read(tmp_path, events)
    assert [shape(session, n) for n in (0, 1)] == ["s u a t a t a t", "s u u a t a t a"]
    assert session.segments[1].messages[2].content == "Summary."
    assert [segment.carried for segment in session.segments] == [0, 5]
    assert [step.message.content for step in session.steps] == ["a", "b", "c", "d", "Done"]
    assert [step.segment for step in session.steps] == [0, 0, 0, 1, 1]
    full = read(tmp_path, events, "full")
    assert shape(full) == "s u a t a t a t a t a"
    assert len(full.segments) == 1
    assert [step.message.content for step in full.steps] == ["a", "b", "c", "d", "Done"]


def test_a_later_condensation_replaces_the_summary(tmp_path: Path) -> None:
    for name, forgotten in (("by-its-id", ["k-summary", "c", "oc"]), ("by-an-id-never-logged", ["0-0-0", "c", "oc"])):
        events = [*three_turns(), v1_condensation("k", ["a", "oa", "b", "ob"], "First.", 2), v1_action("d", "rd", "d")]
        events += [v1_result("od", "d"), v1_condensation("l", forgotten, "Second.", 2), v1_action("e", "re", "e")]
        session = read(tmp_path / name, events)
        said = [message.content for message in session.segments[2].messages]
        assert said == ["Be good.", "Do it.", "Second.", "d", "out", "e"], name
        assert [step.message.content for step in session.steps] == ["a", "b", "c", "d", "e"]


def test_a_summary_that_is_not_forgotten_stays(tmp_path: Path) -> None:
    events = [
        *three_turns(),
        v1_condensation("k", ["a", "oa"], "First.", 2),
        v1_action("d", "rd", "d"),
        v1_result("od", "d"),
    ]
    events += [v1_condensation("l", ["b", "ob"], "Second.", 3), v1_action("e", "re", "e")]
    session = read(tmp_path, events)
    said = [message.content for message in session.segments[2].messages]
    assert said == ["Be good.", "Do it.", "First.", "Second.", "c", "out", "d", "out", "e"]


@pytest.mark.parametrize("half", [["a"], ["oa"]])
def test_a_half_forgotten_turn_goes_whole(tmp_path: Path, half: list[str]) -> None:
    session = read(tmp_path, [*three_turns(), v1_condensation("k", half, "Sum.", 2), v1_action("d", "rd", "d")])
    assert [m.content for m in session.segments[1].messages] == [
        "Be good.",
        "Do it.",
        "Sum.",
        "b",
        "out",
        "c",
        "out",
        "d",
    ]
    assert notes(session, "info") == ["event 8: 1 event(s) left out: their call or result was condensed away"]


def test_a_parallel_turn_is_kept_or_dropped_whole(tmp_path: Path) -> None:
    events = [*START, v1_action("a", "r", "both"), v1_action("b", "r"), v1_result("oa", "a"), v1_result("ob", "b")]
    session = read(tmp_path, [*events, v1_condensation("k", ["b", "ob"], "Sum.", 2), v1_action("c", "q", "c")])
    assert [m.content for m in session.segments[1].messages] == ["Be good.", "Do it.", "Sum.", "c"]
    assert len(session.steps) == 2


def test_condensation_edges(tmp_path: Path) -> None:
    null = v1_condensation("k", ["a", "oa", "never-logged"], None, None)
    far = v1_condensation("l", ["b", "ob", 7, None], "Far.", 99)
    negative = v1_condensation("m", ["c", "oc"], "Neg.", -3)
    events = [*three_turns(), v1("CondensationRequest", "q"), null, far, negative, v1_action("d", "rd", "d")]
    session = read(tmp_path, events)
    assert [m.content for m in session.segments[-1].messages] == ["Neg.", "Be good.", "Do it.", "Far.", "d"]
    assert [step.message.content for step in session.steps] == ["a", "b", "c", "d"]
    assert len(session.segments) == 2, "a segment in which no step was taken is not kept"
    assert any("clamped" in text for text in notes(session, "repaired"))
    offsetless = read(
        tmp_path / "2", [*three_turns(), v1_condensation("k", ["a", "oa"], "Lost.", None), v1_action("d", "rd")]
    )
    assert "Lost." not in [m.content for m in offsetless.segments[1].messages]
    assert notes(offsetless, "dropped") == ["event 8: a summary has no offset; the agent did not insert it"]


def test_a_call_answered_after_the_condensation_is_kept(tmp_path: Path) -> None:
    events = [
        *three_turns(),
        v1_action("d", "rd", "d"),
        v1_condensation("k", ["a", "oa"], "Sum.", 2),
        v1_result("od", "d"),
    ]
    session = read(tmp_path, [*events, v1_action("e", "re", "e")])
    assert [m.content for m in session.segments[1].messages][-4:] == ["out", "d", "out", "e"]
    assert [step.message.content for step in session.steps] == ["a", "b", "c", "d", "e"]


def test_a_call_that_was_never_answered_leaves_the_condensed_view(tmp_path: Path) -> None:
    events = [*START, v1_action("x", "rx", "x"), v1_action("a", "ra", "a"), v1_result("oa", "a")]
    session = read(tmp_path, [*events, v1_condensation("k", [], "Sum.", 2), v1_action("d", "rd", "d")])
    assert [m.content for m in session.segments[0].messages] == ["Be good.", "Do it.", "x", "a", "out"]
    assert [m.content for m in session.segments[1].messages] == ["Be good.", "Do it.", "Sum.", "a", "out", "d"]
    assert "event 2: call 'c-x' of run was never answered" in notes(session, "info")


# Holes, damage, order -----------------------------------------------------------------------------------------------


def test_holes_and_orphans(tmp_path: Path) -> None:
    root = write_v1(tmp_path / "s", [*START, v1_action("a", "r"), v1_result("o", "a")])
    write_v1(root, [v1_result("p", "lost", "orphan"), v1_action("b", "q")], start=7)
    write_v1(root, [v1_result("q", "b", "late")], start=100_000)
    (session,) = discover(root).sessions
    assert shape(session) == "s u a t u a t"
    assert session.segments[0].messages[4].content == "orphan"
    assert session.segments[0].messages[6].content == "late", "event 100000 comes after event 8"
    assert notes(session, "missing") == [
        "event 4: event indexes 4-6 are missing (3)",
        "event 9: event indexes 9-99999 are missing (99991)",
    ]
    assert notes(session, "repaired") == [
        "event 7: a tool result whose call 'c-lost' is not in the log is kept as user text"
    ]


def test_damaged_events_are_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    bad = [b"{", b"", b"null", b'{"kind": "ActionEvent"}', b"\xff\xfe{}", b"[" * 100_000, b"1" * 5000, b"NaN"]
    events = [*START, *bad, v1_action("a", "r"), v1_result("o", "a")]
    session = read(tmp_path, events)
    assert shape(session) == "s u a t"
    assert [note.where for note in session.notes if note.kind == "dropped"] == [f"event {n}" for n in range(2, 10)]
    assert any("nested too deeply" in note.reason for note in session.notes)


def test_wrong_types_everywhere_do_not_crash(tmp_path: Path) -> None:
    values: list[Any] = [None, 3, 1.5, True, "text", [], {}, [None], [3], {"a": None}, [[[]]]]
    events: list[Any] = []
    base = [v1_system("s1"), v1_message("m1", "x"), v1_action("a1", "r"), v1_result("o1", "a1"),
            v1_condensation("k1", ["a1"], "s", 1), v1("AgentErrorEvent", "e1", error="x")]  # fmt: skip
    for event in base:
        for key in event:
            if key not in ("id", "kind", "source"):
                events.extend({**event, key: value} for value in values)
    for view in ("condensed", "full"):
        found = discover(write_v1(tmp_path / "s", events), view)
        assert [item.reason for item in found.skipped] == []
        assert len(found.sessions) == 1
        assert len(found.sessions[0].sha256) == 64


def test_lone_surrogates_are_repaired(tmp_path: Path) -> None:
    event = json.dumps(v1_message("u", "bad @ here")).replace("@", "\\ud83d").encode()
    pair = json.dumps(v1_message("v", "good \U0001f600", "assistant")).encode()
    session = read(tmp_path, [v1_system(), event, pair])
    assert [m.content for m in session.segments[0].messages[1:]] == ["bad \ufffd here", "good \U0001f600"]
    assert notes(session, "repaired") == ["event 1: lone surrogates were replaced by U+FFFD"]


def test_parents_lead_from_the_leaf_to_the_root(tmp_path: Path) -> None:
    events = [
        v1_system("s", parent_id="__root__"),
        v1_message("u", "Do it.", parent_id=None),
        v1_message("x", "wrong way", "assistant", parent_id="u"),
        v1_message("a", "right way", "assistant", parent_id="u"),
        v1_message("v", "Go on.", parent_id="x"),
    ]
    session = read(tmp_path / "1", events, state={"leaf_event_id": "a", "agent": {}})
    assert [m.content for m in session.segments[0].messages] == ["Be good.", "Do it.", "right way"]
    assert notes(session, "info") == ["event 3: 2 event(s) on other branches were left out"]
    events[1]["parent_id"] = "a"
    cycle = read(tmp_path / "2", events, state={"leaf_event_id": "a"})
    assert len(cycle.segments[0].messages) == 5
    assert any("cycle" in text for text in notes(cycle, "repaired"))


def test_an_unreadable_state_only_costs_the_state(tmp_path: Path) -> None:
    root = write_v1(tmp_path / "s", START)
    (root / "base_state.json").write_bytes(b"{")
    (session,) = discover(root).sessions
    assert len(session.segments[0].messages) == 2
    assert [note.where for note in session.notes] == ["base_state.json"]


def test_event_service_layout_and_gzip_events(tmp_path: Path) -> None:
    import gzip

    inner = write_v1(tmp_path / "conv" / "event_service", START, state={"agent": {}})
    for path in (inner / "events").iterdir():
        path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (inner / "meta.json").write_text("{}")
    (inner / "events" / ".eventlog.lock").write_text("")
    found = discover(tmp_path)
    assert [(session.id, len(session.segments[0].messages)) for session in found.sessions] == [("conv", 2)]
    assert found.skipped == ()
