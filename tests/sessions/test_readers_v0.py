"""The OpenHands V0 readers, rule by rule: arrays and directories of events, texts, cuts, condensation, delegation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_logs import call, v0_action, v0_metadata, v0_observation, v0_run, v0_start

from leadline.sessions.directory import discover
from leadline.sessions.schema import Session, View


def read(tmp_path: Path, document: Any, view: View = "condensed") -> Session:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "log.json").write_text(json.dumps(document))
    found = discover(tmp_path / "log.json", view)
    assert [item.reason for item in found.skipped] == []
    (session,) = found.sessions
    return session


def contents(session: Session, segment: int = 0) -> list[str]:
    return [message.content for message in session.segments[segment].messages]


def shape(session: Session, segment: int = 0) -> str:
    return " ".join(message.role[0] for message in session.segments[segment].messages)


def notes(session: Session, kind: str) -> list[str]:
    return [f"{note.where}: {note.reason}" for note in session.notes if note.kind == kind]


def test_plain_session(tmp_path: Path) -> None:
    events = [*v0_start(), *v0_run(2, "c1"), v0_action(4, "message", {"content": "Done"})]
    session = read(tmp_path, events)
    assert (session.format, session.id, shape(session), session.notes) == ("oh-v0-trajectory", "log", "s u a t a", ())
    assert contents(session) == ["Be good.", "Do it.", "Thinking.", "out", "Done"]
    assert session.segments[0].messages[2].tool_calls[0].arguments == '{"command":  "ls"}'
    assert session.segments[0].messages[3].tool_call_id == "c1"
    assert (len(session.tools), session.tools_complete, len(session.steps)) == (1, True, 2)


@pytest.mark.parametrize("wrapper", ["trajectory", "events", "history"])
def test_wrappers(tmp_path: Path, wrapper: str) -> None:
    events = [*v0_start(), *v0_run(2, "c1")]
    wrapped = read(tmp_path / "w", {"version": 1, "permissions": "x", wrapper: events})
    assert wrapped.segments == read(tmp_path / "p", events).segments


def test_events_are_ordered_by_id(tmp_path: Path) -> None:
    events = [*v0_start(), *v0_run(2, "c1"), *v0_run(10, "c2")]
    assert read(tmp_path / "a", events[::-1]).segments == read(tmp_path / "b", events).segments


def test_silent_events(tmp_path: Path) -> None:
    silent = [v0_action(20 + n, action, {}) for n, action in enumerate(["change_agent_state", "null", "pause", "stop"])]
    silent += [v0_observation(30, "agent_state_changed", ""), v0_observation(31, "null", "", cause=1)]
    hidden = v0_action(40, "run", {"command": "git config", "hidden": True}, source="user")
    shown = v0_observation(41, "run", "x", cause=40, extras={"hidden": True})
    runtime = v0_action(42, "run", {"command": "setup"}, source="environment")
    session = read(tmp_path, [*v0_start(), *silent, hidden, shown, runtime])
    assert shape(session) == "s u"


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)])
def test_parallel_calls_are_one_step_with_results_in_call_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    calls = [call("c1"), call("c2")]
    metadata = [v0_metadata("r", calls, mine) for mine in ("c1", "c2")]
    pool = [v0_action(0, "run", {"command": "1"}, tool_call_metadata=metadata[0]),
            v0_action(0, "run", {"command": "2"}, tool_call_metadata=metadata[1]),
            v0_observation(0, "run", "first", tool_call_metadata=metadata[0]),
            v0_observation(0, "run", "second", tool_call_metadata=metadata[1])]  # fmt: skip
    events = [{**pool[place], "id": 2 + n} for n, place in enumerate(order)]
    session = read(tmp_path, [*v0_start(), *events])
    assert shape(session) == "s u a t t"
    assert contents(session)[-2:] == ["first", "second"]
    assert [made.id for made in session.steps[0].message.tool_calls] == ["c1", "c2"]


def test_the_last_finish_keeps_its_call(tmp_path: Path) -> None:
    metadata = v0_metadata("r", [call("f", '{"message": "bye"}', "finish")], "f", "All done.")
    finish = v0_action(2, "finish", {"thought": "All done.", "outputs": {}}, tool_call_metadata=metadata)
    state = v0_observation(3, "agent_state_changed", "")
    last = read(tmp_path / "1", [*v0_start(), finish, state]).steps[-1].message
    assert (last.content, last.tool_calls[0].name) == ("All done.", "finish")
    more = v0_action(4, "message", {"content": "One more thing."}, source="user")
    earlier = read(tmp_path / "2", [*v0_start(), finish, state, more]).steps[-1].message
    assert (earlier.content, earlier.tool_calls) == ("All done.", ()), "later prompts hold a finish as text"


def test_finish_without_metadata(tmp_path: Path) -> None:
    args = {"thought": "So.", "final_thought": "It works.", "outputs": {"content": "42"}}
    session = read(tmp_path, [*v0_start(), v0_action(2, "finish", args)])
    assert session.steps[0].message.content == "So.\nIt works.\n42"


def test_agents_from_before_tool_calls(tmp_path: Path) -> None:
    events = [
        v0_action(0, "message", {"content": "Task."}, source="user"),
        v0_action(1, "run", {"command": "ls", "thought": "Look."}),
        v0_observation(2, "run", "a.py", cause=1, extras={"command_id": 7, "exit_code": 0}),
        v0_action(3, "run_ipython", {"code": "1+1", "thought": ""}),
        v0_observation(4, "run_ipython", "2", cause=3),
        v0_action(5, "browse", {"url": "http://x", "thought": "See."}),
        v0_observation(6, "error", "no network", cause=5),
    ]
    session = read(tmp_path, events)
    assert contents(session) == [
        "Task.",
        "Look.\n<execute_bash>\nls\n</execute_bash>",
        "OBSERVATION:\na.py\n[Command 7 finished with exit code 0]",
        "\n<execute_ipython>\n1+1\n</execute_ipython>",
        "OBSERVATION:\n2",
        "See.\n<execute_browse>\nhttp://x\n</execute_browse>",
        "OBSERVATION:\nno network\n[Error occurred in processing last action]",
    ]
    assert shape(session) == "u a u a u a u"
    assert [note.kind for note in session.notes] == ["missing", "missing"], "no tools, no system prompt"


METADATA = {"exit_code": 1, "working_dir": "/w", "py_interpreter_path": "/py", "prefix": "<", "suffix": ">"}
TAIL = "\n[Current working directory: /w]\n[Python interpreter: /py]\n[Command finished with exit code 1]"
INLINE = "x\n![image](data:image/png;base64,AAAA)\ny"


@pytest.mark.parametrize(
    ("kind", "content", "extras", "text"),
    [
        ("run", "o", {"metadata": METADATA}, "<o>" + TAIL),
        ("run", "o", {"metadata": {"exit_code": -1}}, "o"),
        ("edit", "--- diff", {"formatted_output_and_error": "Edited."}, "Edited."),
        ("edit", "Edited.", {"old_content": "OLD", "diff": "D"}, "Edited."),
        ("read", "text", {}, "text"),
        ("error", "bad", {}, "bad\n[Error occurred in processing last action]"),
        ("user_rejected", "no", {}, "OBSERVATION:\nno\n[Last action has been rejected by the user]"),
        ("run_ipython", INLINE, {}, "x\n![image](data:image/png;base64, ...) already displayed to user\ny"),
        ("delegate", "short", {"outputs": {"content": "long"}}, "long"),
        ("delegate", "short", {"outputs": {}}, "short"),
        ("browse", "page", {"screenshot": "data:image/png;base64,AAAA", "axtree_txt": "tree"}, "page"),
        ("mcp", None, {}, ""),
    ],
)
def test_observation_texts(tmp_path: Path, kind: str, content: object, extras: dict[str, Any], text: str) -> None:
    action, result = v0_run(2, "c1")
    session = read(
        tmp_path, [*v0_start(), action, {**result, "observation": kind, "content": content, "extras": extras}]
    )
    assert contents(session)[-1] == text
    assert shape(session) == "s u a t"


@pytest.mark.parametrize("view", ["condensed", "full"])
def test_observations_are_cut_at_30000_characters_except_reads(tmp_path: Path, view: View) -> None:
    long = "h" * 20_000 + "t" * 20_000
    action, result = v0_run(2, "c1")
    session = read(tmp_path, [*v0_start(), action, {**result, "content": long}], view)
    marker = "\n[... Observation truncated due to length ...]\n"
    assert contents(session)[-1] == "h" * 15_000 + marker + "t" * 15_000
    assert notes(session, "truncated") == [
        "event 3: observation of 40000 characters cut to 30000, as the agent's prompt had it"
    ]
    whole = read(tmp_path, [*v0_start(), action, {**result, "content": long, "observation": "read"}], view)
    assert contents(whole)[-1] == long
    exact = read(tmp_path, [*v0_start(), action, {**result, "content": long[:30_000]}], view)
    assert contents(exact)[-1] == long[:30_000]


def test_commands_of_the_user_and_doubled_user_messages(tmp_path: Path) -> None:
    events = [
        v0_action(2, "run", {"command": "ls"}, source="user"),
        v0_observation(3, "run", "a.py", cause=2),
        *v0_run(4, "c1"),
    ]
    said = contents(read(tmp_path, [*v0_start(), *events]))
    assert said[2] == "\n\nUser executed the command:\nls"
    assert said[3] == "\n\n\nObserved result of command executed by user:\na.py"


def test_attached_images(tmp_path: Path) -> None:
    url = "data:image/png;base64,AAAA"
    message = v0_action(0, "message", {"content": "Look.", "image_urls": [url, "", None]}, source="user")
    session = read(tmp_path, [message])
    assert contents(session) == ["Look.\n[image]"]
    assert notes(session, "image") == ["event 0: 1 attached image(s) replaced by [image]"]


def test_recall_content_is_kept_and_the_template_is_missing(tmp_path: Path) -> None:
    recall = v0_action(2, "recall", {"query": "q"}, source="user")
    extras = {"repo_instructions": "Use tabs.", "microagent_knowledge": [{"name": "git", "content": "Commit."}, None]}
    knowing = v0_observation(3, "recall", "Added", cause=2, extras=extras, source="environment")
    empty = v0_observation(4, "recall", "Added", cause=2, extras={"repo_instructions": ""}, source="environment")
    session = read(tmp_path, [*v0_start(), recall, knowing, empty])
    assert contents(session) == ["Be good.", "Do it.", "\n\nUse tabs.\n\nCommit."]
    assert [text.split(":")[0] for text in notes(session, "missing")] == ["event 3"]


def test_delegated_events_are_left_out(tmp_path: Path) -> None:
    metadata = v0_metadata("r", [call("d", "{}", "delegate")], "d")
    inner = [*v0_run(3, "inner"), v0_action(5, "delegate", {}), *v0_run(6, "nested")]
    inner.append(v0_observation(8, "delegate", "x"))
    start = v0_action(2, "delegate", {"agent": "B", "thought": ""}, tool_call_metadata=metadata)
    end = v0_observation(
        9, "delegate", "", extras={"outputs": {"content": "found"}}, cause=2, tool_call_metadata=metadata
    )
    session = read(tmp_path, [*v0_start(), start, *inner, end, *v0_run(10, "c2")])
    assert shape(session) == "s u a t a t"
    assert contents(session)[3] == "found"
    assert notes(session, "info") == ["event 2: 6 event(s) of the delegated agent were left out"]


def condensation(number: int, summary: str | None, offset: int | None, **args: Any) -> dict[str, Any]:
    return v0_action(number, "condensation", {"summary": summary, "summary_offset": offset, **args})


def test_condensation_opens_segments_with_the_newest_summary_only(tmp_path: Path) -> None:
    turns = [event for n in range(4) for event in v0_run(2 + 2 * n, f"c{n}")]
    noise = v0_observation(30, "agent_state_changed", "")
    events = [*v0_start(), *turns, noise, condensation(31, "First.", 2, forgotten_event_ids=[2, 3, 4, 5])]
    events += [*v0_run(32, "d"), condensation(34, "Second.", 2, forgotten_events_start_id=6, forgotten_events_end_id=9)]
    events += [*v0_run(35, "e"), condensation(37, None, None, forgotten_event_ids=[32, 33]), *v0_run(38, "f")]
    session = read(tmp_path, events)
    assert [shape(session, n) for n in range(4)] == [
        "s u a t a t a t a t",
        "s u u a t a t a t",
        "s u u a t a t",
        "s u u a t a t",
    ]
    assert [segment.carried for segment in session.segments] == [0, 7, 5, 5]
    assert [contents(session, n)[2] for n in (1, 2, 3)] == ["\n\nFirst.", "\n\nSecond.", "\n\nSecond."]
    ids = [step.message.tool_calls[0].id for step in session.steps]
    assert ids == ["c0", "c1", "c2", "c3", "d", "e", "f"]
    full = read(tmp_path, events, "full")
    assert [step.message.tool_calls[0].id for step in full.steps] == ids
    assert len(full.segments) == 1


def test_summary_without_offset_is_appended(tmp_path: Path) -> None:
    events = [
        *v0_start(),
        *v0_run(2, "a"),
        *v0_run(4, "b"),
        condensation(6, "S.", None, forgotten_event_ids=[2, 3]),
        *v0_run(7, "c"),
    ]
    assert contents(read(tmp_path, events), 1) == ["Be good.", "Do it.", "Thinking.", "out", "S.", "Thinking.", "out"]


def test_a_turn_that_lost_its_result_goes_whole(tmp_path: Path) -> None:
    events = [
        *v0_start(),
        *v0_run(2, "a"),
        *v0_run(4, "b"),
        condensation(6, "S.", 2, forgotten_event_ids=[3, True]),
        *v0_run(7, "c"),
    ]
    session = read(tmp_path, events)
    assert shape(session, 1) == "s u u a t a t"
    assert notes(session, "info") == ["event 6: 1 event(s) left out: their call or result was condensed away"]


def test_results_by_cause_and_calls_rebuilt_from_actions(tmp_path: Path) -> None:
    action, result = v0_run(2, "c1")
    del result["tool_call_metadata"]
    assert shape(read(tmp_path / "1", [*v0_start(), action, result])) == "s u a t"
    action["tool_call_metadata"] = {"function_name": "run", "tool_call_id": "c1", "model_response": {"choices": []}}
    session = read(tmp_path / "2", [*v0_start(), action, result])
    assert session.steps[0].message.tool_calls[0].arguments == '{"command": "ls"}'
    assert session.steps[0].message.content == "Thinking."
    assert notes(session, "repaired") == ["event 2: the model response holds no tool call; rebuilt from the action"]


def test_a_session_may_end_with_an_unanswered_call(tmp_path: Path) -> None:
    session = read(tmp_path, [*v0_start(), *v0_run(2, "a"), v0_run(4, "b")[0]])
    assert shape(session) == "s u a t a"
    assert session.notes == ()


def test_session_directory(tmp_path: Path) -> None:
    events = [*v0_start(), *v0_run(2, "a"), *v0_run(10, "b")]
    folder = tmp_path / "conversations" / "abc" / "events"
    folder.mkdir(parents=True)
    for event in events:
        (folder / f"{event['id']}.json").write_text(json.dumps(event))
    (folder / "4.json").write_text("{broken")
    (folder / "notes.txt").write_text("hello")
    (folder.parent / "metadata.json").write_text("{}")
    (folder.parent / "agent_state.pkl").write_bytes(b"\x80\x04never unpickled")
    (folder.parent / "event_cache").mkdir()
    (folder.parent / "event_cache" / "0-25.json").write_text(json.dumps(events))
    found = discover(tmp_path)
    (session,) = found.sessions
    assert (session.id, session.format, shape(session)) == ("conversations/abc", "oh-v0-session-dir", "s u a t a t")
    assert notes(session, "dropped")[0].startswith("event 4: 4.json: ")
    assert notes(session, "info") == ["event 5: event indexes 5-9 are missing (5)"]
    assert [(Path(item.path).name, item.reason) for item in found.skipped] == [("notes.txt", "not a session: not JSON")]


def test_wrong_types_everywhere_do_not_crash(tmp_path: Path) -> None:
    values: list[Any] = [None, 3, True, "text", [], {}, [None], [3], {"a": None}, [[[]]]]
    events: list[Any] = [None, 3, "x", [], {}]
    for event in (*v0_start(), *v0_run(2, "a"), condensation(4, "s", 1, forgotten_event_ids=[2])):
        events.extend({**event, key: value} for key in event for value in values)
        metadata = event.get("tool_call_metadata", {})
        events.extend({**event, "tool_call_metadata": {**metadata, key: value}} for key in metadata for value in values)
        args = event.get("args", {})
        events.extend({**event, "args": {**args, key: value}} for key in args for value in values)
    for view in ("condensed", "full"):
        assert len(read(tmp_path, events, view).sha256) == 64
