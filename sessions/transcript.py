"""A session as plain text, for models that know no chat: each message under its role's name."""

from __future__ import annotations

import json

from .schema import Message, Session


def transcript(session: Session) -> str:
    """The session's longest segment: every message under its role, tool calls as JSON with their names."""
    return max(("\n\n".join(map(_said, segment.messages)) for segment in session.segments), key=len, default="")


def _said(message: Message) -> str:
    calls = (json.dumps({"name": call.name, "arguments": call.arguments}) for call in message.tool_calls)
    return "\n".join(filter(None, (f"{message.role}:", message.content, *calls)))
