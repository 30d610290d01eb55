"""A session from a list of OpenHands events, wherever the list was stored: a folder, a file, an evaluation record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import v0_events, v1_events
from .content import content_text, note
from .formats import Draft
from .schema import Message, Note, View
from .shape import integer, mapping
from .turns import Act, Entry, Log, Say

Event = tuple[str, dict[str, Any]]


def v0_draft(name: str, events: list[Event], view: View, notes: list[Note], instruction: object = None) -> Draft:
    """A session of V0 events, in the order of their ids where all have one. `instruction`: see `v1_draft`."""
    ids = [integer(body.get("id")) for _, body in events]
    known = [identity for identity in ids if identity is not None]
    if len(known) == len(events) and len(set(known)) == len(events):
        events = [event for _, event in sorted(zip(known, events, strict=True), key=lambda pair: pair[0])]
    tools, complete = v0_events.recorded_tools(events, notes)
    entries = _instructed(v0_events.entries(events, notes), instruction, notes)
    log = Log(entries, notes, "v0")
    return Draft(name, log.segments(view), tools, complete, notes)


def v1_draft(
    name: str, events: list[Event], view: View, notes: list[Note], *, leaf: object = None, instruction: object = None
) -> Draft:
    """A session of V1 events.

    leaf: the event a tree of events ends with. instruction: the task as an evaluation record keeps it; it becomes the
    first user message of a history that starts without one.
    """
    tools, complete = v1_events.recorded_tools(events, notes)
    hidden = sum(bool(body.get("reasoning_content") or body.get("thinking_blocks")) for _, body in events)
    if hidden:
        note(notes, "info", "log", f"the reasoning recorded with {hidden} turn(s) is not part of the messages")
    entries = _instructed(v1_events.entries(v1_events.ordered(events, leaf, notes), notes), instruction, notes)
    log = Log(entries, notes, "v1")
    return Draft(name, log.segments(view), tools, complete, notes)


def labelled(values: Iterable[object], dialect: str, notes: list[Note]) -> list[Event]:
    """(where, event) of a stored list; what is no event of the dialect ("v0" or "v1") is noted and left out."""
    is_event = v0_events.is_event if dialect == "v0" else v1_events.is_event
    events: list[Event] = []
    for number, value in enumerate(values):
        body = mapping(value)
        identity = integer(body.get("id")) if dialect == "v0" else None
        where = f"item {number}" if identity is None else f"event {identity}"
        if is_event(value):
            events.append((where, body))
        else:
            note(notes, "dropped", where, f"not an OpenHands {dialect.upper()} event")
    return events


def _instructed(entries: Iterable[Entry], instruction: object, notes: list[Note]) -> list[Entry]:
    """The entries, opened by the instruction where no user speaks before the agent does."""
    found = list(entries)
    spoken = (entry for entry in found if isinstance(entry, (Act, Say)) and not _is_system(entry))
    opening = next(spoken, None)
    if isinstance(opening, Say) and opening.message.role == "user":
        return found
    text = content_text(instruction, "instruction", notes) if isinstance(instruction, str) else ""
    if not text.strip():
        return found
    note(notes, "repaired", "instruction", "no user message opens the history; the record's instruction is put there")
    at = next((n for n, entry in enumerate(found) if not _is_system(entry)), len(found))
    found.insert(at, Say("instruction", "instruction", Message(role="user", content=text)))
    return found


def _is_system(entry: Entry) -> bool:
    return isinstance(entry, Say) and entry.message.role == "system"
