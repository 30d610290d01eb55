"""Tar and zip archives as folders in memory: read whole or not at all, nothing is ever unpacked to disk.

Members whose path would leave the archive, links and devices are refused by name; an archive that holds more than it
may is refused as a whole, before or while it is read.
"""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath

from . import files
from .files import UnreadableError
from .folders import Folder


def is_archive(data: bytes) -> bool:
    """Whether (decompressed) data is a tar or a zip archive."""
    return is_tar(data) or is_zip(data)


def is_tar(data: bytes) -> bool:
    """Whether (decompressed) data is a tar archive."""
    return data[257:262] == b"ustar"


def is_zip(data: bytes) -> bool:
    """Whether data is a zip archive, an empty one included."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def open_archive(data: bytes, label: str) -> Folder:
    """The members of an archive that `is_archive` knows."""
    return open_tar(data, label) if is_tar(data) else open_zip(data, label)


def open_tar(data: bytes, label: str) -> Folder:
    """The members of a tar archive as folders in memory. Members that would land outside it are refused by name."""
    root = Folder(f"{label}#")
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= files.MAX_ARCHIVE_MEMBERS:
                    raise UnreadableError(f"more than {files.MAX_ARCHIVE_MEMBERS} members")
                if member.isdir():
                    continue
                place = _place(root, member.name)
                if place is None:
                    continue
                folder, name = place
                if not member.isfile():
                    folder.files[name] = UnreadableError("refused: the member is a link or a device, not a file")
                    continue
                total += member.size
                if total > files.MAX_ARCHIVE_BYTES:
                    raise UnreadableError(f"members hold more than {files.MAX_ARCHIVE_BYTES} bytes")
                stream = archive.extractfile(member)
                body = stream.read() if stream is not None else b""
                if len(body) != member.size:
                    raise UnreadableError("truncated archive: a member ends before its data does")
                folder.files[name] = body
            # tarfile stops without a word at a damaged header; a whole archive stops at a block of zeros.
            if data[archive.offset : archive.offset + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
                raise UnreadableError("broken tar archive: it is cut off or a header is damaged")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UnreadableError(f"broken tar archive: {error}") from None
    return root


def open_zip(data: bytes, label: str) -> Folder:
    """The members of a zip archive as folders in memory, by the rules of `open_tar`."""
    root = Folder(f"{label}#")
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > files.MAX_ARCHIVE_MEMBERS:
                raise UnreadableError(f"more than {files.MAX_ARCHIVE_MEMBERS} members")
            for member in members:
                if member.is_dir():
                    continue
                place = _place(root, member.filename)
                if place is None:
                    continue
                folder, name = place
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG):
                    folder.files[name] = UnreadableError("refused: the member is a link or a device, not a file")
                    continue
                if member.flag_bits & 0x1:
                    folder.files[name] = UnreadableError("the member is encrypted")
                    continue
                # The size a header claims is not to be trusted: the data is read up to what is left of the limit.
                with archive.open(member) as stream:
                    body = stream.read(files.MAX_ARCHIVE_BYTES - total + 1)
                total += len(body)
                if total > files.MAX_ARCHIVE_BYTES:
                    raise UnreadableError(f"members hold more than {files.MAX_ARCHIVE_BYTES} bytes")
                folder.files[name] = body
    # NotImplementedError is zipfile's word for a compression that it does not know.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise UnreadableError(f"broken zip archive: {str(error)[:200]}") from None
    return root


def _place(root: Folder, name: str) -> tuple[Folder, str] | None:
    """The folder a member belongs into and its name there; None, with the reason in `root`, where it is refused."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or not parts or ":" in parts[0][1:2]:
        root.files[name] = UnreadableError("refused: the member's path leaves the archive")
        return None
    if len(parts) > files.MAX_DEPTH:
        root.files[name] = UnreadableError(f"refused: more than {files.MAX_DEPTH} folders deep")
        return None
    folder = root
    for part in parts[:-1]:
        if part not in folder.folders:
            folder.folders[part] = Folder(folder.path(part))
        folder = folder.folders[part]
    return folder, parts[-1]
