"""Items of the Responses API (Codex rollouts, newer completion logs) as chat messages.

Everything the model wrote between two inputs (reasoning, messages, calls) is one assistant message. Reasoning is
encrypted or summarised in these logs and is not part of any message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .content import content_text, note
from .schema import Note
from .shape import mapping, string

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_OUTPUTS = {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_call_output"}
_CALLS = {"function_call", "custom_tool_call", "local_shell_call"}


def is_item(value: object) -> bool:
    """Whether a JSON value looks like one item of a Responses input or output."""
    body = mapping(value)
    kind = string(body.get("type"))
    if kind == "message":
        return string(body.get("role")) in _ROLES and "content" in body
    return kind == "reasoning" or (kind in _CALLS | _OUTPUTS and ("call_id" in body or "id" in body))


def chat_messages(found: Iterable[tuple[str, object]], notes: list[Note]) -> list[dict[str, Any]]:
    """The items, each as (where, item), as OpenAI-style chat messages in order."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    skipped: Counter[str] = Counter()
    for where, value in found:
        body = mapping(value)
        kind = string(body.get("type")) or ("message" if "role" in body else "")
        role = _ROLES.get(string(body.get("role")))
        if (kind == "message" and role == "assistant") or kind in _CALLS:
            if turn is None:
                turn = {"role": "assistant", "content": "", "tool_calls": []}
                messages.append(turn)
            if kind == "message":
                text = content_text(body.get("content"), where, notes)
                turn["content"] = "\n\n".join(part for part in (turn["content"], text) if part)
            else:
                turn["tool_calls"].append(_call(kind, body))
        elif kind == "message" and role is not None:
            turn = None
            messages.append({"role": role, "content": content_text(body.get("content"), where, notes)})
        elif kind in _OUTPUTS:
            turn = None
            output = _output(body.get("output"))
            text = content_text(output, where, notes)
            messages.append({"role": "tool", "tool_call_id": _call_id(body), "content": text})
        else:
            skipped[kind[:40] or "no type"] += 1
    if skipped:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(skipped.items()))
        note(notes, "info", "log", f"items that are no part of the messages: {listed}")
    return messages


def _call_id(body: dict[str, Any]) -> str:
    return string(body.get("call_id")) or string(body.get("id"))


def _call(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    name, arguments = body.get("name"), body.get("arguments")
    if kind == "custom_tool_call":  # free text instead of JSON arguments
        arguments = json.dumps({"input": body.get("input")}, ensure_ascii=False)
    elif kind == "local_shell_call":
        name, arguments = "local_shell", json.dumps(body.get("action"), ensure_ascii=False)
    return {"id": _call_id(body), "type": "function", "function": {"name": name, "arguments": arguments}}


def _output(output: object) -> object:
    """The text of an output: early logs wrap it in an object or in JSON text with metadata."""
    if isinstance(output, dict):
        return output.get("content", output.get("output"))
    return output
