"""One real session recorded in several forms renders to the same prompts, token by token, whatever it is read from.

The recorded sessions are found through LEADLINE_RECORDINGS. No recorded session exists both as V0 events and as
completion logs, so that pair is made here: logs are written from a recorded V0 session's own prompts. What the forms
cannot have in common is named in INHERENT and asserted.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from embedded_model import require_embedded

from leadline.cli.session_checks import make_renderer
from leadline.sessions.convert import chat_records, write_sessions
from leadline.sessions.directory import discover
from leadline.sessions.render import Renderer
from leadline.sessions.schema import Session

COMPLETIONS = {"oh-v0-llm-completion-last", "oh-v0-llm-completions-dir", "chat-openai-tools", "atif"}
EVENTS = {"oh-v0-eval-output", "oh-v0-session-dir", "oh-v0-trajectory"}
INHERENT = {
    "headless": "the output of a headless run holds neither the system prompt nor the tools",
    "atif": "ATIF keeps arguments as objects, so the spacing of their text is the writer's",
}


@pytest.fixture(scope="module")
def recordings() -> Path:
    named = os.environ.get("LEADLINE_RECORDINGS")
    if not named:
        pytest.skip("LEADLINE_RECORDINGS is not set: no recorded sessions to read")
    return Path(named)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    require_embedded()
    return make_renderer("embedded")


@pytest.fixture(scope="module")
def groups(recordings: Path) -> dict[str, list[Session]]:
    """Sessions of the same task and agent, by task; the first of two attempts is another session."""
    made: dict[str, list[Session]] = {}
    for session in discover(recordings).sessions:
        task = re.search(r"(astropy|django|pydata|scikit-learn|sphinx-doc)__[\w-]+?-\d+", session.id)
        if task and session.format in COMPLETIONS | EVENTS and session.attempt == session.attempts:
            agent = "events" if session.format in EVENTS else "completions"
            made.setdefault(f"{task.group()} {agent}", []).append(session)
    return {name: sessions for name, sessions in made.items() if len(sessions) > 1}


def test_every_form_of_one_session_holds_the_same(groups: dict[str, list[Session]]) -> None:
    forms = {frozenset(session.format for session in sessions) for sessions in groups.values()}
    assert len(groups) >= 13
    assert frozenset({"atif", "oh-v0-llm-completion-last", "oh-v0-llm-completions-dir"}) in forms
    assert frozenset({"oh-v0-eval-output", "oh-v0-session-dir", "oh-v0-trajectory"}) in forms
    for name, sessions in groups.items():
        assert len({session.sha256 for session in sessions}) == 1, name
        assert len({session.source for session in sessions}) == 1, name


def test_rendered_prompts_are_identical(groups: dict[str, list[Session]], renderer: Renderer) -> None:
    for name in ("django__django-10973 completions", "scikit-learn__scikit-learn-13142 events"):
        first, *others = [renderer.render(session).points for session in groups[name]]
        assert len(first) > 10
        for points in others:
            assert [p.prompt_ids.tolist() for p in points] == [p.prompt_ids.tolist() for p in first], name
            assert [p.recorded_text for p in points] == [p.recorded_text for p in first], name


def test_v0_events_and_completion_logs_of_the_same_prompts(
    recordings: Path, renderer: Renderer, tmp_path: Path
) -> None:
    (events,) = discover(recordings / "oh-v0-session-dir" / "63b4315947a049e2b7a51249b3d4fcc3").sessions
    messages = next(iter(chat_records(events)))["messages"]
    for step in events.steps:
        answer = messages[step.position]
        log: dict[str, Any] = {"messages": messages[: step.position], "timestamp": float(step.index)}
        log |= {"response": {"choices": [{"message": answer}]}, "kwargs": {"tools": list(events.tools)}}
        (tmp_path / f"m-{step.index}.json").write_text(json.dumps(log))
    (logs,) = discover(tmp_path).sessions
    assert logs.format == "oh-v0-llm-completions-dir"
    for mine, other in zip(renderer.render(events).points, renderer.render(logs).points, strict=True):
        assert mine.prompt_ids.tolist() == other.prompt_ids.tolist()
        assert mine.recorded_text == other.recorded_text


def test_inherent_difference_of_headless_output(recordings: Path) -> None:
    (headless,) = discover(recordings / "awkward" / "v1-headless-json-with-noise.jsonl").sessions
    folders = discover(recordings / "oh-v1-session-dir").sessions
    said = headless.segments[0].messages
    same = [
        s for s in folders
        if [m for m in s.segments[0].messages if m.role != "system"][: len(said)] == list(said)
    ]  # fmt: skip
    assert same, INHERENT["headless"]
    assert headless.tools == ()
    assert not any(message.role == "system" for message in said)
    missing = {note.reason for note in headless.notes if note.kind == "missing"}
    assert missing == {"no tools are recorded", "no system prompt is recorded"}
    assert all(session.tools for session in same)


def test_inherent_difference_of_foreign_atif(tmp_path: Path) -> None:
    from session_logs import chat

    (tmp_path / "c.json").write_text(json.dumps({"messages": chat(1)}))
    before = discover(tmp_path / "c.json").sessions
    assert before[0].steps[0].message.tool_calls[0].arguments == '{"command":  "ls"}', "two spaces"
    write_sessions(before, "atif", tmp_path / "out")
    assert discover(tmp_path / "out").sessions[0].sha256 == before[0].sha256
    written = json.loads((tmp_path / "out" / "c.json").read_text())
    for step in written["steps"]:
        for call in step.get("tool_calls", ()):
            del call["extra"]
    (tmp_path / "foreign.json").write_text(json.dumps(written))
    foreign = discover(tmp_path / "foreign.json").sessions[0]
    assert foreign.steps[0].message.tool_calls[0].arguments == '{"command": "ls"}', INHERENT["atif"]
    assert foreign.steps[0].message.tool_calls[0].parsed() == before[0].steps[0].message.tool_calls[0].parsed()
