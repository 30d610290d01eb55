"""Files of JSON lines: all lines are one session, or every line is a record; a bad line costs only itself.

Lines may come from memory or from a stream; one is held at a time, unless they are one session together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from . import files
from .documents import DOCUMENT_READERS
from .files import UnreadableError, decode_text, decode_utf8
from .formats import joined
from .found import Found, Skipped, failed, left_out
from .line_logs import LINE_READERS, LineReader
from .schema import Note, View
from .shape import mapping
from .tables import Filters, keeps

_PROBED_LINES = 50

Line = tuple[int, bytes | UnreadableError]
Reader = LineReader | Literal["records"]
# Reads one record: its value, the notes on decoding it, and what tells it apart in its file.
Document = Callable[[object, list[Note], str], Iterator[Found | Skipped]]


def lines_reader(lines: Iterable[Line]) -> Reader | None:
    """Who reads a file's lines: a reader that takes all of them as one session, or each line as a record."""
    for _, (_, line) in zip(range(_PROBED_LINES), lines, strict=False):
        if isinstance(line, UnreadableError) or not line.lstrip(b"\xef\xbb\xbf \t").startswith(b"{"):
            continue
        try:
            value = decode_text(decode_utf8(line), "line", [])
        except UnreadableError:
            continue
        for reader in LINE_READERS:
            if reader.sniff(value):
                return reader
        if any(reader.sniff(value) for reader in DOCUMENT_READERS):
            return "records"
    return None


def read_records(lines: Iterable[Line], path: str, filters: Filters, document: Document) -> Iterator[Found | Skipped]:
    """Every line as a record of its own; sessions recorded segment by segment are put together."""
    yield from _whole(_records(lines, path, filters, document))


def read_log(lines: Iterable[Line], reader: LineReader, path: str, at: str, view: View) -> Iterator[Found | Skipped]:
    """A session of which every line is a part. What stands between the lines is counted, what is cut is noted."""
    notes: list[Note] = []
    values: list[tuple[str, object]] = []
    noise = size = 0
    for number, line in lines:
        where = f"line {number}"
        size += len(line) if isinstance(line, bytes) else 0
        if size > files.MAX_FILE_BYTES:
            yield Skipped(path, f"one session of more than {files.MAX_FILE_BYTES} bytes", "broken")
            return
        try:
            value = _decoded(line, where, notes)
        except UnreadableError as problem:
            if isinstance(line, UnreadableError) or line.lstrip().startswith(b"{"):
                notes.append(Note(kind="dropped", where=where, reason=str(problem)))
            else:
                noise += 1
            continue
        values.append((where, value))
    if noise:
        notes.append(Note(kind="info", where="log", reason=f"{noise} line(s) that are no JSON were skipped"))
    try:
        drafts = reader.read(values, view, notes)
    except Exception as error:
        yield failed(reader.format, path, error)
        return
    for draft in drafts:
        yield Found(draft, path, at)


def _records(lines: Iterable[Line], path: str, filters: Filters, document: Document) -> Iterator[Found | Skipped]:
    left = total = 0
    columns: set[str] = set()
    for number, line in lines:
        notes: list[Note] = []
        try:
            value = _decoded(line, f"line {number}", notes)
        except UnreadableError as problem:
            yield Skipped(f"{path}#line-{number}", str(problem), "broken")
            continue
        total += 1
        columns |= mapping(value).keys()
        if not keeps(mapping(value), filters):
            left += 1
            continue
        for item in document(value, notes, f"line-{number}"):
            bad = isinstance(item, Skipped) and not isinstance(value, dict)
            yield Skipped(item.path, item.reason, "broken") if bad and isinstance(item, Skipped) else item
    if left:
        yield left_out(path, left, total, columns, filters)


def _whole(found: Iterator[Found | Skipped]) -> Iterator[Found | Skipped]:
    """The records of a file, with sessions recorded segment by segment put together."""
    held: Found | None = None
    for item in found:
        if held is not None and isinstance(item, Found) and item.draft.continues(held.draft):
            held.draft = joined(held.draft, item.draft)
            continue
        if held is not None:
            yield held
            held = None
        if isinstance(item, Found) and item.draft.whole:
            held = item
        else:
            yield item
    if held is not None:
        yield held


def _decoded(line: bytes | UnreadableError, where: str, notes: list[Note]) -> object:
    if isinstance(line, UnreadableError):
        raise line
    return decode_text(decode_utf8(line), where, notes)
