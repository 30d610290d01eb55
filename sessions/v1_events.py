"""OpenHands V1 events (software-agent-sdk, CLI, agent server) to log entries: one small function per event kind.

Events are read as plain JSON, never through the SDK: its models refuse older recordings whole, this reader degrades one
event at a time. An event is `(where, body)`; `where` is its index in the directory. (Mapping: the class that wrote it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .content import content_text, note, plain, tool_call, tool_calls, tool_schemas
from .schema import Message, Note
from .shape import integer, items, mapping, string
from .turns import Act, Condense, Entry, Result, Say
from .v1_text import observation_text

Event = tuple[str, dict[str, Any]]
_INTERNAL = {
    "CondensationRequest", "CondensationSummaryEvent", "PauseEvent", "InterruptEvent", "ConversationStateUpdateEvent",
    "ConversationErrorEvent", "TokenEvent", "LLMCompletionLogEvent", "StreamingDeltaEvent", "HookExecutionEvent",
    "ACPToolCallEvent",
}  # fmt: skip


def is_event(value: object) -> bool:
    """Whether a JSON value looks like one V1 event: an object with a kind, an id and a source."""
    body = mapping(value)
    return bool(string(body.get("kind")) and string(body.get("id"))) and "source" in body and "action_type" not in body


def ordered(events: list[Event], leaf: object, notes: list[Note]) -> list[Event]:
    """Index order; where events name a parent, the path from the root to `leaf` (default: the last event)."""
    if not any(body.get("parent_id") for _, body in events):
        return events
    number = {string(body.get("id")): n for n, (_, body) in enumerate(events)}
    at: int | None = number.get(string(leaf), len(events) - 1)
    path: list[int] = []
    seen: set[int] = set()
    while at is not None:
        if at in seen:
            note(notes, "repaired", events[at][0], "the parents of events form a cycle; read in index order")
            return events
        seen.add(at)
        path.append(at)
        parent = events[at][1].get("parent_id")
        if parent == "__root__":
            break
        if parent is not None and string(parent) not in number:
            note(notes, "repaired", events[at][0], f"parent {parent!r} is not in the log; read in index order")
            return events
        at = number[string(parent)] if parent is not None else (at - 1 if at else None)
    if len(path) < len(events):
        note(notes, "info", events[path[0]][0], f"{len(events) - len(path)} event(s) on other branches were left out")
    return [events[n] for n in reversed(path)]


def entries(events: Iterable[Event], notes: list[Note]) -> Iterator[Entry]:
    """Every event the model saw, as log entries; a bad one is noted and left out."""
    for where, body in events:
        kind = string(body.get("kind"))
        read = _READERS.get(kind)
        if read is not None:
            yield from read(body, string(body.get("id")), where, notes)
        elif kind not in _INTERNAL:
            note(notes, "dropped", where, f"unknown event kind {kind!r}")


def recorded_tools(events: Iterable[Event], notes: list[Note]) -> tuple[tuple[dict[str, object], ...], bool]:
    """The tools of the first SystemPromptEvent, and whether their parameter schemas are there."""
    for where, body in events:
        if body.get("kind") == "SystemPromptEvent":
            return tool_schemas(body.get("tools"), where, notes)
    return tool_schemas(None, "log", notes)


def _system(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    parts = [body.get("system_prompt"), body.get("dynamic_context")]
    text = content_text([part for part in parts if part is not None], where, notes)
    yield Say(event, where, Message(role="system", content=text))


def _message(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    recorded = mapping(body.get("llm_message"))
    text = content_text(_parts(recorded.get("content")) + items(body.get("extended_content")), where, notes)
    role = string(recorded.get("role"))
    calls = tool_calls(recorded.get("tool_calls"), where, notes) if role == "assistant" else ()
    if calls:
        yield Act(event, where, string(body.get("llm_response_id")) or None, text, calls)
    elif role == "tool":
        yield Result(event, where, string(recorded.get("tool_call_id")) or None, None, text)
    elif role == "user":
        yield Say(event, where, Message(role="user", content=text), mergeable=True)
    elif role == "assistant":
        yield Say(event, where, Message(role="assistant", content=text))
    elif role == "system":
        yield Say(event, where, Message(role="system", content=text))
    else:
        note(notes, "dropped", where, f"a message of role {recorded.get('role')!r}")


def _parts(content: object) -> list[Any]:
    if content is None:
        return []
    return content if isinstance(content, list) else [content]


def _action(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    # `tool_call` is what the model wrote; `action` is what the tool made of it, and may be null.
    recorded = mapping(body.get("tool_call"))
    if not recorded:
        note(notes, "repaired", where, "an action without its tool call; arguments rebuilt from the action")
        made = {key: value for key, value in mapping(body.get("action")).items() if key != "kind"}
        recorded = {"name": body.get("tool_name"), "arguments": made}
    if not string(recorded.get("id")):
        recorded = {**recorded, "id": body.get("tool_call_id")}
    call = tool_call(recorded, where, notes)
    text = content_text(body.get("thought"), where, notes)
    response = string(body.get("llm_response_id")) or None
    yield Act(event, where, response, text, () if call is None else (call,))


def _observation(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    text = observation_text(mapping(body.get("observation")), where, notes)
    more = content_text(body.get("extended_content") or None, where, notes)
    yield _result(body, event, where, f"{text}\n{more}" if more else text)


def _agent_error(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    yield _result(body, event, where, plain(string(body.get("error")), where, notes))


def _rejection(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    reason = plain(string(body.get("rejection_reason")), where, notes)
    yield _result(body, event, where, f"Action rejected: {reason}")


def _result(body: dict[str, Any], event: str, where: str, text: str) -> Result:
    call, cause, name = (string(body.get(key)) or None for key in ("tool_call_id", "action_id", "tool_name"))
    return Result(event, where, call, cause, text, name)


def _condensation(body: dict[str, Any], event: str, where: str, notes: list[Note]) -> Iterator[Entry]:
    forgotten = frozenset(identity for identity in items(body.get("forgotten_event_ids")) if isinstance(identity, str))
    summary = body.get("summary")
    text = summary if isinstance(summary, str) else None
    yield Condense(event, where, forgotten, text, integer(body.get("summary_offset")))


_READERS: dict[str, Callable[[dict[str, Any], str, str, list[Note]], Iterator[Entry]]] = {
    "SystemPromptEvent": _system,
    "MessageEvent": _message,
    "ActionEvent": _action,
    "ObservationEvent": _observation,
    "AgentErrorEvent": _agent_error,
    "UserRejectObservation": _rejection,
    "Condensation": _condensation,
}
