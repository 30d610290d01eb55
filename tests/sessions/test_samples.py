"""The bundled samples: their number, size and formats, and that discovery reads them as the demo needs them."""

from __future__ import annotations

from functools import cache

import pytest
from embedded_model import require_embedded

from leadline.sessions.directory import discover
from leadline.sessions.recorder_script import SCRIPTS, bundled, load
from leadline.sessions.render import Renderer
from leadline.sessions.schema import Session, View

SAMPLES = SCRIPTS.parent
REPLAY = {
    "tide-table": "oh-v1-session-dir",
    "print-spool": "oh-v1-session-dir",
    "config-migration": "oh-v0-trajectory",
    "route-planner": "oh-v0-trajectory",
}
CALIBRATION = {"changelog-tool": "oh-v1-session-dir", "seed-inventory": "oh-v0-trajectory"}


@cache
def sessions(folder: str, view: View = "condensed") -> dict[str, Session]:
    """{script name: session} of one sample folder; fails when something in it is not a session."""
    found = discover(SAMPLES / folder, view=view)
    assert not list(found.skipped)
    return {session.id: session for session in found.sessions}


def all_sessions() -> list[Session]:
    return [*sessions("replay").values(), *sessions("calibration").values()]


def test_replay_and_calibration_hold_the_scripted_sessions() -> None:
    assert {name: session.format for name, session in sessions("replay").items()} == REPLAY
    assert {name: session.format for name, session in sessions("calibration").items()} == CALIBRATION
    assert {load(path).id for path in bundled()} == {*REPLAY, *CALIBRATION}
    assert len(set(REPLAY.values())) >= 2


def test_all_of_samples_is_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 1_000_000


def test_every_session_has_8_to_40_steps_as_many_as_its_script() -> None:
    scripts = {script.id: script for script in map(load, bundled())}
    for session in all_sessions():
        turns = scripts[session.id].turns
        agent = [turn for turn in turns if turn.user is None and turn.condense is None]
        assert 8 <= len(session.steps) == len(agent) <= 40, session.id


def test_the_steps_say_and_call_what_the_script_says() -> None:
    scripts = {script.id: script for script in map(load, bundled())}
    for session in all_sessions():
        turns = [t for t in scripts[session.id].turns if t.user is None and t.condense is None]
        for step, turn in zip(session.steps, turns, strict=True):
            assert step.message.content == turn.say
            commands = [call.parsed() for call in step.message.tool_calls]
            if turn.commands:
                assert commands == [{"command": command} for command in turn.commands]
            else:
                assert len(commands) == 1


def test_tools_are_complete_and_every_result_answers_a_call() -> None:
    for session in all_sessions():
        assert session.tools_complete
        names = {tool["function"]["name"] for tool in session.tools}
        for segment in session.segments:
            assert segment.messages[0].role == "system"
            open_calls: set[str] = set()
            for message in segment.messages:
                open_calls |= {call.id for call in message.tool_calls}
                assert {call.name for call in message.tool_calls} <= names
                if message.role == "tool":
                    assert message.tool_call_id in open_calls
                    open_calls.remove(message.tool_call_id)


def test_readers_had_nothing_to_drop_or_repair() -> None:
    for session in all_sessions():
        assert not [note for note in session.notes if note.kind in ("dropped", "repaired", "truncated")], session.id


def test_one_replay_session_is_condensed_with_steps_before_and_after() -> None:
    condensed = [session for session in sessions("replay").values() if len(session.segments) > 1]
    assert [session.id for session in condensed] == ["print-spool"]
    session = condensed[0]
    before, after = session.segments
    assert [sum(step.segment == number for step in session.steps) for number in (0, 1)] == [8, 9]
    assert any(message.content.startswith("Summary of the work so far.") for message in after.messages[: after.carried])
    assert after.carried < len(before.messages)
    full = sessions("replay", "full")["print-spool"]
    assert len(full.segments) == 1
    assert [step.message for step in full.steps] == [step.message for step in session.steps]


def test_nothing_of_the_recording_machine_is_left() -> None:
    for path in SAMPLES.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert "/tmp/" not in text, path
            assert "leadline-" not in text.replace("leadline-recorder", ""), path


@pytest.mark.slow
def test_token_lengths_suit_the_demo() -> None:
    """At least 3 branch points of 1,500 to 2,500 tokens in each replay session, on both sides of the condensation."""
    from transformers import AutoTokenizer

    path = require_embedded()
    renderer = Renderer(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    for session in all_sessions():
        lengths = [(point.segment, point.n_tokens) for point in renderer.render(session).points]
        window = [segment for segment, length in lengths if 1500 <= length <= 2500]
        if session.id in REPLAY:
            assert len(window) >= 3, (session.id, lengths)
            assert set(window) == {segment for segment, _ in lengths}, (session.id, lengths)
        assert 4000 < max(length for _, length in lengths) < 8000, (session.id, lengths)
