"""Which reader takes a file of JSON lines that is one session as a whole, and the readers of events one a line.

Lines between the events that are no JSON (what a program prints beside them) are counted; a broken line that looks
like an event is a loss and is noted as one.
"""

from __future__ import annotations

from typing import Protocol

from . import v0_events, v1_events
from .chat_messages import is_messages, segment
from .claude_code import ClaudeCode
from .codex import CodexRollout
from .content import tool_schemas
from .event_drafts import labelled, v0_draft, v1_draft
from .formats import Draft
from .schema import Note, View
from .shape import mapping


class LineReader(Protocol):
    """A reader of a session whose events or messages stand one on a line."""

    format: str

    def sniff(self, value: object) -> bool:
        """Whether one decoded line is of this format."""

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        """The sessions in a file's decoded lines, each as (where, value)."""


class V1Lines:
    """OpenHands V1 events, one a line: a log of events, or what a headless run prints between its status lines."""

    format = "oh-v1-events-lines"

    def sniff(self, value: object) -> bool:
        return v1_events.is_event(value)

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        return [v1_draft(self.format, _events(lines, "v1", notes), view, notes)]


class V0Lines:
    """OpenHands V0 events, one a line."""

    format = "oh-v0-events-lines"

    def sniff(self, value: object) -> bool:
        return v0_events.is_event(value)

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        return [v0_draft(self.format, _events(lines, "v0", notes), view, notes)]


class MessageLines:
    """Chat messages, one a line."""

    format = "chat-message-lines"

    def sniff(self, value: object) -> bool:
        return "messages" not in mapping(value) and is_messages([value])

    def read(self, lines: list[tuple[str, object]], view: View, notes: list[Note]) -> list[Draft]:
        messages = [value for _, value in lines]
        calls = any(mapping(message).get("tool_calls") for message in messages)
        tools, complete = tool_schemas(None, "log", notes, as_text=not calls)
        return [Draft(self.format, (segment(messages, notes),), tools, complete, notes)]


def _events(lines: list[tuple[str, object]], dialect: str, notes: list[Note]) -> list[tuple[str, dict[str, object]]]:
    made: list[Note] = []
    events = labelled([value for _, value in lines], dialect, made)
    wheres = {f"item {number}": where for number, (where, _) in enumerate(lines)}
    notes.extend(found.model_copy(update={"where": wheres.get(found.where, found.where)}) for found in made)
    return [(wheres.get(where, where), body) for where, body in events]


LINE_READERS: tuple[LineReader, ...] = (ClaudeCode(), CodexRollout(), V1Lines(), V0Lines(), MessageLines())
