"""What every reader hands back, and what is said about JSON that no reader takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from . import v0_events, v1_events
from .schema import Note, Segment
from .shape import items, mapping


@dataclass
class Draft:
    """A session as its reader sees it, before discovery gives it an id, a path and a source.

    part:    tells sessions of one file or directory apart ("attempt-2", "line-7"); empty when there is only one.
    attempt: which of `attempts` recorded tries at the same task this is.
    whole:   names the session where its segments are recorded one by one; `segment` counts them from 0.
    """

    format: str
    segments: tuple[Segment, ...]
    tools: tuple[dict[str, object], ...]
    tools_complete: bool
    notes: list[Note] = field(default_factory=list)
    part: str = ""
    attempt: int = 1
    attempts: int = 1
    whole: str = ""
    segment: int = 0

    def continues(self, before: Draft) -> bool:
        """Whether this draft is the next segment of the session that `before` holds so far."""
        return bool(self.whole) and self.whole == before.whole and self.segment == before.segment + 1


def joined(before: Draft, after: Draft) -> Draft:
    """Two drafts of one session, recorded segment by segment, as one; the tools are those of the first."""
    segments, notes = (*before.segments, *after.segments), [*before.notes, *after.notes]
    return replace(before, segments=segments, notes=notes, segment=after.segment)


def unsupported(value: object) -> str | None:
    """Why a JSON document of a known kind is not read; None when it is none of the kinds below."""
    for name, matches in _KNOWN:
        if matches(value):
            return f"{name}: not a session leadline reads"
    return None


def stranger(value: object) -> str:
    """The reason for a JSON document of no known kind: what it is and what it holds."""
    if isinstance(value, dict):
        keys = ", ".join(repr(key[:40]) for key in list(value)[:6])
        return f"not a session: a JSON object of no known format (keys {keys or 'none'})"
    if isinstance(value, list):
        first = f" of {type(value[0]).__name__} items" if value else ", empty"
        return f"not a session: a JSON list{first}, of no known format"
    return f"not a session: a JSON {type(value).__name__}"


def _is_standardised(value: object) -> bool:
    return any("class_" in mapping(item) for item in items(mapping(value).get("content")))


_KNOWN: tuple[tuple[str, Callable[[object], bool]], ...] = (
    ("OpenHands V1 event outside a session directory", v1_events.is_event),
    ("OpenHands V0 event outside a session directory", v0_events.is_event),
    ("standardised record of typed observations and actions", _is_standardised),
)
