"""Readers of session directories with one event a file: OpenHands V1 (`event-00012-<id>.json`) and V0 (`12.json`).

Files are taken in numeric order; a hole in the numbering, a file that does not parse and one that is no event are
noted, and the rest of the session is read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from . import v0_events, v1_events
from .content import note
from .event_drafts import v0_draft, v1_draft
from .files import UnreadableError, decode_json
from .folders import Folder
from .formats import Draft
from .schema import Note, NoteKind, View
from .shape import mapping

_SNIFFED = 8  # files looked at before a folder of numbered files is taken for something else


class EventFolderReader(ABC):
    """One reader of numbered event files.

    format: what its sessions are called. numbered: the file names it takes. sidecars: files and folders beside the
    events that belong to the session. hole: how a gap in the numbering is noted.
    """

    format: str
    numbered: re.Pattern[str]
    sidecars: frozenset[str]
    hole: NoteKind

    @abstractmethod
    def is_event(self, value: object) -> bool:
        """Whether one decoded file is an event of this format."""

    @abstractmethod
    def draft(self, events: list[tuple[str, dict[str, Any]]], beside: Folder, view: View, notes: list[Note]) -> Draft:
        """The session of events in numeric order."""

    def event_files(self, folder: Folder) -> list[tuple[int, str]]:
        """(index, name) of the folder's event files in numeric order; empty when its files are not this format's."""
        found = ((self.numbered.fullmatch(name), name) for name in folder.files)
        numbered = sorted((int(match.group(1)), name) for match, name in found if match and len(match.group(1)) < 19)
        for _, name in numbered[:_SNIFFED]:
            try:
                if self.is_event(decode_json(folder.data(name), name, [])):
                    return numbered
            except UnreadableError:
                continue
        return []

    def read(self, folder: Folder, files: list[tuple[int, str]], beside: Folder, view: View) -> Draft:
        """The session in `folder`; `beside` is where its sidecar files are."""
        notes: list[Note] = []
        events: list[tuple[str, dict[str, Any]]] = []
        for index, name in files:
            where = f"event {index}"
            try:
                body = decode_json(folder.data(name), where, notes)
            except UnreadableError as reason:
                note(notes, "dropped", where, f"{name}: {reason}")
                continue
            if self.is_event(body):
                events.append((where, mapping(body)))
            else:
                note(notes, "dropped", where, f"{name}: not an event of this session's format")
        self._note_holes([index for index, _ in files], notes)
        return self.draft(events, beside, view, notes)

    def _note_holes(self, indexes: list[int], notes: list[Note]) -> None:
        expected = 0
        for index in indexes:
            if index > expected:
                span = f"{expected}" if index == expected + 1 else f"{expected}-{index - 1}"
                note(notes, self.hole, f"event {expected}", f"event indexes {span} are missing ({index - expected})")
            expected = index + 1


class V1SessionDirectory(EventFolderReader):
    """OpenHands V1: `events/` (or `event_service/events/`) beside a base_state.json; an export's unpacked archive."""

    format = "oh-v1-session-dir"
    numbered = re.compile(r"event[-_]([0-9]+)[-_][0-9a-zA-Z-]+\.json(?:\.gz)?")
    sidecars = frozenset({"base_state.json", "meta.json", "TASKS.json", ".eventlog.lock"})
    hole: NoteKind = "missing"

    def is_event(self, value: object) -> bool:
        return v1_events.is_event(value)

    def draft(self, events: list[tuple[str, dict[str, Any]]], beside: Folder, view: View, notes: list[Note]) -> Draft:
        return v1_draft(self.format, events, view, notes, leaf=_state(beside, notes).get("leaf_event_id"))


class V0SessionDirectory(EventFolderReader):
    """OpenHands V0: `events/` beside a metadata.json."""

    format = "oh-v0-session-dir"
    numbered = re.compile(r"([0-9]+)\.json(?:\.gz)?")
    sidecars = frozenset({
        "metadata.json", "init.json", "agent_state.pkl", "conversation_stats.pkl", "llm_registry.json",
        "exp_config.json", "event_cache",
    })  # fmt: skip
    hole: NoteKind = "info"  # exports leave null observations out

    def is_event(self, value: object) -> bool:
        return v0_events.is_event(value)

    def draft(self, events: list[tuple[str, dict[str, Any]]], beside: Folder, view: View, notes: list[Note]) -> Draft:
        return v0_draft(self.format, events, view, notes)


def _state(beside: Folder, notes: list[Note]) -> dict[str, Any]:
    if "base_state.json" not in beside.files:
        return {}
    try:
        return mapping(decode_json(beside.data("base_state.json"), "base_state.json", []))
    except UnreadableError as reason:
        note(notes, "info", "base_state.json", str(reason))
        return {}
