"""Bytes of recordings: plain or gzip files, tar archives read in memory, and JSON decoded with a reason when it fails.

Nothing is unpacked to disk and nothing is unpickled. Everything that cannot be read raises `UnreadableError` with
one line that says why; sizes are limited, so that a compression bomb is a reason too.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import tarfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .content import note
from .schema import Note

MAX_FILE_BYTES = 256 * 2**20
MAX_ARCHIVE_BYTES = 1024 * 2**20
MAX_ARCHIVE_MEMBERS = 200_000
MAX_DEPTH = 64  # folders inside folders; deeper ones are listed, not walked

_GZIP = b"\x1f\x8b"
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class UnreadableError(Exception):
    """One file or member could not be read; the text is the reason a user sees."""


def read_bytes(path: Path) -> bytes:
    """The content of a regular file, decompressed when it is gzip (told by its first bytes)."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableError(f"{status.st_size} bytes, more than the {MAX_FILE_BYTES} a reader opens")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror or error}") from None
    return gunzip(data)


def starts_like_recording(path: Path) -> bool:
    """Whether the first bytes may be a recording: gzip, tar, or text without NULs. Spares reading binaries whole."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return True  # read_bytes says why not
        with path.open("rb") as stream:
            head = stream.read(1024)
    except OSError:
        return True
    return head.startswith(_GZIP) or is_tar(head) or b"\0" not in head


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


def is_tar(data: bytes) -> bool:
    """Whether (decompressed) data is a tar archive."""
    return data[257:262] == b"ustar"


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
        if _LONE_SURROGATE.search(text):
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


@dataclass
class Folder:
    """A directory of a recording, on disk or inside an archive: its files and subfolders, by name.

    files: name -> a path on disk, the member's bytes, or the reason why a member was refused.
    """

    label: str
    files: dict[str, Path | bytes | UnreadableError] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)

    def names(self) -> list[str]:
        """File names in natural order: numbers inside names compare as numbers."""
        return sorted(self.files, key=natural)

    def data(self, name: str) -> bytes:
        """The content of a file, decompressed."""
        held = self.files[name]
        if isinstance(held, UnreadableError):
            raise held
        return gunzip(held) if isinstance(held, bytes) else read_bytes(held)

    def path(self, name: str) -> str:
        """How messages name a file or folder in this one: members of an archive stand behind a #."""
        return self.label + name if self.label.endswith("#") else f"{self.label}/{name}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which 2.json comes before 10.json and event-100000 after event-00002."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), part) if part.isdecimal() and len(part) < 30 else (1, 0, part) for part in parts]


def disk_folder(path: Path, depth: int = 0) -> Folder:
    """A directory's tree of names; nothing is opened yet. Links to directories are not followed."""
    folder = Folder(str(path))
    if depth > MAX_DEPTH:
        folder.files["."] = UnreadableError(f"more than {MAX_DEPTH} folders deep; not walked")
        return folder
    try:
        with os.scandir(path) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folder.folders[entry.name] = disk_folder(path / entry.name, depth + 1)
                elif entry.is_dir():
                    folder.files[entry.name] = UnreadableError("a link to a directory is not followed")
                else:
                    folder.files[entry.name] = path / entry.name
    except OSError as error:
        folder.files["."] = UnreadableError(f"directory cannot be read: {error.strerror or error}")
    return folder


def open_tar(data: bytes, label: str) -> Folder:
    """The members of a tar archive as folders in memory. Members that would land outside it are refused by name."""
    root = Folder(f"{label}#")
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_ARCHIVE_MEMBERS:
                    raise UnreadableError(f"more than {MAX_ARCHIVE_MEMBERS} members")
                if member.isdir():
                    continue
                parts = PurePosixPath(member.name).parts
                if member.name.startswith("/") or ".." in parts or not parts:
                    root.files[member.name] = UnreadableError("refused: the member's path leaves the archive")
                    continue
                if len(parts) > MAX_DEPTH:
                    root.files[member.name] = UnreadableError(f"refused: more than {MAX_DEPTH} folders deep")
                    continue
                folder = root
                for part in parts[:-1]:
                    folder = folder.folders.setdefault(part, Folder(folder.path(part)))
                if not member.isfile():
                    folder.files[parts[-1]] = UnreadableError("refused: the member is a link or a device, not a file")
                    continue
                total += member.size
                if total > MAX_ARCHIVE_BYTES:
                    raise UnreadableError(f"members hold more than {MAX_ARCHIVE_BYTES} bytes")
                stream = archive.extractfile(member)
                body = stream.read() if stream is not None else b""
                if len(body) != member.size:
                    raise UnreadableError("truncated archive: a member ends before its data does")
                folder.files[parts[-1]] = body
            # tarfile stops without a word at a damaged header; a whole archive stops at a block of zeros.
            if data[archive.offset : archive.offset + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
                raise UnreadableError("broken tar archive: it is cut off or a header is damaged")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UnreadableError(f"broken tar archive: {error}") from None
    return root
