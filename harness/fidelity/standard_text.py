"""Text that is there offline: the sources of the running Python's standard library, in a fixed choice and order."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from leadline.errors import MachineError, explain

Half = Literal["calibration", "held-out"]
_SMALLEST, _LARGEST = 8_000, 120_000  # bytes of a file: longer than a stub, no table of constants


def library_files(half: Half) -> list[Path]:
    """Top-level modules of the standard library by name, every second one: calibration takes the first, third, ...

    The choice depends on the Python version alone; the halves share no file.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in folder.glob("[a-z]*.py") if _SMALLEST <= p.stat().st_size <= _LARGEST)
    return files[0 if half == "calibration" else 1 :: 2]


def library_windows(tokenizer: Any, length: int, count: int, half: Half) -> list[tuple[str, list[int]]]:
    """`count` windows of `length` tokens, (name, ids), cut one after another from the half's files joined together.

    MachineError where the installed library is too small or carries no sources.
    """
    found: list[tuple[str, list[int]]] = []
    for name, ids in _cut(tokenizer, length, half):
        found.append((name, ids))
        if len(found) == count:
            return found
    raise MachineError(
        explain(
            "the standard library's sources are too short",
            found=f"{len(found)} windows of {length} tokens",
            expected=count,
            do="give --text, a smaller --length or fewer windows",
        )
    )


def _cut(tokenizer: Any, length: int, half: Half) -> Iterator[tuple[str, list[int]]]:
    ids: list[int] = []
    names: list[str] = []
    for path in library_files(half):
        names.append(path.stem)
        text = f"# {path.name}\n{path.read_text(encoding='utf-8')}\n"
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        while len(ids) >= length:
            yield f"standard library: {'+'.join(names)}", ids[:length]
            ids = ids[length:]
            names = names[-1:] if ids else []
