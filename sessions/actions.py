"""Tool calls read back from an assistant turn's text, whatever form the chat template writes them in.

Action agreement compares what branches *did* (SPEC section 5), so every branch's text is parsed by one function. A
call counts as complete once its arguments can no longer change: the JSON object is closed, or the XML function is.
Text that breaks off earlier is returned as an incomplete action, so that "no call" and "a call cut short" stay
different things.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from leadline.sessions.templates import TemplateTraits

_DECODER = json.JSONDecoder()
_XML_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:(</function>)|(?=<function=)|\Z)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_MISTRAL_NAMED = re.compile(r"\s*([\w.\-/]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_MISTRAL_FIRST, _MISTRAL_NEXT = re.compile(r"\s*\[?\s*(?=\{)"), re.compile(r"\s*,\s*(?=\{)")
_BARE_OBJECT = re.compile(r'(?:<\|python_tag\|>\s*|(?:\A|[\n;])\s*)(?=\{\s*"(?:type|name)")')
_UNMARKED_OBJECT = re.compile(r'^[ \t]*(?=\{\s*"name"\s*:\s*"[^"\n]+"\s*,\s*"arguments"\s*:\s*[{"])', re.MULTILINE)


@dataclass(frozen=True)
class Action:
    """One tool call of a turn; `arguments` is JSON with sorted keys and no spaces, None while it is incomplete."""

    name: str
    arguments: str | None
    complete: bool


def parse_actions(text: str, traits: TemplateTraits) -> tuple[Action, ...]:
    """Every tool call in `text`, in order.

    The template's own form (`traits.call_form`) is tried first. Where it finds nothing, the forms with unmistakable
    marks are tried too, because a recorded turn may carry a call in its content in the form of the agent that wrote
    it; last, a JSON object at the start of a line with a name and arguments, which is what a model writes that was
    never trained on its template's marks. Never raises.
    """
    readers = {"hermes": _hermes, "mistral": _mistral, "llama": _bare_json, "xml": _xml, "other": _hermes}
    first = readers[traits.call_form]
    for parse in dict.fromkeys((first, _hermes, _mistral, _xml, _unmarked)):
        found = parse(text)
        if found:
            return tuple(found)
    return ()


def normalise_arguments(value: Any) -> str | None:
    """Arguments (a value, or its JSON text) as JSON with sorted keys and no spaces; None where they are no JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def _hermes(text: str) -> list[Action]:
    actions: list[Action] = []
    at = text.find("<tool_call>")
    while at >= 0:
        at += len("<tool_call>")
        start = at + len(text[at:]) - len(text[at:].lstrip())
        end: int | None = at
        if text.startswith("{", start):
            action, end = _object_at(text, start)
            actions += [action] if action else []
        elif text.startswith("<function=", start):
            end = text.find("</tool_call>", start)
            end = end if end >= 0 else len(text)
            actions += _xml(text[start:end])
        at = text.find("<tool_call>", end if end is not None else at)
    return actions


def _mistral(text: str) -> list[Action]:
    actions: list[Action] = []
    mark = text.find("[TOOL_CALLS]")
    while mark >= 0:
        mark += len("[TOOL_CALLS]")
        end: int | None = mark
        named = _MISTRAL_NAMED.match(text, mark)
        if named:
            arguments, end = _decode(text, named.end())
            actions.append(_action(named[1], arguments, end is not None))
        opening = _MISTRAL_FIRST.match(text, mark) if not named else None
        while opening:
            action, end = _object_at(text, opening.end())
            actions += [action] if action else []
            opening = _MISTRAL_NEXT.match(text, end) if end is not None else None
        mark = text.find("[TOOL_CALLS]", end if end is not None else mark)
    return actions


def _bare_json(text: str, opening: re.Pattern[str] = _BARE_OBJECT) -> list[Action]:
    actions, behind = [], 0
    for mark in opening.finditer(text):
        if mark.end() < behind:
            continue
        action, end = _object_at(text, mark.end())
        actions += [action] if action else []
        behind = end if end is not None else len(text)
    return actions


def _unmarked(text: str) -> list[Action]:
    return _bare_json(text, _UNMARKED_OBJECT)


def _xml(text: str) -> list[Action]:
    actions = []
    for name, body, closed in _XML_FUNCTION.findall(text):
        arguments = dict(_XML_PARAMETER.findall(body)) if closed else None
        actions.append(_action(name.strip(), arguments, bool(closed)))
    return actions


def _object_at(text: str, start: int) -> tuple[Action | None, int | None]:
    """The call whose JSON object begins at `start`, and where the object ends (None while it is open or broken)."""
    value, end = _decode(text, start)
    if end is None:
        name = _NAME.search(text, start)
        return (Action(_unquoted(name[1]), None, False) if name else None), None
    if not isinstance(value, dict):
        return None, end
    function = value.get("function")
    inner = function if isinstance(function, dict) else value
    name = inner.get("name")
    if not isinstance(name, str):
        return None, end
    return _action(name, inner.get("arguments", inner.get("parameters", {})), True), end


def _action(name: str, arguments: Any, closed: bool) -> Action:
    normalised = normalise_arguments(arguments) if closed else None
    return Action(name, normalised, closed and normalised is not None)


def _decode(text: str, start: int) -> tuple[Any, int | None]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, None
    return value, end


def _unquoted(inner: str) -> str:
    try:
        return str(json.loads(f'"{inner}"'))
    except ValueError:
        return inner
