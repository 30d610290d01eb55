"""Readers of OpenHands events stored as one JSON array, alone or wrapped: V0 trajectories and V1 exports."""

from __future__ import annotations

from collections.abc import Callable

from . import v0_events, v1_events
from .event_drafts import labelled, v0_draft, v1_draft
from .formats import Draft
from .schema import Note, View
from .shape import items, mapping

_WRAPPERS = ("trajectory", "events", "history")


class V0Trajectory:
    """An array of OpenHands V0 events, as saved or exported; alone or under `trajectory`, `events` or `history`."""

    format = "oh-v0-trajectory"

    def sniff(self, value: object) -> bool:
        return bool(_events(value, v0_events.is_event))

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        events = labelled(_events(value, v0_events.is_event), "v0", notes)
        return [v0_draft(self.format, events, view, notes)]


class V1Export:
    """An array of OpenHands V1 events; alone, or under `events` beside a conversation id as the server exports it."""

    format = "oh-v1-export"

    def sniff(self, value: object) -> bool:
        return bool(_events(value, v1_events.is_event))

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        events = labelled(_events(value, v1_events.is_event), "v1", notes)
        return [v1_draft(self.format, events, view, notes, leaf=mapping(value).get("leaf_event_id"))]


def _events(value: object, is_event: Callable[[object], bool]) -> list[object]:
    candidates = [value] if isinstance(value, list) else [mapping(value).get(key) for key in _WRAPPERS]
    for candidate in candidates:
        if any(is_event(body) for body in items(candidate)):
            return items(candidate)
    return []
