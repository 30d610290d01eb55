"""Recorded messages in the shape one chat template needs, with a note for everything that had to change.

The recorded text is never rewritten, only moved: into another role, beside another message, or (a tool call the
template has no form for, or would drop) into the turn's content. Every rule looks at messages from the front, so that
the adapted prompt of a step stays a prefix of the next step's wherever the template allows it (SPEC section 5).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leadline.sessions.schema import Message, Note, ToolCall
from leadline.sessions.templates import TEXT_CALL, Chat, TemplateTraits

JOIN = "\n\n"
_TAKE_TURNS = "the chat template wants turns to alternate"


@dataclass(frozen=True)
class Adapted:
    """Messages as the template takes them, and what was changed. `where` of a note is "message N" of the input."""

    messages: Chat
    notes: tuple[Note, ...]


def adapt(messages: Sequence[Message], traits: TemplateTraits) -> Adapted:
    """The messages as a template with `traits` needs them.

    - Calls: arguments as a dict or as the recorded text. Arguments that are no JSON object become {"_raw": TEXT}
      where a dict is needed; blank arguments become {}. Without a form for calls, or where the template would drop
      the turn's text or its further calls, each call is appended to the content in the template's own words, or as
      `TEXT_CALL` (SPEC section 5).
    - Tool results without a role for them become user turns; a system message the template cannot place joins the
      first user turn, or becomes a user turn when it comes later.
    - Where turns must alternate, neighbours of one role are joined by an empty line; a user turn that may not follow
      a tool result joins the result, and results of calls written as text become user turns. Where a user turn must
      come first, an empty one is put there.
    - Call ids become nine digits where the template asks for it; a half of a surrogate pair becomes U+FFFD.
    """
    shaper = _Shaper(traits)
    for index, message in enumerate(messages):
        shaper.add(index, message)
    return Adapted(shaper.close(), tuple(shaper.notes))


def usable_tools(
    tools: Sequence[dict[str, Any]], complete: bool, traits: TemplateTraits
) -> tuple[list[dict[str, Any]], Note | None]:
    """The schemas to render, and why there are none where some were recorded (SPEC section 5)."""
    if not tools:
        return [], None
    functions = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]
    if not complete or not all(isinstance(function.get("parameters"), dict) for function in functions):
        return [], Note(kind="missing", where="tools", reason="recorded without parameter schemas: not rendered")
    if not traits.tools_slot:
        return [], Note(
            kind="dropped", where="tools", reason="the chat template has no slot for tool schemas: not rendered"
        )
    return [{"type": "function", "function": function} for function in functions], None


class _Shaper:
    """Builds the adapted list message by message; never looks ahead."""

    def __init__(self, traits: TemplateTraits) -> None:
        self.traits = traits
        self.out: Chat = []
        self.notes: list[Note] = []
        self.homeless = ""
        self.calls = 0
        self.ids: dict[str, str] = {}
        self.called = False
        self.counted = ""
        self.apart = traits.alternates and traits.tool_role and not traits.user_after_tool

    def note(self, index: int, kind: Any, reason: str) -> None:
        self.notes.append(Note(kind=kind, where=f"message {index}", reason=reason))

    def text(self, index: int, text: str) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            self.note(index, "repaired", "half of a surrogate pair replaced by U+FFFD")
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def add(self, index: int, message: Message) -> None:
        content = self.text(index, message.content)
        if message.role == "system":
            self.system(index, content)
        elif message.role == "tool":
            self.result(index, message, content)
        elif message.role == "assistant":
            self.place(index, self.assistant(index, message, content))
        else:
            self.place(index, {"role": "user", "content": content})

    def system(self, index: int, content: str) -> None:
        if self.out and self.traits.late_system:
            self.out.append({"role": "system", "content": content})
        elif self.out:
            self.note(index, "repaired", "system message after the start became a user turn")
            self.place(index, {"role": "user", "content": content})
        elif self.traits.system:
            self.out.append({"role": "system", "content": content})
        else:
            self.note(index, "repaired", "the chat template knows no system role: text put before the first user turn")
            self.homeless = _joined(self.homeless, content)

    def result(self, index: int, message: Message, content: str) -> None:
        if not self.traits.tool_role or (self.traits.alternates and not self.called):
            why = "knows no tool role" if not self.traits.tool_role else "wants a call of its own before a result"
            self.note(index, "repaired", f"the chat template {why}: result became a user turn")
            self.place(index, {"role": "user", "content": content})
            return
        recorded = self.text(index, message.tool_call_id or "")
        result: dict[str, Any] = {"role": "tool", "content": content, "tool_call_id": self.ids.get(recorded, recorded)}
        if self.traits.short_ids and recorded not in self.ids:
            result["tool_call_id"] = "0" * 9
        if message.name:
            result["name"] = self.text(index, message.name)
        self.place(index, result)

    def assistant(self, index: int, message: Message, content: str) -> dict[str, Any]:
        calls, traits = message.tool_calls, self.traits
        self.called = False
        if not calls:
            return {"role": "assistant", "content": content}
        native = traits.calls != "none" and (len(calls) == 1 or traits.parallel_calls)
        if native and (traits.calls_keep_content or not content.strip()):
            self.called = True
            return {"role": "assistant", "content": content, "tool_calls": [self.call(index, call) for call in calls]}
        parts = traits.call_parts if traits.calls != "none" else TEXT_CALL
        why = "has no form for tool calls" if traits.calls == "none" else "would drop text or calls of the turn"
        self.note(index, "repaired", f"the chat template {why}: calls written into the content")
        written = [self.written(index, call, parts) for call in calls]
        return {"role": "assistant", "content": "\n".join(([content] if content else []) + written)}

    def call(self, index: int, call: ToolCall) -> dict[str, Any]:
        arguments: dict[str, Any] | str = self.text(index, call.arguments)
        if self.traits.calls == "dict":
            parsed = call.model_copy(update={"arguments": arguments}).parsed()
            if parsed is None or not _encodable(parsed):
                self.bad(index, call)
                parsed = {"_raw": arguments} if call.arguments.strip() else {}
            arguments = parsed
        elif not call.arguments.strip():
            self.bad(index, call)
            arguments = "{}"
        identity = self.text(index, call.id)
        if self.traits.short_ids:
            self.ids[identity] = identity = f"{self.calls:09d}"
        self.calls += 1
        return {
            "id": identity,
            "type": "function",
            "function": {"name": self.text(index, call.name), "arguments": arguments},
        }

    def written(self, index: int, call: ToolCall, parts: tuple[str, str, str]) -> str:
        before, between, behind = parts
        arguments = self.text(index, call.arguments)
        if not arguments.strip():
            self.bad(index, call)
            arguments = "{}"
        name = json.dumps(self.text(index, call.name), ensure_ascii=False)[1:-1]
        return f"{before}{name}{between}{arguments}{behind}"

    def bad(self, index: int, call: ToolCall) -> None:
        blank = not call.arguments.strip()
        what = "blank arguments became {}" if blank else 'arguments are no JSON object: wrapped as {"_raw": ...}'
        self.note(index, "repaired", f"call {call.name}: {what}")

    def place(self, index: int, new: dict[str, Any]) -> None:
        """Append a message, joining it to the one before where the template needs that."""
        if not any(message["role"] != "system" for message in self.out):
            if new["role"] == "user" and self.homeless:
                new["content"], self.homeless = _joined(self.homeless, new["content"]), ""
            elif new["role"] != "user" and (self.homeless or not self.traits.assistant_first):
                self.open(index)
        if self.traits.alternates and self.joined(index, new):
            return
        self.out.append(new)

    def joined(self, index: int, new: dict[str, Any]) -> bool:
        """Make `new` fit a template whose turns alternate: True if it joined the message before it.

        Where a user turn may not follow a result, calls and results stand apart (`apart`): only user turns and
        answers without calls take turns, and where one is missing an empty one is put in.
        """
        last: dict[str, Any] = self.out[-1] if self.out else {"role": ""}
        role, calling = new["role"], "tool_calls" in new or "tool_calls" in last
        if role not in ("user", "assistant"):
            return False
        same = role == last["role"] and not (calling and (self.apart or not self.traits.calls_keep_content))
        clash = self.apart and "tool_calls" not in new and role == self.counted
        if same or (clash and role == "user" and last["role"] == "tool"):
            self.note(index, "repaired", f"joined to the {last['role']} message before it: {_TAKE_TURNS}")
            last["content"] = _joined(last["content"], new["content"])
            if "tool_calls" in new:
                last["tool_calls"] = [*last.get("tool_calls", []), *new["tool_calls"]]
            return True
        if clash:
            other = "assistant" if role == "user" else "user"
            self.note(index, "repaired", f"an empty {other} turn was put before it: {_TAKE_TURNS}")
            self.out.append({"role": other, "content": ""})
        if "tool_calls" not in new:
            self.counted = role
        return False

    def open(self, index: int) -> None:
        if not self.homeless:
            self.note(index, "repaired", "an empty user turn was put first: the chat template wants one")
        self.out.append({"role": "user", "content": self.homeless})
        self.counted = "user"
        self.homeless = ""

    def close(self) -> Chat:
        if not any(message["role"] != "system" for message in self.out) and (
            self.homeless or not self.out or not self.traits.assistant_first
        ):
            self.open(0)
        return self.out


def _joined(first: str, second: str) -> str:
    return f"{first}{JOIN}{second}" if first and second else first or second


def _encodable(value: dict[str, Any]) -> bool:
    """False where the value holds half of a surrogate pair or NaN, which no tokenizer or no JSON accepts."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (UnicodeEncodeError, ValueError, RecursionError):
        return False
    return True
