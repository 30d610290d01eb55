"""Bytes of recordings: plain or gzip files, whole or streamed by lines, and JSON decoded with a reason when it fails.

Nothing is written to disk and nothing is unpickled. Everything that cannot be read raises `UnreadableError` with
one line that says why; sizes are limited, so that a compression bomb is a reason too.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .content import note
from .schema import Note

MAX_FILE_BYTES = 256 * 2**20  # of a document, decompressed
MAX_LINE_BYTES = 64 * 2**20  # of a line in a streamed file
STREAM_BYTES = 32 * 2**20  # files larger than this are read by lines, if lines of JSON are what they hold
MAX_ARCHIVE_BYTES = 1024 * 2**20
MAX_ARCHIVE_MEMBERS = 200_000
MAX_DEPTH = 64  # folders inside folders; deeper ones are listed, not walked

RATIO = 200  # a streamed gzip file may decompress to this many times its size; text reaches 30, bombs 1000
_GZIP = b"\x1f\x8b"
_BINARY = (b"PK\x03\x04", b"PK\x05\x06", b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")  # zip, Parquet, Arrow
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class UnreadableError(Exception):
    """One file or member could not be read; the text is the reason a user sees."""


def read_bytes(path: Path) -> bytes:
    """The content of a regular file, decompressed when it is gzip (told by its first bytes)."""
    try:
        size = regular_size(path)
        if size > MAX_FILE_BYTES:
            raise UnreadableError(f"{size} bytes, more than the {MAX_FILE_BYTES} a reader opens")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from None
    return gunzip(data)


def regular_size(path: Path) -> int:
    """Size on disk of a regular file; anything else (a pipe, a device) is unreadable."""
    try:
        status = path.stat()
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError("not a regular file")
    return status.st_size


def head(path: Path, size: int) -> bytes:
    """At most `size` first bytes of a file, decompressed; what a broken gzip file still gives."""
    try:
        with path.open("rb") as stream:
            if stream.read(2) != _GZIP:
                stream.seek(0)
                return stream.read(size)
            stream.seek(0)
            with gzip.GzipFile(fileobj=stream) as plain:
                return plain.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


def stream_lines(path: Path) -> Iterator[tuple[int, bytes | UnreadableError]]:
    """(number, line) of every line that is not blank, one in memory at a time, decompressed where the file is gzip.

    A line that is too long, and a gzip file that breaks off or grows too much, is yielded as its reason.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        stream: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        room = max(MAX_FILE_BYTES, RATIO * path.stat().st_size)
        number = 0
        while True:
            number += 1
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
                room -= len(line)
                too_long = len(line) > MAX_LINE_BYTES
                while too_long and line and not line.endswith(b"\n") and (not packed or room >= 0):
                    line = stream.readline(2**20)
                    room -= len(line)
            except EOFError:
                yield number, UnreadableError("truncated gzip: the file ends before its data does")
                return
            except (OSError, zlib.error) as error:
                yield number, UnreadableError(f"broken gzip: {error}")
                return
            if packed and room < 0:
                yield number, UnreadableError(f"decompresses to more than {RATIO} times its size; not read further")
                return
            if too_long:
                yield number, UnreadableError(f"the line has more than {MAX_LINE_BYTES} bytes")
            elif not line:
                return
            elif line.strip():
                yield number, line


def starts_like_recording(path: Path) -> bool:
    """Whether the first bytes may be a recording: an archive, a table, text without NULs. Spares reading binaries."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return True  # read_bytes says why not
        with path.open("rb") as stream:
            start = stream.read(1024)
    except OSError:
        return True
    return start.startswith((_GZIP, *_BINARY)) or start[257:262] == b"ustar" or b"\0" not in start


def gunzip(data: bytes, limit: int | None = None) -> bytes:
    """The data, decompressed when it is gzip; at most `limit` bytes (default MAX_FILE_BYTES)."""
    if not data.startswith(_GZIP):
        return data
    limit = MAX_FILE_BYTES if limit is None else limit
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(limit + 1)
    except EOFError:
        raise UnreadableError("truncated gzip: the file ends before its data does") from None
    except (OSError, zlib.error) as error:
        raise UnreadableError(f"broken gzip: {error}") from None
    if len(plain) > limit:
        raise UnreadableError(f"decompresses to more than {limit} bytes")
    return plain


def decode_utf8(data: bytes) -> str:
    """Text, without its byte order mark; raises `UnreadableError` where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}") from None


def decode_json(data: bytes, where: str, notes: list[Note]) -> object:
    """The JSON value of one document; raises `UnreadableError` with the place where it breaks."""
    return decode_text(decode_utf8(data), where, notes)


def decode_text(text: str, where: str, notes: list[Note]) -> object:
    """`decode_json` of text. Lone surrogates, which no tokenizer takes, become U+FFFD and are noted."""
    try:
        value: object = json.loads(text)
        # Plain searches come first: most texts hold no surrogate, and most surrogates stand in pairs.
        if ("\\ud" in text or "\\uD" in text) and _SURROGATE.search(_PAIR.sub(" ", text)):
            dumped = json.dumps(value, ensure_ascii=False)
            mended = re.sub("[\ud800-\udfff]", "\ufffd", dumped)
            if mended != dumped:
                note(notes, "repaired", where, "lone surrogates were replaced by U+FFFD")
                value = json.loads(mended)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        problem = "JSON is cut off" if ended else "not JSON"
        raise UnreadableError(f"{problem}: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise UnreadableError("JSON is nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(f"JSON holds a value that cannot be read: {error}") from None
    return value
