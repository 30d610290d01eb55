"""OpenAI-style chat messages to log entries: the shape of completion logs and of published chat records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .content import content_text, note, tool_calls
from .schema import Message, Note, Segment
from .shape import mapping, string
from .turns import Act, Entry, Log, Result, Say

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def is_messages(value: object) -> bool:
    """Whether a JSON value is a list of chat messages, at least one of them with a known role and some content."""
    if not isinstance(value, list):
        return False
    roles = [string(mapping(message).get("role")) for message in value if isinstance(message, dict)]
    speaks = any(mapping(message).keys() & {"content", "tool_calls"} for message in value)
    return bool(roles) and speaks and all(role in ROLES for role in roles)


def segment(messages: list[Any], notes: list[Note]) -> Segment:
    """The messages as one segment: tool messages behind their call, unmatched ones as user text."""
    return Log(entries(messages, notes), notes, "v1").segments("full")[0]


def entries(messages: list[Any], notes: list[Note]) -> Iterator[Entry]:
    """Every message as a log entry; one that cannot be read is noted and left out."""
    hidden = sum(bool(mapping(recorded).get("reasoning_content")) for recorded in messages)
    if hidden:
        note(notes, "info", "log", f"the reasoning recorded with {hidden} turn(s) is not part of the messages")
    for number, recorded in enumerate(messages):
        where = f"message {number}"
        body = mapping(recorded)
        role = string(body.get("role"))
        if not body or role not in ROLES:
            found = f"role {body.get('role')!r:.40}" if body else f"a JSON {type(recorded).__name__}"
            note(notes, "dropped", where, f"not a chat message: {found}")
            continue
        text = content_text(body.get("content"), where, notes)
        name = string(body.get("name")) or None
        calls = tool_calls(_calls(body, where, notes), where, notes) if role == "assistant" else ()
        if calls:
            yield Act(where, where, None, text, calls)
        elif role in ("tool", "function"):
            yield Result(where, where, string(body.get("tool_call_id")) or None, None, text, name)
        elif role == "assistant":
            yield Say(where, where, Message(role="assistant", content=text))
        elif role == "user":
            yield Say(where, where, Message(role="user", content=text))
        else:
            yield Say(where, where, Message(role="system", content=text))


def _calls(body: dict[str, Any], where: str, notes: list[Note]) -> object:
    """`tool_calls`, or the single `function_call` that came before it."""
    legacy = body.get("function_call")
    if body.get("tool_calls") or not isinstance(legacy, dict):
        return body.get("tool_calls")
    note(notes, "info", where, "a function_call is read as a tool call")
    return [legacy]
