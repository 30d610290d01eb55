"""The cluster a session belongs to: recordings of one task share a source, whatever their format, agent or attempt.

Rule: the task is the text between `<issue_description>` or `<pr_description>` tags of the first user message, else that
whole message; white space is collapsed and temporary directory names are removed, so that one issue recorded twice, by
two agents or in two formats, is one task. The source is the task's first words and a hash of all of it. A session
without a user message is its own source. (SPEC section 5: the unit of analysis is the session, or the cluster.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from .schema import Message

_TAGS = ("issue_description", "pr_description")
_TEMPORARY = re.compile(r"/tmp/[\w.-]+")
_WORDS = 6


def task_source(messages: Iterable[Message], fallback: str) -> str:
    """The source of a session that starts with `messages`; `fallback` when no user message has text."""
    for message in messages:
        if message.role == "user" and message.content.strip():
            text = " ".join(_TEMPORARY.sub("/tmp", _task(message.content)).split())
            words = re.findall(r"[a-z0-9]+", re.sub(r"<[^>]{1,40}>", " ", text.lower()))[:_WORDS]
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            return "-".join([*words, digest])[:80]
    return fallback


def _task(text: str) -> str:
    """What stands between the first pair of tags, else the whole text. Plain searches: the text may be anything."""
    found: list[tuple[int, int]] = []
    for tag in _TAGS:
        start = text.find(f"<{tag}>")
        end = text.find(f"</{tag}>", start) if start >= 0 else -1
        if end >= 0:
            found.append((start + len(tag) + 2, end))
    start, end = min(found, default=(0, len(text)))
    return text[start:end]
