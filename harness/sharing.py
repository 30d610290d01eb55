"""A copy of a results database to pass on: every figure, and nothing of the recorded sessions' own text."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from leadline.database import Results
from leadline.errors import UsageError, explain

_RECORDED = "UPDATE branch_point SET recorded_tokens = '[]', recorded_text = '', prompt_tail = ''"
_BY_TOKEN = "UPDATE teacher_forced SET kl_dense_by_token = '[]', kl_exact_by_token = '[]'"


@dataclass(frozen=True)
class Shared:
    """What `share` wrote: how many branch points lost their recorded text, and the file's size before and after."""

    points: int
    bytes_before: int
    bytes_after: int


def share(path: Path, out: Path, by_token: bool = True) -> Shared:
    """Copy the results database at `path` to the new file `out` without recorded steps and ends of prompts.

    What scanners decoded stays, since agreement is counted from it; so do the names of sessions and files. Without
    `by_token` the divergences of single tokens go too: their means stay. Every figure of a report stays what it was.
    The copy is one consistent read, also while a run writes. Raises UsageError where `out` is there already, cannot be
    written, or `path` is no results database; `out` is then not made.
    """
    if out.exists():
        raise UsageError(explain("the copy would overwrite a file", file=out, found="a file", do="name another file"))
    part = out.with_name(out.name + ".part")  # until nothing recorded is in it, the copy has another name
    with Results.open(path, read_only=True) as results:
        try:
            part.open("xb").close()
        except OSError as error:
            raise UsageError(
                explain("cannot write the copy", file=part, found=error.strerror, do="name another file, or remove it")
            ) from None
        try:
            before, points = _copy(results, part, [_RECORDED] if by_token else [_RECORDED, _BY_TOKEN])
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    return Shared(points, before, out.stat().st_size)


def _copy(results: Results, part: Path, changes: list[str]) -> tuple[int, int]:
    """Bytes of the whole database, and its branch points, once `part` holds it with the changes made."""
    with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy:
        results.backup(copy)
        before = part.stat().st_size
        copy.execute("PRAGMA journal_mode = DELETE")
        for change in changes:
            copy.execute(change)
        copy.execute("VACUUM")  # rebuilds the file: nothing of what was removed is left in free pages
        (points,) = copy.execute("SELECT count(*) FROM branch_point").fetchone()
    return before, points
