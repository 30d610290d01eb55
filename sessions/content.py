"""From recorded message content to plain text and tool calls: parts joined, images replaced, arguments kept verbatim.

Content may be null, a string, or a list of text and image parts; tool calls may be nested (`function: {name,
arguments}`) or flat, with arguments as a string or an object. What had to be changed is appended to `notes`.
"""

from __future__ import annotations

import json
import re

from .schema import Note, NoteKind, ToolCall
from .shape import items, mapping, string

IMAGE = "[image]"
_DATA_URI = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=]+")


def note(notes: list[Note], kind: NoteKind, where: str, reason: str) -> None:
    """Append one note."""
    notes.append(Note(kind=kind, where=where, reason=reason))


def plain(text: str, where: str, notes: list[Note]) -> str:
    """The text with inline base64 images (never worth their tokens) replaced by a marker."""
    if ";base64," not in text:
        return text
    text, count = _DATA_URI.subn(IMAGE, text)
    if count:
        note(notes, "image", where, f"{count} inline base64 image(s) replaced by {IMAGE}")
    return text


def content_text(content: object, where: str, notes: list[Note]) -> str:
    """A message's content as one text; parts are joined by a newline, each image becomes a marker."""
    if content is None:
        return ""
    if isinstance(content, str):
        return plain(content, where, notes)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        note(notes, "dropped", where, f"content is a JSON {type(content).__name__}, not text")
        return ""
    parts: list[str] = []
    for part in content:
        if isinstance(part, str):
            parts.append(plain(part, where, notes))
        elif not isinstance(part, dict):
            note(notes, "dropped", where, f"a content part is a JSON {type(part).__name__}, not text or an image")
        elif isinstance(part.get("text"), str):
            parts.append(plain(part["text"], where, notes))
        elif part.get("image_url") or part.get("image_urls") or string(part.get("type")).startswith("image"):
            parts.append(IMAGE)
            note(notes, "image", where, f"an image part was replaced by {IMAGE}")
        else:
            note(notes, "dropped", where, f"a content part of type {part.get('type')!r} holds no text")
    return "\n".join(parts)


def tool_call(value: object, where: str, notes: list[Note]) -> ToolCall | None:
    """One recorded call; None (and a note) when it names no function. Argument strings are never re-serialised."""
    call = mapping(value)
    function = mapping(call.get("function")) or call
    name = string(function.get("name"))
    if not name:
        note(notes, "dropped", where, "a tool call names no function")
        return None
    recorded = function.get("arguments")
    if isinstance(recorded, str):
        arguments = recorded
    else:
        try:
            arguments = json.dumps({} if recorded is None else recorded, ensure_ascii=False)
        except RecursionError:
            note(notes, "dropped", where, f"the arguments of a call of {name} are nested too deeply")
            return None
        if recorded is None:
            note(notes, "repaired", where, f"a call of {name} has null arguments; read as {{}}")
    identity = string(call.get("id"))
    if not identity:
        identity = f"call-{where.replace(' ', '-')}"
        note(notes, "repaired", where, f"a call of {name} has no id; given {identity!r}")
    made = ToolCall(id=identity, name=name, arguments=arguments)
    if made.parsed() is None:
        note(notes, "info", where, f"the arguments of a call of {name} are not a JSON object; kept verbatim")
    return made


def tool_calls(value: object, where: str, notes: list[Note]) -> tuple[ToolCall, ...]:
    """Every call of a recorded `tool_calls` list that names a function."""
    made = []
    recorded = items(value)
    for number, item in enumerate(recorded):
        call = tool_call(item, where if len(recorded) == 1 else f"{where} call {number}", notes)
        if call is not None:
            made.append(call)
    return tuple(made)


def tool_schemas(
    value: object, where: str, notes: list[Note], *, as_text: bool = False
) -> tuple[tuple[dict[str, object], ...], bool]:
    """The recorded tools as OpenAI function schemas, and whether they are what the model was given.

    as_text: the agent wrote its calls into the text, so that no schemas are missing where none are recorded.

    Function schemas are kept as recorded (a function without `parameters` takes none). A tool definition dump (title,
    action_type, annotations) holds no parameter schema: its name and description are kept and the answer is False.
    """
    schemas: list[dict[str, object]] = []
    complete = True
    for tool in items(value):
        function = mapping(mapping(tool).get("function"))
        if string(function.get("name")):
            schemas.append(dict(tool))
            continue
        name = string(mapping(tool).get("name")) or string(mapping(tool).get("title"))
        if not name:
            note(notes, "dropped", where, "a recorded tool has no name")
            complete = False
            continue
        body = {"name": name, "description": string(mapping(tool).get("description"))}
        parameters = mapping(tool).get("parameters", mapping(tool).get("input_schema"))
        if isinstance(parameters, dict):
            schemas.append({"type": "function", "function": {**body, "parameters": parameters}})
        else:
            schemas.append({"type": "function", "function": body})
            complete = False
    if not schemas and as_text and complete:
        note(notes, "info", where, "calls are written as text; no tool schemas belong to this session")
        return (), True
    if not schemas:
        note(notes, "missing", where, "no tools are recorded")
        return (), False
    if not complete:
        note(notes, "missing", where, "tools are recorded without their parameter schemas")
    return tuple(schemas), complete


def cut(text: str, limit: int, marker: str, where: str, notes: list[Note], room: int | None = None) -> str:
    """Head and tail (half of `room`, default `limit`, each) of a text longer than `limit` characters."""
    if len(text) <= limit:
        return text
    note(
        notes, "truncated", where, f"observation of {len(text)} characters cut to {limit}, as the agent's prompt had it"
    )
    half = (limit if room is None else room) // 2
    return text[:half] + marker + text[-half:]
