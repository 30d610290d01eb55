"""Readers of published chat records: OpenAI-style messages, lists with other role names, and bare lists of messages.

Function calls that an agent wrote as text (XML tags, fenced blocks) stay in the text: that is what its model saw.
"""

from __future__ import annotations

from .chat_messages import is_messages, segment
from .content import tool_schemas
from .files import UnreadableError, decode_text
from .formats import Draft
from .schema import Note, Segment, View
from .shape import integer, items, mapping, string

_TEXT_CALL = "<function="
_ROLES = {
    "system": "system", "user": "user", "human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant",
    "assistant": "assistant", "function_call": "assistant", "tool": "tool", "observation": "tool",
}  # fmt: skip


class ChatRecord:
    """One record of OpenAI-style `messages` (or `trajectory`); the list may be stored as a JSON string.

    A record that `sessions convert` wrote carries a `leadline` object: the segment it is, and what to call complete.
    """

    format = "chat-openai-tools"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        if body.keys() & {"response", "history", "steps"}:
            return False
        recorded = self._messages(value, [])
        return is_messages(recorded) or (recorded == [] and "leadline" in body)

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        body = mapping(value)
        own = mapping(body.get("leadline"))
        recorded = items(self._messages(value, notes))
        as_text = _writes_calls(recorded)
        held = segment(recorded, notes)
        tools, complete = tool_schemas(_unpacked(body.get("tools"), "tools", notes), "record", notes, as_text=as_text)
        if isinstance(own.get("tools_complete"), bool):
            complete = own["tools_complete"]
        number, carried = integer(own.get("segment")) or 0, integer(own.get("carried")) or 0
        held = Segment(messages=held.messages, carried=min(max(carried, 0), len(held.messages)))
        draft = Draft(self._name(body, as_text), (held,), tools, complete, notes, segment=number)
        draft.whole = string(own.get("session")) if integer(own.get("segments")) not in (None, 1) else ""
        return [draft]

    def _name(self, body: dict[str, object], as_text: bool) -> str:
        if body.get("repo") == "chained":  # several recordings one after another: not one agent's one task
            return f"{self.format}-chained"
        if as_text:
            return "chat-swesmith-xml"
        return "chat-swegym-openhands" if "run_id" in body and "resolved" in body else self.format

    def _messages(self, value: object, notes: list[Note]) -> object:
        body = mapping(value)
        for key in ("messages", "trajectory"):
            recorded = _unpacked(body.get(key), key, notes)
            if isinstance(recorded, list):
                return recorded
        return None


class BareMessages:
    """A JSON array of chat messages and nothing around it, as early mini-swe-agent versions wrote it."""

    format = "chat-messages"

    def sniff(self, value: object) -> bool:
        return is_messages(value)

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        recorded = items(value)
        tools, complete = tool_schemas(None, "log", notes, as_text=not _calls(recorded))
        return [Draft(self.format, (segment(recorded, notes),), tools, complete, notes)]


class RoleRecord:
    """One record of turns under other names: {role_key: a role, text_keys: where its text may stand}.

    marks: a role that must occur, where the list's name is not enough to tell the format.
    """

    def __init__(self, name: str, list_key: str, role_key: str, text_keys: tuple[str, ...], marks: str = "") -> None:
        self.format = name
        self._list, self._role, self._texts, self._marks = list_key, role_key, text_keys, marks

    def sniff(self, value: object) -> bool:
        turns = items(_unpacked(mapping(value).get(self._list), self._list, []))
        roles = [string(mapping(turn).get(self._role)) for turn in turns]
        own = any(self._texts[0] in mapping(turn) for turn in turns)
        return own and any(role in _ROLES for role in roles) and (not self._marks or self._marks in roles)

    def read(self, value: object, view: View) -> list[Draft]:
        notes: list[Note] = []
        body = mapping(value)
        messages: list[object] = []
        if isinstance(body.get("system"), str) and body["system"]:
            messages.append({"role": "system", "content": body["system"]})
        for turn in items(_unpacked(body.get(self._list), self._list, notes)):
            role = _ROLES.get(string(mapping(turn).get(self._role)))
            texts = [mapping(turn).get(key) for key in self._texts]
            text = next((text for text in texts if text is not None), None)
            # A result of a call that is written as text has no call to stand behind: it reads as a user's words.
            said = "user" if role == "tool" else role
            messages.append(turn if role is None else {"role": said, "content": text})
        tools, complete = tool_schemas(_unpacked(body.get("tools"), "tools", notes), "record", notes, as_text=True)
        return [Draft(self.format, (segment(messages, notes),), tools, complete, notes)]


def _calls(messages: list[object]) -> bool:
    return any(mapping(message).get("tool_calls") or mapping(message).get("function_call") for message in messages)


def _writes_calls(messages: list[object]) -> bool:
    """Whether the agent wrote its calls into the text."""
    said = [mapping(message).get("content") for message in messages if mapping(message).get("role") == "assistant"]
    return not _calls(messages) and any(_TEXT_CALL in _text(content) for content in said)


def _text(content: object) -> str:
    return string(content) or "\n".join(string(mapping(part).get("text")) for part in items(content))


def _unpacked(value: object, where: str, notes: list[Note]) -> object:
    """A value that may be stored as a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return decode_text(value, where, notes)
    except UnreadableError:
        return None
