"""Session text made safe for a terminal: a recording may hold escape sequences, and printing them would run them."""

from __future__ import annotations

import re

# C0 and C1 controls except newline and tab, DEL, and the characters that reorder or hide what stands around them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def printable(text: str) -> str:
    """The text with every control character written as its escape (`\\x1b`); carriage returns before newlines go."""
    return _UNSAFE.sub(lambda match: _escaped(match.group()), text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """`printable` on one line: white space collapsed, at most `width` characters, an ellipsis where it was cut."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
