"""Readers of one JSON document: a V0 event array (plain or wrapped), a chat-message record."""

from __future__ import annotations

from typing import Protocol

from . import v0_events
from .chat_messages import is_messages, segment
from .content import note, tool_schemas
from .event_folder import v0_draft
from .files import UnreadableError, decode_text
from .formats import Draft
from .schema import Note, View
from .shape import integer, items, mapping

_WRAPPERS = ("trajectory", "events", "history")


class DocumentReader(Protocol):
    """A reader of one decoded JSON document."""

    format: str

    def sniff(self, value: object) -> bool:
        """Whether the document is of this format, by its content."""

    def read(self, value: object, view: View) -> Draft:
        """The session in a document that `sniff` accepted."""


class V0Trajectory:
    """An array of OpenHands V0 events, as saved or exported; alone or under `trajectory`, `events` or `history`."""

    format = "oh-v0-trajectory"

    def sniff(self, value: object) -> bool:
        return bool(self._events(value))

    def read(self, value: object, view: View) -> Draft:
        notes: list[Note] = []
        events = []
        for number, body in enumerate(self._events(value)):
            identity = integer(mapping(body).get("id"))
            where = f"event {identity}" if identity is not None else f"item {number}"
            if v0_events.is_event(body):
                events.append((where, mapping(body)))
            else:
                note(notes, "dropped", where, "not an OpenHands V0 event")
        return v0_draft(self.format, events, view, notes)

    def _events(self, value: object) -> list[object]:
        candidates = [value] if isinstance(value, list) else [mapping(value).get(key) for key in _WRAPPERS]
        for candidate in candidates:
            if any(v0_events.is_event(body) for body in items(candidate)):
                return items(candidate)
        return []


class ChatRecord:
    """One record of OpenAI-style `messages` (or `trajectory`); the list may be stored as a JSON string."""

    format = "chat-openai-tools"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        return not body.keys() & {"response", "history", "steps"} and is_messages(self._messages(value, []))

    def read(self, value: object, view: View) -> Draft:
        notes: list[Note] = []
        body = mapping(value)
        held = segment(items(self._messages(value, notes)), notes)
        tools, complete = tool_schemas(self._tools(body, notes), "record", notes)
        # A record made of several recordings one after another says so; its steps are not one agent's one task.
        name = f"{self.format}-chained" if body.get("repo") == "chained" else self.format
        return Draft(name, (held,), tools, complete, notes)

    def _messages(self, value: object, notes: list[Note]) -> object:
        body = mapping(value)
        for key in ("messages", "trajectory"):
            recorded = _unpacked(body.get(key), key, notes)
            if isinstance(recorded, list):
                return recorded
        return None

    def _tools(self, body: dict[str, object], notes: list[Note]) -> object:
        return _unpacked(body.get("tools"), "tools", notes)


def _unpacked(value: object, where: str, notes: list[Note]) -> object:
    """A value that may be stored as a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return decode_text(value, where, notes)
    except UnreadableError:
        return None


DOCUMENT_READERS: tuple[DocumentReader, ...] = (V0Trajectory(), ChatRecord())
