"""Reader of Codex rollout logs: JSON lines of `{timestamp, type, payload}`, the messages in `response_item` lines.

`event_msg` lines repeat them for a user interface. A compaction opens a new segment: the agent goes on with what the
user said and a summary. Tool schemas are not logged. Rollouts from before the envelope hold the bare items.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import chat_messages
from .content import content_text, note, tool_schemas
from .formats import Draft
from .response_items import chat_messages as from_items
from .response_items import is_item
from .schema import Message, Note, View
from .shape import items, mapping, string
from .turns import Act, Condense, Entry, Log, Result, Say

_ENVELOPES = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}


class CodexRollout:
    """All lines of one rollout."""

    format = "codex-rollout"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        if string(body.get("type")) in _ENVELOPES:
            return isinstance(body.get("payload"), dict)
        return is_item(body) and body.get("type") != "reasoning"

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        entries: list[Entry] = []
        held: list[tuple[str, object]] = []
        for where, value in lines:
            body = mapping(value)
            payload = mapping(body.get("payload"))
            kind = string(body.get("type"))
            if kind == "session_meta":
                prompt = string(mapping(payload.get("base_instructions")).get("text"))
                if prompt and not entries and not held:
                    entries.append(Say(where, where, Message(role="system", content=prompt)))
            elif kind == "response_item":
                held.append((where, payload))
            elif kind == "compacted":
                entries += self._entries(held, len(entries), notes)
                held = []
                entries += self._compacted(payload, where, entries, notes)
            elif kind not in _ENVELOPES and is_item(body):
                held.append((where, body))
            elif kind not in _ENVELOPES and not (body.keys() & {"record_type", "instructions"}):
                note(notes, "dropped", where, f"a line of type {body.get('type')!r:.40}")
        entries += self._entries(held, len(entries), notes)
        log = Log(entries, notes, "v1")
        tools, complete = tool_schemas(None, "log", notes)
        return [Draft(self.format, log.segments(view), tools, complete, notes)]

    def _entries(self, held: list[tuple[str, object]], before: int, notes: list[Note]) -> list[Entry]:
        """The items as log entries, under event names that no other stretch of the log uses."""
        made = chat_messages.entries(list(from_items(held, notes)), notes)
        return [_renamed(entry, f"{before}+{entry.event}") for entry in made]

    def _compacted(self, payload: dict[str, Any], where: str, before: list[Entry], notes: list[Note]) -> list[Entry]:
        """The compaction as the agent went on: what replaced the history, or the user's words and the summary."""
        replaced = items(payload.get("replacement_history"))
        if replaced:
            fresh = from_items([(where, item) for item in replaced], notes)
            forgotten = frozenset(entry.event for entry in before)
            said = [message for message in fresh if message["role"] in ("system", "user")]
            if len(said) < len(fresh):
                note(
                    notes, "dropped", where, f"{len(fresh) - len(said)} message(s) of the agent in a rewritten history"
                )
            texts = [Message(role=message["role"], content=message["content"]) for message in said]
        else:
            acted = (entry for entry in before if isinstance(entry, (Act, Result)) or _is_answer(entry))
            forgotten = frozenset(entry.event for entry in acted)
            summary = content_text(payload.get("message"), where, notes)
            texts = [Message(role="user", content=summary)] if summary else []
        opened: list[Entry] = [Condense(where, where, forgotten, None, None)]
        return opened + [Say(f"{where}/{number}", where, message) for number, message in enumerate(texts)]


def _is_answer(entry: Entry) -> bool:
    return isinstance(entry, Say) and entry.message.role == "assistant"


def _renamed(entry: Entry, event: str) -> Entry:

    return replace(entry, event=event)
