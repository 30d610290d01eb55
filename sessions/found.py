"""What a walk yields: a session as its reader drafted it, or a file that is none with the reason why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .formats import Draft
from .tables import Filters


@dataclass(frozen=True)
class Skipped:
    """A file that gave no session.

    kind: "other" is no recording, "unsupported" a recording of a format that is not read, "broken" could not be read,
    "filtered" was left out because a filter asked for it.
    """

    path: str
    reason: str
    kind: Literal["other", "unsupported", "broken", "filtered"] = "other"


@dataclass
class Found:
    """A draft, where it was read, and its name relative to the root (empty: the root itself)."""

    draft: Draft
    path: str
    at: str


def failed(name: str, path: str, error: Exception) -> Skipped:
    """The last resort of a walk: a defect of a reader costs one session, never the directory."""
    return Skipped(path, f"the {name} reader failed on it: {type(error).__name__}: {str(error)[:200]}", "broken")


def left_out(path: str, left: int, total: int, columns: set[str], filters: Filters) -> Skipped:
    """The records of one file that the filters left out, with the columns there are where one is not among them."""
    asked = ", ".join(f"{column}={value}" for column, value in filters.items())
    unknown = sorted(filters.keys() - columns)
    hint = f"; there is no column {', '.join(unknown)} (columns: {', '.join(sorted(columns))[:300]})"
    reason = f"{left} of {total} record(s) left out by the filter {asked}{hint if unknown else ''}"
    return Skipped(path, reason, "filtered")
