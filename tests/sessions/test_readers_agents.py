"""SWE-agent, mini-swe-agent, ATIF, and chat records under other names or with calls written as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from session_forms import TRAJ, TURNS, XML, atif, dump, responses_log
from session_logs import call, chat, completion, says

from leadline.sessions.directory import Discovery, discover
from leadline.sessions.schema import Session


def found(tmp_path: Path, document: object, name: str = "r.json") -> Discovery:
    (tmp_path / name).write_bytes(dump(document))
    return discover(tmp_path / name)


def read(tmp_path: Path, document: object, name: str = "r.json") -> Session:
    (session,) = found(tmp_path, document, name).sessions
    return session


def shape(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in session.segments[0].messages]


def reasons(session: Session, kind: str) -> list[str]:
    return [note.reason for note in session.notes if note.kind == kind]


def traj(history: list[Any], **fields: Any) -> dict[str, Any]:
    return {"environment": "main", "trajectory": [], "history": history, "info": {}, **fields}


def test_sweagent_history(tmp_path: Path) -> None:
    session = read(tmp_path, traj(TRAJ), "a.traj")
    assert session.id == "a"
    assert [message.role for message in session.segments[0].messages] == ["system", "user", "user", "assistant", "tool"]
    assert session.segments[0].messages[-1].tool_call_id == "c1"
    assert (len(session.steps), session.tools_complete) == (1, False)
    assert "1 message(s) of a demonstration are no steps" in reasons(session, "info")


def test_sweagent_demonstrated_answers_are_no_steps(tmp_path: Path) -> None:
    demo = [{"role": "assistant", "content": "Shown.", "agent": "main", "is_demo": True}]
    session = read(tmp_path, traj([TRAJ[0], TRAJ[1], *demo, *TRAJ[2:]]))
    assert [step.message.content for step in session.steps] == ["Look."]
    assert ("assistant", "Shown.") in shape(session)[: session.steps[0].position]


def test_sweagent_says_what_its_prompts_left_out(tmp_path: Path) -> None:
    config = {"agent": {"history_processors": [{"type": "last_n_observations", "n": 5}, {"type": "cache_control"}]}}
    for recorded in (config, json.dumps(config)):
        session = read(tmp_path, traj(TRAJ, replay_config=recorded))
        assert any("(last_n_observations)" in reason for reason in reasons(session, "missing"))
    assert not any("shortened" in reason for reason in reasons(read(tmp_path, traj(TRAJ)), "missing"))


def test_sweagent_attempts_and_other_agents(tmp_path: Path) -> None:
    other = {"role": "user", "content": "Review.", "agent": "reviewer"}
    attempts = [traj(TRAJ), traj([*TRAJ, other])]
    sessions = found(tmp_path, {**traj(TRAJ), "attempts": attempts}).sessions
    assert [(s.id, s.attempt, s.attempts) for s in sessions] == [("r#attempt-1", 1, 2), ("r#attempt-2", 2, 2)]
    assert "1 message(s) of other agents left out: reviewer" in reasons(sessions[1], "info")
    assert len({session.sha256 for session in sessions}) == 1


def test_sweagent_without_its_history(tmp_path: Path) -> None:
    entries = [{"action": "ls", "observation": "a.py", "response": "Look.\n```\nls\n```", "thought": "Look."}]
    session = read(tmp_path, {"environment": "main", "trajectory": entries, "info": {}})
    assert shape(session) == [("assistant", "Look.\n```\nls\n```"), ("user", "a.py")]
    assert any("not known" in reason for reason in reasons(session, "missing"))


def test_mini_swe_agent_exit_is_no_message(tmp_path: Path) -> None:
    closing = [{"role": "user", "content": "x", "extra": {"exit_status": "Submitted"}}, {"role": "exit", "content": ""}]
    for last in closing:
        session = read(tmp_path, {"info": {"model_stats": {}}, "messages": [*chat(2), last]}, "a.traj.json")
        assert (session.id, session.format) == ("a", "mini-swe-agent-traj")
        assert len(session.segments[0].messages) == 6
        assert any("exit entry" in reason for reason in reasons(session, "info"))


def test_records_with_other_role_names(tmp_path: Path) -> None:
    session = read(tmp_path, {"instance_id": "i", "trajectory": TURNS})
    assert [role for role, _ in shape(session)] == ["system", "user", "assistant", "user", "assistant"]
    assert shape(session)[0] == ("system", "Be good.")
    assert session.tools_complete
    turns = [
        {"from": "human", "value": "Do it."},
        {"from": "function_call", "value": "ls"},
        {"from": "observation", "value": "a.py"},
        {"from": "alien", "value": "?"},
        {"from": "gpt", "value": "Done."},
    ]
    session = read(tmp_path, {"id": "x", "system": "Be good.", "conversations": turns})
    assert [role for role, _ in shape(session)] == ["system", "user", "assistant", "user", "assistant"]
    assert len(reasons(session, "dropped")) == 1


@pytest.mark.parametrize("stored", [XML, json.dumps(XML)])
def test_calls_written_as_text_stay_text(tmp_path: Path, stored: object) -> None:
    session = read(tmp_path, {"messages": stored, "instance_id": "i", "tools": None})
    assert session.format == "chat-swesmith-xml"
    assert shape(session)[2:] == [
        ("assistant", "Look.\n<function=run>\n<parameter=command>ls</parameter>\n</function>"),
        ("user", "OBSERVATION:\na.py"),
    ]
    assert session.tools_complete
    assert reasons(session, "missing") == []


def test_atif_steps(tmp_path: Path) -> None:
    session = read(tmp_path, atif())
    assert [role for role, _ in shape(session)] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [c.arguments for c in session.steps[0].message.tool_calls] == ['{"command": "ls"}'] * 2
    assert session.tools_complete
    assert reasons(session, "missing") == reasons(session, "dropped") == []


def test_atif_sub_agents_are_sessions_of_their_own(tmp_path: Path) -> None:
    child = atif(trajectory_id="kid", subagent_trajectories=[atif(trajectory_id="grandkid")])
    sessions = found(tmp_path, [atif(subagent_trajectories=[child]), atif(session_id="other")]).sessions
    assert [session.id for session in sessions] == [
        "r#trajectory-1",
        "r#sub-kid",
        "r#sub-kid/grandkid",
        "r#trajectory-4",
    ]
    assert len({session.sha256 for session in sessions}) == 1
    assert next(session.id for session in found(tmp_path, atif(subagent_trajectories=[child])).sessions) == "r"


def test_atif_copied_context_and_steps_without_a_model(tmp_path: Path) -> None:
    document = atif()
    for step in document["steps"][:3]:
        step["is_copied_context"] = True
    document["steps"][3] = {"step_id": 4, "source": "agent", "message": "Dispatched.", "llm_call_count": 0}
    document["steps"].append({"step_id": 5, "source": "agent", "message": "Done."})
    session = read(tmp_path, document)
    assert [step.message.content for step in session.steps] == ["Done."]
    assert session.segments[0].carried == 5
    assert shape(session)[5] == ("user", "Dispatched.")


def test_atif_that_breaks_its_rules_is_read_and_noted(tmp_path: Path) -> None:
    document = atif(surprise=1)
    document["steps"][1] |= {"step_id": 9, "mood": "good"}
    session = read(tmp_path, document)
    assert len(session.steps) == 2
    (reason,) = [reason for reason in reasons(session, "info") if "not valid ATIF" in reason]
    assert "fault(s)" in reason
    document["steps"].append({"step_id": 5, "source": "oracle", "message": "?"})
    assert len(reasons(read(tmp_path, document), "dropped")) == 1


def test_v1_completion_logs(tmp_path: Path) -> None:
    for number in range(3):
        log = {**completion(chat(number), says(number), float(number)), "latency_sec": 1.0, "context_window": 9}
        (tmp_path / f"m-{number}.json").write_bytes(dump(log))
    (session,) = discover(tmp_path).sessions
    assert (session.format, len(session.steps)) == ("oh-v1-llm-completions-dir", 3)
    assert session.segments[0].messages[:-1] == tuple(discover_chat(tmp_path / "x", chat(2)))


def discover_chat(folder: Path, messages: list[Any]) -> list[Any]:
    folder.mkdir()
    return list(read(folder, {"messages": messages}).segments[0].messages)


def test_completion_log_of_response_items(tmp_path: Path) -> None:
    session = read(tmp_path, responses_log(), "m-1.json")
    assert session.format == "oh-v1-llm-completion-last"
    assert [role for role, _ in shape(session)] == ["system", "user", "assistant", "tool", "assistant"]
    assert session.tools_complete


def test_calls_of_text_and_structure_are_not_mixed_up(tmp_path: Path) -> None:
    both = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "<function=a>", "tool_calls": [call("c")]},
    ]
    session = read(tmp_path, {"messages": both})
    assert session.format == "chat-openai-tools"
    assert not session.tools_complete
