"""Readers of SWE-agent `.traj` and mini-swe-agent `.traj.json` files: one JSON object with the messages of a run."""

from __future__ import annotations

import json
from typing import Any

from .chat_messages import is_messages, segment
from .content import note, tool_schemas
from .formats import Draft
from .schema import Note, Segment, View
from .shape import items, mapping, string

_SHORTENING = {"last_n_observations", "closed_window", "remove_regex", "image_parsing"}


class SweAgent:
    """A SWE-agent trajectory. The messages are its `history`; `trajectory` holds the same run once more for people.

    Demonstrations stay where the model saw them but are no steps. With retries, every attempt is a session.
    """

    format = "sweagent-traj"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        return ("trajectory" in body or "attempts" in body) and bool(_histories(body))

    def read(self, value: object, view: View) -> list[Draft]:
        body = mapping(value)
        found = _histories(body)
        drafts = []
        for number, (history, owner) in enumerate(found, start=1):
            draft = self._draft(history, owner or body, body)
            draft.attempt, draft.attempts = number, len(found)
            draft.part = f"attempt-{number}" if len(found) > 1 else ""
            drafts.append(draft)
        return drafts

    def _draft(self, history: list[Any], owner: dict[str, Any], body: dict[str, Any]) -> Draft:
        notes: list[Note] = []
        if not items(owner.get("history")):
            note(notes, "missing", "history", "no history is stored: the prompt before the first answer is not known")
        history = _of_one_agent(history, notes)
        shortened = _processors(body) | _processors(owner)
        if shortened:
            named = ", ".join(sorted(shortened))
            reason = f"the agent shortened older results in its prompts ({named}); here they stand as recorded"
            note(notes, "missing", "history", reason)
        demos = [number for number, message in enumerate(history) if mapping(message).get("is_demo") is True]
        if demos:
            note(notes, "info", f"message {demos[0]}", f"{len(demos)} message(s) of a demonstration are no steps")
        calls = any(mapping(message).get("tool_calls") for message in history)
        shown = demos[-1] + 1 if any(mapping(history[n]).get("role") == "assistant" for n in demos) else 0
        carried = len(segment([_message(message) for message in history[:shown]], []).messages)
        held = segment([_message(message) for message in history], notes)
        tools, complete = tool_schemas(None, "log", notes, as_text=not calls)
        return Draft(self.format, (Segment(messages=held.messages, carried=carried),), tools, complete, notes)


class MiniSweAgent:
    """A mini-swe-agent trajectory: `messages` beside an `info` object. The closing `exit` entry is no message."""

    format = "mini-swe-agent-traj"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        info = mapping(body.get("info"))
        own = string(body.get("trajectory_format")).startswith("mini-swe-agent") or "mini_version" in info
        messages = [message for message in items(body.get("messages")) if not _is_exit(message)]
        return (own or "model_stats" in info) and is_messages(messages)

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        recorded = items(mapping(value).get("messages"))
        messages = [message for message in recorded if not _is_exit(message)]
        if len(messages) < len(recorded):
            note(notes, "info", f"message {len(recorded) - 1}", "the closing exit entry was never shown to the model")
        calls = any(mapping(message).get("tool_calls") for message in messages)
        tools, complete = tool_schemas(None, "log", notes, as_text=not calls)
        return [Draft(self.format, (segment(messages, notes),), tools, complete, notes)]


def _is_exit(message: object) -> bool:
    body = mapping(message)
    return body.get("role") == "exit" or "exit_status" in mapping(body.get("extra"))


def _histories(body: dict[str, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
    """(history, the object it stands in) of every attempt."""
    owners = [body, *(mapping(attempt) for attempt in items(body.get("attempts")))]
    found = [(items(owner.get("history")), owner) for owner in owners]
    found = [(history, owner) for history, owner in found if _is_history(history)]
    if not found:
        return [(history, body)] if (history := _from_entries(items(body.get("trajectory")))) else []
    # The object of a run with attempts repeats the chosen one.
    return found[1:] if len(found) > 1 and found[0][0] in [history for history, _ in found[1:]] else found


def _is_history(history: list[Any]) -> bool:
    named = any("agent" in mapping(message) or "message_type" in mapping(message) for message in history)
    return named and is_messages(history)


def _from_entries(entries: list[Any]) -> list[Any]:
    """The messages of a trajectory that was stored without its history: what was said and what came back."""
    bodies = [mapping(entry) for entry in entries]
    if not any(body.keys() >= {"action", "observation"} and body.keys() & {"response", "thought"} for body in bodies):
        return []
    messages: list[Any] = []
    for body in bodies:
        messages.append({"role": "assistant", "content": body.get("response") or body.get("thought"), "agent": ""})
        messages.append({"role": "user", "content": body.get("observation"), "agent": ""})
    return messages


def _of_one_agent(history: list[Any], notes: list[Note]) -> list[Any]:
    """The messages of the agent that wrote most of them; others (a reviewer, a helper) have prompts of their own."""
    names = [string(mapping(message).get("agent")) for message in history]
    main = max(names, key=names.count)
    kept = [message for message, name in zip(history, names, strict=True) if name in (main, "")]
    if len(kept) < len(history):
        others = ", ".join(sorted(set(names) - {main, ""}))
        note(notes, "info", "history", f"{len(history) - len(kept)} message(s) of other agents left out: {others}")
    return kept


def _message(recorded: object) -> object:
    """A history item as a chat message: a tool message names its call in a list of one."""
    body = mapping(recorded)
    ids = items(body.get("tool_call_ids"))
    if body.get("role") != "tool" or body.get("tool_call_id") or not ids:
        return recorded
    return {**body, "tool_call_id": ids[0]}


def _processors(body: dict[str, Any]) -> set[str]:
    """The history processors of a run's configuration that changed what its prompts held."""
    config = body.get("replay_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            config = None
    agent = mapping(mapping(config).get("agent"))
    named = [agent.get("history_processor"), *items(agent.get("history_processors"))]
    types = {string(mapping(processor).get("type")) for processor in named}
    return types & _SHORTENING
