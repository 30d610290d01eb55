"""Redaction: keys, tokens, e-mail addresses and home paths replaced in everything a session holds, and counted.

Off unless asked for. It works by the shape of secrets, so it lowers the risk of passing one on and proves nothing. The
JSON text of call arguments stays JSON: nothing is replaced across an escape sequence.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .content import note
from .formats import Draft
from .schema import Message, Note, Segment

if TYPE_CHECKING:
    from .found import Skipped

# Every repetition has a bound, so that no text takes time out of proportion to its length.
_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----BEGIN ).){0,8000}?-----END [A-Z ]{0,40}PRIVATE KEY-----",
    re.DOTALL,
)
_KEYS = re.compile(
    r"""
    \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                                     # AWS
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,} | \bglpat-[A-Za-z0-9_-]{16,}
    | \bsk-[A-Za-z0-9_-]{16,} | \bhf_[A-Za-z0-9]{20,} | \bnpm_[A-Za-z0-9]{20,} | \bpypi-[A-Za-z0-9_-]{20,}
    | \bxox[abeprs]-[A-Za-z0-9-]{10,} | \bAIza[0-9A-Za-z_-]{30,} | \bSG\.[\w-]{16,99}\.[\w-]{16,}
    | \beyJ[\w-]{8,999}\.eyJ[\w-]{8,999}\.[\w-]{8,}                     # a signed web token
    """,
    re.VERBOSE,
)
# What stands behind a word for a secret, when it looks random: letters and digits, no dots or brackets of code.
_NAMED = re.compile(
    r"""((?:api[_-]?key|secret|token|passw(?:or)?d|bearer|authorization)["']?\s*[:=]?\s*["']?(?:bearer\s+)?)"""
    r"""((?=[A-Za-z+/_-]{0,99}[0-9])(?=[0-9+/_-]{0,99}[A-Za-z])[A-Za-z0-9+/_-]{20,999}+=*+)(?![.(\[])""",
    re.IGNORECASE,
)
_URL = re.compile(r"(://)[^/\s:@\"'\\]{1,80}:[^/\s@\"'\\]{1,200}(?=@)")
_MAIL = re.compile(r"(?<![\w.+/-])(?!git@)[A-Za-z0-9][\w.+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_HOME = re.compile(r"(/home/|/Users/|\b[A-Za-z]:\\{1,2}Users\\{1,2})(?!user\b|Shared\b)[A-Za-z0-9._-]{1,64}")
_ESCAPE = re.compile(r"(\\(?:u[0-9a-fA-F]{4}|.))", re.DOTALL)

KEY, MAIL = "[redacted key]", "[redacted e-mail]"


class Redactor:
    """Replaces what looks like a secret or a person; `draft` adds a note on what was replaced, or that nothing was."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def text(self, text: str) -> str:
        """The text with everything replaced."""
        text = self._sub(_BLOCK, KEY, text, "keys and tokens")
        text = self._sub(_HOME, r"\1user", text, "home paths")
        return self._plain(text)

    def draft(self, draft: Draft) -> Draft:
        """The draft with every text in it replaced: messages, calls, tools and notes."""
        self._counts.clear()
        segments = tuple(
            Segment(messages=tuple(map(self._message, segment.messages)), carried=segment.carried)
            for segment in draft.segments
        )
        tools = tuple(self._tree(tool) for tool in draft.tools)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items())) or "nothing found"
        notes = [Note(kind=n.kind, where=self.text(n.where), reason=self.text(n.reason)) for n in draft.notes]
        note(notes, "info", "redaction", f"replaced before anything was stored: {counts}")
        return replace(draft, segments=segments, tools=tools, notes=notes, part=self.text(draft.part))

    def skipped(self, skipped: Skipped) -> Skipped:
        """A skipped file with its path and reason replaced."""
        return replace(skipped, path=self.text(skipped.path), reason=self.text(skipped.reason))

    def _message(self, message: Message) -> Message:
        calls = tuple(call.model_copy(update={"arguments": self._json(call.arguments)}) for call in message.tool_calls)
        return message.model_copy(update={"content": self.text(message.content), "tool_calls": calls})

    def _json(self, text: str) -> str:
        text = self._sub(_BLOCK, KEY, text, "keys and tokens")
        text = self._sub(_HOME, r"\1user", text, "home paths")
        return "".join(piece if number % 2 else self._plain(piece) for number, piece in enumerate(_ESCAPE.split(text)))

    def _tree(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self._tree(item) for key, item in value.items()}
        return [self._tree(item) for item in value] if isinstance(value, list) else value

    def _plain(self, text: str) -> str:
        text = self._sub(_KEYS, KEY, text, "keys and tokens")
        text = self._sub(_NAMED, rf"\1{KEY}", text, "keys and tokens")
        text = self._sub(_URL, rf"\1{KEY}", text, "keys and tokens")
        return self._sub(_MAIL, MAIL, text, "e-mail addresses")

    def _sub(self, pattern: re.Pattern[str], new: str, text: str, what: str) -> str:
        text, count = pattern.subn(new, text)
        if count:
            self._counts[what] += count
        return text
