"""The identity of a model's weights: one sha256 over the bytes of its files, remembered so that it is read once.

A remembered hash is used only while a file's path, size and modification time are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_BLOCK = 1 << 22


def cache_directory() -> Path:
    """Where converted models and remembered hashes live: `$LEADLINE_HOME`, or `~/.cache/leadline`."""
    named = os.environ.get("LEADLINE_HOME")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "leadline"


def file_sha256(path: Path) -> str:
    """The sha256 of one file, in hexadecimal."""
    return files_sha256([path])


def files_sha256(paths: Sequence[Path]) -> str:
    """One sha256 over the bytes of all files in the given order, in hexadecimal; one file gives its own sha256."""
    states = [(str(path.resolve()), path.stat()) for path in paths]
    key = "|".join(f"{name}:{state.st_size}:{state.st_mtime_ns}" for name, state in states)
    index = cache_directory() / "sha256.json"
    known = _read(index)
    if key in known:
        return known[key]
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    found = digest.hexdigest()
    # Only a saving of time: where nothing can be written, the next run hashes again.
    with suppress(OSError):
        _write(index, {**_read(index), key: found})
    return found


def _read(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(index: Path, known: dict[str, str]) -> None:
    index.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".sha256-", dir=index.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(known, stream, indent=1)
    os.replace(name, index)
