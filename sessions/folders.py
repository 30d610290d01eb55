"""A directory of recordings, on disk or inside an archive, as names: nothing is opened before it is asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from . import files
from .files import UnreadableError, gunzip, read_bytes

Held = Path | bytes | UnreadableError


class Folder:
    """Files and subfolders by name.

    files: name -> a path on disk, the member's bytes, or the reason why a member was refused. `scan` fills a folder
    the first time it is looked into, so that a large tree is never held whole.
    """

    def __init__(
        self, label: str, held: dict[str, Held] | None = None, scan: Callable[[Folder], None] | None = None
    ) -> None:
        self.label = label
        self._files: dict[str, Held] = {} if held is None else held
        self._folders: dict[str, Folder] = {}
        self._scan = scan

    @property
    def files(self) -> dict[str, Held]:
        self._look()
        return self._files

    @property
    def folders(self) -> dict[str, Folder]:
        self._look()
        return self._folders

    def _look(self) -> None:
        if self._scan is not None:
            scan, self._scan = self._scan, None
            scan(self)

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
    """A directory, listed when it is looked into. Links to directories are not followed."""

    def scan(folder: Folder) -> None:
        if depth > files.MAX_DEPTH:
            folder.files["."] = UnreadableError(f"more than {files.MAX_DEPTH} folders deep; not walked")
            return
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

    return Folder(str(path), scan=scan)
