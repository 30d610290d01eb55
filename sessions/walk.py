"""One walk over folders and archives: which reader gets which file, and why every other file is no session.

The readers are asked in a fixed order: folders of event files, completion logs, tables, JSON documents, JSON lines.
Files that belong to a session leave their folder, so that nothing is read twice and nothing is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import files
from .archives import is_archive, open_archive
from .completions import Completion, completion, is_completion, read_completions
from .documents import DOCUMENT_READERS
from .event_folder import EventFolderReader, V0SessionDirectory, V1SessionDirectory
from .files import UnreadableError, decode_text, decode_utf8
from .folders import Folder, natural
from .formats import stranger, unsupported
from .found import Found, Skipped, failed, left_out
from .line_files import Line, Reader, lines_reader, read_log, read_records
from .schema import Note, View
from .shape import mapping
from .tables import Filters, file_rows, keeps, table_kind

FOLDER_READERS: tuple[EventFolderReader, ...] = (V1SessionDirectory(), V0SessionDirectory())
_EVENT_FOLDERS: tuple[tuple[str, ...], ...] = (("events",), ("event_service", "events"), ())
_SUFFIX = re.compile(r"\.(?:jsonl?|tar|tgz|zip|traj|traj\.json|parquet|arrow)?(?:\.gz)?$")
_NO_COLUMNS = "left out: a filter asks for columns, and events have none"
_NESTED = 2  # archives inside archives
# Text that was meant to be JSON, so that its not being JSON is a fault: by its name, or by how it starts.
_JSON_NAME = re.compile(r"\.(jsonl?|traj)(\.gz)?$")
_JSON_START = re.compile(r'\s*(\{\s*["}]|\[\s*(\[\s*[\[{"0-9\]-]|["{\]]|-?[0-9]))')


def stem(name: str) -> str:
    """A file name without the suffixes of recordings and their compression."""
    return _SUFFIX.sub("", name) or name


def _join(at: str, name: str) -> str:
    return f"{at}/{name}" if at else name


class Walk:
    """One walk. archived: how many archives it is inside of. filters: what a record must have to be read."""

    def __init__(self, view: View, archived: int = 0, filters: Filters | None = None) -> None:
        self.view = view
        self.archived = archived
        self.filters = filters or {}

    def folder(self, folder: Folder, at: str) -> Iterator[Found | Skipped]:
        """Everything in a folder: a session of event files first, then its other files, then its subfolders."""
        for reader in FOLDER_READERS:
            for names in _EVENT_FOLDERS:
                yield from self._event_files(reader, folder, names, at)
        logs: list[Completion] = []
        for name in folder.names():
            try:
                yield from self._file(folder, name, at, logs)
            except Exception as error:
                yield failed("file", folder.path(name), error)
        yield from self._completions(logs, folder, at)
        for name in sorted(folder.folders, key=natural):
            yield from self.folder(folder.folders.pop(name), _join(at, name))

    def _event_files(
        self, reader: EventFolderReader, root: Folder, names: tuple[str, ...], at: str
    ) -> Iterator[Found | Skipped]:
        """The session whose event files stand in the subfolder `names` of `root`, if there is one."""
        events = beside = root
        for name in names:
            if name not in events.folders:
                return
            events, beside = events.folders[name], events
        numbered = reader.event_files(events)
        if not numbered:
            return
        if self.filters:
            yield Skipped(root.label, _NO_COLUMNS, "filtered")
        else:
            try:
                yield Found(reader.read(events, numbered, beside, self.view), root.label, at)
            except Exception as error:
                yield failed(reader.format, root.label, error)
        for _, name in numbered:
            del events.files[name]
        for owner in (root, beside, events):
            for name in reader.sidecars & owner.files.keys():
                del owner.files[name]
            for name in reader.sidecars & owner.folders.keys():
                del owner.folders[name]

    def _file(self, folder: Folder, name: str, at: str, logs: list[Completion]) -> Iterator[Found | Skipped]:
        path, here = folder.path(name), _join(at, stem(name))
        held = folder.files[name]
        meant = bool(_JSON_NAME.search(path))
        try:
            if isinstance(held, Path):
                files.regular_size(held)  # a pipe must never be opened
                if not files.starts_like_recording(held):
                    yield Skipped(path, "not a session: a binary file", "broken" if meant else "other")
                    return
                if (kind := table_kind(files.head(held, 16), name)) is not None:
                    yield from self.rows(file_rows(held, kind), path, here)
                    return
                if _is_large(held) and (reader := lines_reader(files.stream_lines(held))) is not None:
                    yield from self._lines(files.stream_lines(held), reader, path, here)
                    return
            data = folder.data(name)
            if is_archive(data):
                yield from self._archive(data, path, here)
                return
        except UnreadableError as reason:
            yield Skipped(path, str(reason), "broken")
            return
        if table_kind(data[:16], name) is not None:
            yield Skipped(path, "a table inside an archive: unpack the archive to read it", "unsupported")
            return
        try:
            text = decode_utf8(data)
        except UnreadableError as reason:
            yield from self._text_lines(data, path, here, str(reason) if meant else "not a session: not text", meant)
            return
        if not text.strip():
            yield Skipped(path, "not a session: an empty file", "broken" if meant else "other")
            return
        notes: list[Note] = []
        try:
            value = decode_text(text, "file", notes)
        except UnreadableError as reason:
            meant = meant or bool(_JSON_START.match(text))
            yield from self._text_lines(data, path, here, str(reason) if meant else "not a session: not JSON", meant)
            return
        if is_completion(value):
            yield from self._completion(name, value, path, logs)
        else:
            yield from self._document(value, path, here, notes)

    def rows(self, rows: Iterable[dict[str, Any]], path: str, at: str) -> Iterator[Found | Skipped]:
        """Every row of a table that passes the filters."""
        left = number = 0
        columns: set[str] = set()
        try:
            for number, row in enumerate(rows, start=1):
                columns |= row.keys()
                if keeps(row, self.filters):
                    yield from self._document(row, path, at, [], f"row-{number}")
                else:
                    left += 1
        except UnreadableError as reason:
            yield Skipped(path, str(reason), "broken")
        if left:
            yield left_out(path, left, number, columns, self.filters)

    def _document(
        self, value: object, path: str, at: str, notes: list[Note], part: str = ""
    ) -> Iterator[Found | Skipped]:
        label = f"{path}#{part}" if part else path
        if self.filters and not part and not keeps(mapping(value), self.filters):
            yield left_out(label, 1, 1, set(mapping(value)), self.filters)
            return
        for reader in DOCUMENT_READERS:
            if reader.sniff(value):
                try:
                    drafts = reader.read(value, self.view)
                except Exception as error:
                    yield failed(reader.format, label, error)
                    return
                drafts[0].notes[:0] = notes
                for draft in drafts:
                    draft.part = "#".join(piece for piece in (part, draft.part) if piece)
                    yield Found(draft, path, at)
                return
        reason = unsupported(value)
        if reason is not None:
            yield Skipped(label, reason, "unsupported")
        else:
            yield Skipped(label, stranger(value))

    def _text_lines(self, data: bytes, path: str, at: str, reason: str, meant: bool) -> Iterator[Found | Skipped]:
        """A file that is no JSON document: perhaps JSON lines, with bad lines between them."""
        lines: list[Line] = [(n, line) for n, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
        reader = lines_reader(lines)
        if reader is None:
            yield Skipped(path, reason, "broken" if meant else "other")
        else:
            yield from self._lines(lines, reader, path, at)

    def _lines(self, lines: Iterable[Line], reader: Reader, path: str, at: str) -> Iterator[Found | Skipped]:
        if reader == "records":

            def document(value: object, notes: list[Note], part: str) -> Iterator[Found | Skipped]:
                return self._document(value, path, at, notes, part)

            yield from read_records(lines, path, self.filters, document)
        elif self.filters:
            yield Skipped(path, _NO_COLUMNS, "filtered")
        else:
            yield from read_log(lines, reader, path, at, self.view)

    def _completion(self, name: str, value: object, path: str, logs: list[Completion]) -> Iterator[Skipped]:
        if self.filters and not keeps(mapping(value), self.filters):
            yield left_out(path, 1, 1, set(mapping(value)), self.filters)
            return
        try:
            logs.append(completion(name, value))
        except Exception as error:
            yield failed("completion log", path, error)

    def _completions(self, logs: list[Completion], folder: Folder, at: str) -> Iterator[Found | Skipped]:
        try:
            drafts = read_completions(logs, self.view, archived=self.archived > 0)
        except Exception as error:
            yield failed("completion log", folder.label, error)
            return
        whole = len({calls[0].task for _, calls in drafts}) == 1
        for draft, calls in drafts:
            last = calls[-1].name
            alone = len(calls) == 1 and not self.archived
            path = folder.path(last) if alone or not whole else folder.label
            yield Found(draft, path, at if whole and not alone else _join(at, stem(last)))

    def _archive(self, data: bytes, path: str, at: str) -> Iterator[Found | Skipped]:
        if self.archived >= _NESTED:
            yield Skipped(path, f"more than {_NESTED} archives inside each other; not opened", "broken")
            return
        inner = Walk(self.view, self.archived + 1, self.filters)
        found = list(inner.folder(open_archive(data, path), ""))
        homes = {item.at for item in found if isinstance(item, Found)}
        for item in found:
            if isinstance(item, Found):
                # An archive of one session directory is that session; its inner folder names add nothing.
                item.at = at if len(homes) == 1 else _join(at, item.at)
            yield item


def _is_large(path: Path) -> bool:
    """Whether a file is better read by lines; for gzip, text is taken to compress at most thirty times."""
    size = files.regular_size(path)
    if size > files.STREAM_BYTES or size * 30 < files.STREAM_BYTES:
        return size > files.STREAM_BYTES
    return len(files.head(path, files.STREAM_BYTES + 1)) > files.STREAM_BYTES
