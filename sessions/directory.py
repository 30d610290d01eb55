"""Discovery: every session under a path, and every file that is not part of one with the reason why.

Directories and archives are walked alike. What a file is, its content decides; names only give the order of
numbered events. One bad event never loses its session, one bad session never loses the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leadline.errors import UsageError, explain

from .folders import Folder, disk_folder
from .found import Found, Skipped
from .redaction import Redactor
from .schema import Note, Session, View
from .source import task_source
from .tables import HUB, Filters, hub_rows
from .walk import Walk, stem

__all__ = ["Discovery", "Skipped", "discover", "iter_sessions"]


@dataclass(frozen=True)
class Discovery:
    """All that was found under a path, in a fixed order; session ids are unique."""

    sessions: tuple[Session, ...]
    skipped: tuple[Skipped, ...]


def discover(
    path: str | Path, view: View = "condensed", *, redact: bool = False, filters: Filters | None = None
) -> Discovery:
    """Every session and every other file under a path; see `iter_sessions` for the arguments and the errors."""
    found = list(iter_sessions(path, view, redact=redact, filters=filters))
    return Discovery(
        tuple(item for item in found if isinstance(item, Session)),
        tuple(item for item in found if isinstance(item, Skipped)),
    )


def iter_sessions(
    path: str | Path, view: View = "condensed", *, redact: bool = False, filters: Filters | None = None
) -> Iterator[Session | Skipped]:
    """`discover`, one session or skipped file at a time: a file is opened only when its turn comes.

    path:    a file, a directory, or `hf:OWNER/NAME[:SPLIT]`, a data set of the Hugging Face hub (streamed).
    redact:  replace keys, tokens, e-mail addresses and home paths in everything a session holds.
    filters: column -> value; only records (rows, lines, documents) that have these values are read.

    No such path, or a data set that cannot be read, is a `UsageError`.
    """
    walk = Walk(view, filters=filters or {})
    if str(path).startswith(HUB):
        name, items = str(path), walk.rows(hub_rows(str(path)), str(path), "")
    else:
        name, items = _local(Path(path), walk)
    redactor = Redactor() if redact else None
    ids: set[str] = set()
    for item in items:
        found = item if isinstance(item, Skipped) else _session(item, name, view, ids, redactor)
        if redactor is not None and isinstance(found, Skipped):
            found = redactor.skipped(found)
        yield found


def _local(root: Path, walk: Walk) -> tuple[str, Iterator[Found | Skipped]]:
    if not root.exists():
        do = "name a session file or a directory of sessions"
        if len(root.parts) == 2 and not root.is_absolute():
            do += f", or {HUB}{root} for a data set of the Hugging Face hub"
        raise UsageError(explain("there are no sessions here", file=root, found="no such file or directory", do=do))
    absolute = root.resolve()
    if root.is_dir():
        name = absolute.parent.name if absolute.name == "events" else absolute.name
        return name, walk.folder(disk_folder(root), "")
    return stem(root.name), walk.folder(Folder(str(root.parent), {root.name: root}), "")


def _session(found: Found, root: str, view: View, ids: set[str], redactor: Redactor | None) -> Session:
    draft = found.draft
    base = "#".join(part for part in (found.at or root, draft.part) if part)
    path = found.path + (f"#{draft.part}" if draft.part else "")
    if redactor is not None:
        draft, base, path = redactor.draft(draft), redactor.text(base), redactor.text(path)
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
        path=path,
        source=task_source(first, identity),
        view=view,
        segments=draft.segments,
        tools=draft.tools,
        tools_complete=draft.tools_complete,
        notes=tuple(notes),
        attempt=draft.attempt,
        attempts=draft.attempts,
    )
