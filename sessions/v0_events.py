"""OpenHands V0 events to log entries, as its ConversationMemory turned them into messages.

An event is `(where, body)`. Actions carry the model response they came from (`tool_call_metadata`), so the assistant
turn is the recorded one; logs from before tool calls have none: their turns are the text form those agents used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .content import content_text, note, tool_call, tool_calls, tool_schemas
from .schema import Message, Note, ToolCall
from .shape import integer, items, mapping, string
from .turns import Act, Condense, Entry, Hidden, Result, Say
from .v0_text import action_text, finish_text, message_text, observation_text, recall_text

Event = tuple[str, dict[str, Any]]
# Not in the agent's history at all, so they do not count in a condensation's offset either.
_ABSENT = {"null", "change_agent_state", "agent_state_changed"}
_SILENT = {
    "pause", "resume", "stop", "initialize", "start", "push", "send_pr", "recall", "condensation_request",
    "loop_recovery", "loop_detection", "reject",
}  # fmt: skip


def is_event(value: object) -> bool:
    """Whether a JSON value looks like one V0 event: an action with args or an observation, never both."""
    body = mapping(value)
    action, observation = isinstance(body.get("action"), str), isinstance(body.get("observation"), str)
    if action == observation or "kind" in body or "role" in body:
        return False
    return isinstance(body.get("args"), dict) if action else "content" in body or "extras" in body


def recorded_tools(events: Iterable[Event], notes: list[Note]) -> tuple[tuple[dict[str, object], ...], bool]:
    """The tools of the system action, when there is one (from about version 0.31)."""
    for where, body in events:
        if body.get("action") == "system":
            return tool_schemas(mapping(body.get("args")).get("tools"), where, notes)
    return tool_schemas(None, "log", notes)


def entries(events: list[Event], notes: list[Note]) -> Iterator[Entry]:
    """Every event the model saw, as log entries; a delegate's events are left out."""
    own = [event for event in _without_delegates(events, notes) if not _is_hidden(event[1])]
    old = not any(isinstance(body.get("tool_call_metadata"), dict) for _, body in own)
    last = max((n for n, (_, body) in enumerate(own) if _speaks(body)), default=-1)
    called: set[str] = set()
    for number, (where, body) in enumerate(own):
        event = str(integer(body.get("id")))
        if "action" not in body:
            yield from _observation(body, event, where, notes, old, called)
        elif string(body.get("action")) == "finish" and string(body.get("source")) == "agent":
            yield _finish(body, event, where, notes, final=number == last)
        else:
            for entry in _action(body, event, where, notes, events):
                if isinstance(entry, Act):
                    called.add(event)
                yield entry


def _speaks(body: dict[str, Any]) -> bool:
    """Whether an action is a turn of the user or the agent."""
    action = body.get("action")
    silent = action in _ABSENT | _SILENT | {"system", "condensation"} if isinstance(action, str) else True
    return not silent and body.get("source") in ("user", "agent")


def _is_hidden(body: dict[str, Any]) -> bool:
    """Commands of the runtime itself are logged as hidden and never reach the agent."""
    return mapping(body.get("args")).get("hidden") is True or mapping(body.get("extras")).get("hidden") is True


def _without_delegates(events: list[Event], notes: list[Note]) -> list[Event]:
    kept: list[Event] = []
    end = -1
    for number, (where, body) in enumerate(events):
        if number < end:
            continue
        kept.append((where, body))
        if body.get("action") != "delegate":
            continue
        depth = 0
        for later in range(number + 1, len(events)):
            other = events[later][1]
            depth += other.get("action") == "delegate"
            if other.get("observation") == "delegate":
                if depth == 0:
                    end = later
                    break
                depth -= 1
        if end > number + 1:
            note(notes, "info", where, f"{end - number - 1} event(s) of the delegated agent were left out")
    return kept


def _said(body: dict[str, Any], where: str, notes: list[Note]) -> tuple[str | None, str, tuple[ToolCall, ...]]:
    """Response id, text and calls of the model response an action came from."""
    metadata = mapping(body.get("tool_call_metadata"))
    response = mapping(metadata.get("model_response"))
    choice = mapping(next(iter(items(response.get("choices"))), None))
    message = mapping(choice.get("message"))
    calls = tool_calls(message.get("tool_calls"), where, notes)
    text = content_text(message.get("content"), where, notes)
    if not calls:
        arguments = {key: value for key, value in mapping(body.get("args")).items() if key != "thought"}
        made = {"id": metadata.get("tool_call_id"), "name": metadata.get("function_name"), "arguments": arguments}
        call = tool_call(made, where, notes)
        calls = (call,) if call is not None else ()
        text = text or string(mapping(body.get("args")).get("thought"))
        note(notes, "repaired", where, "the model response holds no tool call; rebuilt from the action")
    return string(response.get("id")) or None, text, calls


def _finish(body: dict[str, Any], event: str, where: str, notes: list[Note], final: bool) -> Entry:
    if not isinstance(body.get("tool_call_metadata"), dict):
        return Say(event, where, Message(role="assistant", content=finish_text(body, "", where, notes)))
    response, text, calls = _said(body, where, notes)
    if final:
        return Act(event, where, response, text, calls)  # the recorded last step, with the call the model made
    note(notes, "info", where, "a finish with turns after it is shown without its call, as later prompts had it")
    return Say(event, where, Message(role="assistant", content=finish_text(body, text, where, notes)))


def _action(body: dict[str, Any], event: str, where: str, notes: list[Note], events: list[Event]) -> Iterator[Entry]:
    action, source, args = string(body.get("action")), string(body.get("source")), mapping(body.get("args"))
    if action in _ABSENT:
        return
    if action == "system":
        yield Say(event, where, Message(role="system", content=content_text(args.get("content"), where, notes)))
    elif action == "message":
        role: Any = "assistant" if source == "agent" else "user"
        yield Say(event, where, Message(role=role, content=message_text(body, where, notes)))
    elif action == "condensation":
        yield _condensation(args, event, where, events)
    elif action in _SILENT:
        yield Hidden(event, where)
    elif source == "user" and action == "run":
        command = string(args.get("command"))
        yield Say(event, where, Message(role="user", content=f"User executed the command:\n{command}"))
    elif source != "agent":
        yield Hidden(event, where)
    elif isinstance(body.get("tool_call_metadata"), dict):
        yield Act(event, where, *_said(body, where, notes))
    else:
        yield Say(event, where, Message(role="assistant", content=action_text(body, where, notes)))


def _condensation(args: dict[str, Any], event: str, where: str, events: list[Event]) -> Condense:
    named = {str(identity) for identity in items(args.get("forgotten_event_ids")) if integer(identity) is not None}
    start, end = integer(args.get("forgotten_events_start_id")), integer(args.get("forgotten_events_end_id"))
    if start is not None and end is not None:
        logged = (integer(body.get("id")) for _, body in events)
        named |= {str(identity) for identity in logged if identity is not None and start <= identity <= end}
    summary = args.get("summary")
    text = summary if isinstance(summary, str) else None
    return Condense(event, where, frozenset(named), text, integer(args.get("summary_offset")))


def _observation(
    body: dict[str, Any], event: str, where: str, notes: list[Note], old: bool, called: set[str]
) -> Iterator[Entry]:
    kind = string(body.get("observation"))
    if kind in _ABSENT:
        return
    if kind in _SILENT:
        text = recall_text(mapping(body.get("extras")), where, notes) if kind == "recall" else ""
        yield Say(event, where, Message(role="user", content=text)) if text else Hidden(event, where)
        return
    metadata = body.get("tool_call_metadata")
    cause = integer(body.get("cause"))
    answers = isinstance(metadata, dict) or str(cause) in called
    text = observation_text(body, where, notes, old=old, for_user=not answers)
    if answers:
        call = string(mapping(metadata).get("tool_call_id")) or None
        name = string(mapping(metadata).get("function_name")) or None
        yield Result(event, where, call, None if cause is None else str(cause), text, name)
    else:
        yield Say(event, where, Message(role="user", content=text))
