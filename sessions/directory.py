"""Discovery: every session under a path, and every file that is not part of one with the reason why.

Directories and tar archives are walked alike. What a file is, its content decides; names only give the order of
numbered events. One bad event never loses its session, one bad session never loses the directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leadline.errors import UsageError, explain

from .completions import Completion, completion, is_completion, read_completions
from .documents import DOCUMENT_READERS
from .event_folder import EventFolderReader, V0SessionDirectory, V1SessionDirectory
from .files import (
    Folder,
    UnreadableError,
    decode_text,
    decode_utf8,
    disk_folder,
    is_tar,
    natural,
    open_tar,
    starts_like_recording,
)
from .formats import Draft, stranger, unsupported
from .schema import Note, Session, View
from .source import task_source

FOLDER_READERS: tuple[EventFolderReader, ...] = (V1SessionDirectory(), V0SessionDirectory())
_EVENT_FOLDERS: tuple[tuple[str, ...], ...] = (("events",), ("event_service", "events"), ())
_SUFFIX = re.compile(r"\.(?:jsonl?|tar|tgz|traj)?(?:\.gz)?$")
_PROBED_LINES = 50
# Text that was meant to be JSON, so that its not being JSON is a fault: by its name, or by how it starts.
_JSON_NAME = re.compile(r"\.jsonl?(\.gz)?$")
_JSON_START = re.compile(r'\s*(\{\s*["}]|\[\s*(\[\s*[\[{"0-9\]-]|["{\]]|-?[0-9]))')


@dataclass(frozen=True)
class Skipped:
    """A file that gave no session.

    kind: "other" is no recording, "unsupported" a recording of a format that is not read, "broken" could not be read.
    """

    path: str
    reason: str
    kind: Literal["other", "unsupported", "broken"] = "other"


@dataclass(frozen=True)
class Discovery:
    """All that was found under a path, in a fixed order; session ids are unique."""

    sessions: tuple[Session, ...]
    skipped: tuple[Skipped, ...]


def discover(path: str | Path, view: View = "condensed") -> Discovery:
    """Every session and every other file under a file or directory; `UsageError` when there is no such path."""
    found = list(iter_sessions(path, view))
    return Discovery(
        tuple(item for item in found if isinstance(item, Session)),
        tuple(item for item in found if isinstance(item, Skipped)),
    )


def iter_sessions(path: str | Path, view: View = "condensed") -> Iterator[Session | Skipped]:
    """`discover`, one session or skipped file at a time: a file is opened only when its turn comes."""
    root = Path(path)
    if not root.exists():
        do = "name a session file or a directory of sessions"
        raise UsageError(explain("there are no sessions here", file=root, found="no such file or directory", do=do))
    absolute = root.resolve()
    if root.is_dir():
        folder, at = disk_folder(root), ""
        name = absolute.parent.name if absolute.name == "events" else absolute.name
    else:
        folder, at, name = Folder(str(root.parent), {root.name: root}), "", stem(root.name)
    ids: set[str] = set()
    for item in _Walk(view).folder(folder, at):
        yield item if isinstance(item, Skipped) else _session(item, name, view, ids)


@dataclass
class _Found:
    """A draft, where it was read, and its name relative to the root (empty: the root itself)."""

    draft: Draft
    path: str
    at: str


def stem(name: str) -> str:
    """A file name without the suffixes of recordings and their compression."""
    return _SUFFIX.sub("", name) or name


def _join(at: str, name: str) -> str:
    return f"{at}/{name}" if at else name


def _session(found: _Found, root: str, view: View, ids: set[str]) -> Session | Skipped:
    draft = found.draft
    base = "#".join(part for part in (found.at or root, draft.part) if part)
    identity, again = base, 1
    while identity in ids:
        again += 1
        identity = f"{base}~{again}"
    ids.add(identity)
    first = draft.segments[0].messages
    notes = list(dict.fromkeys(draft.notes))
    if not any(message.role == "system" for message in first):
        notes.append(Note(kind="missing", where="log", reason="no system prompt is recorded"))
    return Session(
        id=identity,
        format=draft.format,
        path=found.path + (f"#{draft.part}" if draft.part else ""),
        source=task_source(first, identity),
        view=view,
        segments=draft.segments,
        tools=draft.tools,
        tools_complete=draft.tools_complete,
        notes=tuple(notes),
    )


class _Walk:
    """One walk over folders (`archived`: inside an archive). Files that belong to a session leave their folder."""

    def __init__(self, view: View, archived: bool = False) -> None:
        self.view = view
        self.archived = archived

    def folder(self, folder: Folder, at: str) -> Iterator[_Found | Skipped]:
        """Everything in a folder: a session of event files first, then its other files, then its subfolders."""
        for reader in FOLDER_READERS:
            for names in _EVENT_FOLDERS:
                yield from self._event_files(reader, folder, names, at)
        logs: list[Completion] = []
        for name in folder.names():
            yield from self._file(folder, name, at, logs)
        yield from self._completions(logs, folder, at)
        for name in sorted(folder.folders, key=natural):
            yield from self.folder(folder.folders[name], _join(at, name))

    def _event_files(
        self, reader: EventFolderReader, root: Folder, names: tuple[str, ...], at: str
    ) -> Iterator[_Found | Skipped]:
        """The session whose event files stand in the subfolder `names` of `root`, if there is one."""
        events = beside = root
        for name in names:
            if name not in events.folders:
                return
            events, beside = events.folders[name], events
        files = reader.event_files(events)
        if not files:
            return
        try:
            yield _Found(reader.read(events, files, beside, self.view), root.label, at)
        except Exception as error:
            yield _failed(reader.format, root.label, error)
        for _, name in files:
            del events.files[name]
        for owner in (root, beside, events):
            for name in reader.sidecars & owner.files.keys():
                del owner.files[name]
            for name in reader.sidecars & owner.folders.keys():
                del owner.folders[name]

    def _file(self, folder: Folder, name: str, at: str, logs: list[Completion]) -> Iterator[_Found | Skipped]:
        path, here = folder.path(name), _join(at, stem(name))
        held = folder.files[name]
        try:
            if isinstance(held, Path) and not starts_like_recording(held):
                yield Skipped(path, "not a session: a binary file", "broken" if _JSON_NAME.search(path) else "other")
                return
            data = folder.data(name)
            if is_tar(data):
                yield from self._archive(data, path, here)
                return
        except UnreadableError as reason:
            yield Skipped(path, str(reason), "broken")
            return
        meant = bool(_JSON_NAME.search(path))
        try:
            text = decode_utf8(data)
        except UnreadableError as reason:
            yield Skipped(path, str(reason), "broken") if meant else Skipped(path, "not a session: not text")
            return
        if not text.strip():
            yield Skipped(path, "not a session: an empty file", "broken" if meant else "other")
            return
        notes: list[Note] = []
        try:
            value = decode_text(text, "file", notes)
        except UnreadableError as reason:
            yield from self._lines(text, path, here, reason)
            return
        if unsupported(value) is None and is_completion(value):
            yield from self._completion(name, value, path, logs)
        else:
            yield self._document(value, path, here, notes)

    def _document(self, value: object, path: str, at: str, notes: list[Note], part: str = "") -> _Found | Skipped:
        label = f"{path}#{part}" if part else path
        reason = unsupported(value)
        if reason is not None:
            return Skipped(label, reason, "unsupported")
        for reader in DOCUMENT_READERS:
            if reader.sniff(value):
                try:
                    draft = reader.read(value, self.view)
                except Exception as error:
                    return _failed(reader.format, label, error)
                draft.notes[:0] = notes
                draft.part = part
                return _Found(draft, path, at)
        return Skipped(label, stranger(value))

    def _lines(self, text: str, path: str, at: str, reason: UnreadableError) -> Iterator[_Found | Skipped]:
        """A file that is no JSON document: perhaps JSON lines, with bad lines between them."""
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        kind = next((kind for _, line in lines[:_PROBED_LINES] if (kind := self._line_kind(line)) is not None), None)
        if kind is None:
            meant = _JSON_NAME.search(path) or _JSON_START.match(text)
            yield Skipped(path, str(reason), "broken") if meant else Skipped(path, "not a session: not JSON")
        elif kind:
            yield Skipped(path, f"{kind} (JSON lines)", "unsupported")
        else:
            for number, line in lines:
                notes: list[Note] = []
                try:
                    value = decode_text(line, f"line {number}", notes)
                except UnreadableError as problem:
                    yield Skipped(f"{path}#line-{number}", str(problem), "broken")
                    continue
                yield self._document(value, path, at, notes, f"line-{number}")

    def _line_kind(self, line: str) -> str | None:
        """What one line of JSON lines is: "" a record that is read, a reason why it is not, None no record at all."""
        try:
            value = decode_text(line, "line", [])
        except UnreadableError:
            return None
        if not isinstance(value, dict) or not value:
            return None
        reason = unsupported(value)
        if reason is not None:
            return reason
        return "" if any(reader.sniff(value) for reader in DOCUMENT_READERS) else None

    def _completion(self, name: str, value: object, path: str, logs: list[Completion]) -> Iterator[Skipped]:
        try:
            logs.append(completion(name, value))
        except Exception as error:
            yield _failed("completion log", path, error)

    def _completions(self, logs: list[Completion], folder: Folder, at: str) -> Iterator[_Found | Skipped]:
        try:
            drafts = read_completions(logs, self.view, archived=self.archived)
        except Exception as error:
            yield _failed("completion log", folder.label, error)
            return
        whole = len({calls[0].task for _, calls in drafts}) == 1
        for draft, calls in drafts:
            last = calls[-1].name
            alone = len(calls) == 1 and not self.archived
            path = folder.path(last) if alone or not whole else folder.label
            yield _Found(draft, path, at if whole and not alone else _join(at, stem(last)))

    def _archive(self, data: bytes, path: str, at: str) -> Iterator[_Found | Skipped]:
        found = list(_Walk(self.view, archived=True).folder(open_tar(data, path), ""))
        homes = {item.at for item in found if isinstance(item, _Found)}
        for item in found:
            if isinstance(item, _Found):
                # An archive of one session directory is that session; its inner folder names add nothing.
                item.at = at if len(homes) == 1 else _join(at, item.at)
            yield item


def _failed(name: str, path: str, error: Exception) -> Skipped:
    """The last resort of a walk: a defect of a reader costs one session, never the directory."""
    return Skipped(path, f"the {name} reader failed on it: {type(error).__name__}: {str(error)[:200]}", "broken")
