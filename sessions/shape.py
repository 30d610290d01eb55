"""Typed looks into untrusted JSON: each function returns what it was asked for, or an empty value, and never raises.

Recorded sessions are written by many versions of many programs, so a reader must expect a null, a number or a list
anywhere. These four functions keep that check in one place and out of the readers.
"""

from __future__ import annotations

from typing import Any


def mapping(value: object) -> dict[str, Any]:
    """The value when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """The value when it is a JSON list, else an empty one."""
    return value if isinstance(value, list) else []


def string(value: object) -> str:
    """The value when it is a JSON string, else an empty one."""
    return value if isinstance(value, str) else ""


def integer(value: object) -> int | None:
    """The value when it is a JSON integer (a boolean is not one), else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
