"""Sessions as plain text, for models that know no chat."""

from __future__ import annotations

from leadline.sessions.schema import Message, Segment, Session, ToolCall
from leadline.sessions.transcript import transcript


def session(*segments: tuple[Message, ...]) -> Session:
    """A session of these segments."""
    parts = tuple(Segment(messages=messages) for messages in segments)
    return Session(id="s", format="f", path="p", source="s", view="condensed", segments=parts)


def test_every_message_stands_under_its_role_and_calls_as_recorded() -> None:
    call = ToolCall(id="1", name="run", arguments='{"command":  "ls"}')
    made = session(
        (
            Message(role="user", content="List."),
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="tool", content="a.py", tool_call_id="1", name="run"),
        )
    )
    expected = [
        "user:\nList.",
        'assistant:\n{"name": "run", "arguments": "{\\"command\\":  \\"ls\\"}"}',
        "tool:\na.py",
    ]
    assert transcript(made) == "\n\n".join(expected)


def test_the_longest_segment_is_taken() -> None:
    short, long = (Message(role="user", content="x"),), (Message(role="user", content="y" * 30),)
    assert transcript(session(short, long, short)) == "user:\n" + "y" * 30
    assert transcript(session()) == ""
