"""Reader of ATIF documents (agent trajectory interchange format): one trajectory, or a list of them.

A document is checked with the `atif` package; one that breaks the format's rules is noted and still read, field by
field. Nested trajectories, embedded or listed, are sessions of their own. Documents of one list that continue each
other after a condensation are the segments of one session; steps copied from before are context, not steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from atif import Trajectory
from pydantic import ValidationError

from .chat_messages import segment
from .content import content_text, note, tool_schemas
from .formats import Draft, joined
from .schema import Note, Segment, View
from .shape import integer, items, mapping, string

_NESTED = "subagent_trajectories"  # the format's own name of the field
_DEPTH = 8  # trajectories within trajectories


class AtifDocument:
    """An ATIF trajectory or a list of them."""

    format = "atif"

    def sniff(self, value: object) -> bool:
        documents = value if isinstance(value, list) else [value]
        return bool(documents) and _is_trajectory(documents[0])

    def read(self, value: object, view: View) -> list[Draft]:
        documents = value if isinstance(value, list) else [value]
        drafts: list[Draft] = []
        strays = 0
        for document in documents:
            if not _is_trajectory(document):
                strays += 1
                continue
            for draft in self._drafts(mapping(document), "", 0):
                if drafts and draft.continues(drafts[-1]):
                    drafts[-1] = joined(drafts[-1], draft)
                else:
                    drafts.append(draft)
        if strays:
            note(drafts[0].notes, "dropped", "document", f"{strays} item(s) of the list are no ATIF trajectories")
        if len(drafts) > 1:
            for number, draft in enumerate(drafts):
                draft.part = draft.part or f"trajectory-{number + 1}"
            drafts[0].part = "" if len(documents) == 1 else drafts[0].part
        return drafts

    def _drafts(self, body: dict[str, Any], name: str, depth: int) -> Iterator[Draft]:
        notes: list[Note] = []
        own = mapping(mapping(body.get("extra")).get("leadline"))
        if not name:
            _check(body, notes)
        messages: list[object] = []
        copied = 0
        for number, step in enumerate(items(body.get("steps")), start=1):
            messages += _messages(mapping(step), number, notes)
            if mapping(step).get("is_copied_context") is True:
                copied = len(messages)
        held = segment(messages, notes)
        marked = integer(own.get("carried"))
        carried = len(segment(messages[:copied], []).messages) if marked is None else min(max(marked, 0), len(messages))
        tools, complete = tool_schemas(mapping(body.get("agent")).get("tool_definitions"), "agent", notes)
        if isinstance(own.get("tools_complete"), bool):
            complete = own["tools_complete"]
        draft = Draft(self.format, (Segment(messages=held.messages, carried=carried),), tools, complete, notes)
        draft.part = name
        draft.whole, draft.segment = string(own.get("session")), integer(own.get("segment")) or 0
        yield draft
        for number, child in enumerate(items(body.get(_NESTED)), start=1):
            label = string(mapping(child).get("trajectory_id")) or f"{number}"
            if depth < _DEPTH and isinstance(mapping(child).get("steps"), list):
                yield from self._drafts(mapping(child), f"{name}/{label}" if name else f"sub-{label}", depth + 1)
            else:
                note(notes, "dropped", _NESTED, f"the nested trajectory {label!r} holds no steps")


def _is_trajectory(value: object) -> bool:
    body = mapping(value)
    return string(body.get("schema_version")).startswith("ATIF") and isinstance(body.get("steps"), list)


def _check(body: dict[str, Any], notes: list[Note]) -> None:
    try:
        Trajectory.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][:6]) or "document"
        count = error.error_count()
        note(notes, "info", place[:80], f"not valid ATIF ({count} fault(s)): {first['msg'][:160]}; read all the same")
    except RecursionError:
        note(notes, "info", "document", "too deeply nested to be checked as ATIF; read all the same")


def _messages(step: dict[str, Any], number: int, notes: list[Note]) -> Iterator[object]:
    """The chat messages of one step: what was said, then what came back."""
    where = f"step {number}"
    source = string(step.get("source"))
    role = {"system": "system", "user": "user", "agent": "assistant"}.get(source)
    if role is None:
        note(notes, "dropped", where, f"a step of source {step.get('source')!r:.40}")
        return
    if role == "assistant" and step.get("llm_call_count") == 0:
        note(notes, "repaired", where, "an agent step without a model call is kept as user text: no model wrote it")
        role = "user"
    if step.get("reasoning_content"):
        note(notes, "info", where, "the recorded reasoning is not part of the messages")
    calls = [_call(mapping(call)) for call in items(step.get("tool_calls"))] if role == "assistant" else []
    text = content_text(_parts(step.get("message")), where, notes)
    yield {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}
    for result in items(mapping(step.get("observation")).get("results")):
        body = mapping(result)
        came = content_text(_parts(body.get("content")), where, notes)
        answered = string(body.get("source_call_id"))
        if answered and calls:
            name = mapping(mapping(body.get("extra")).get("leadline")).get("name")
            yield {"role": "tool", "tool_call_id": answered, "content": came, "name": name}
        elif came:
            yield {"role": "user", "content": came}


def _call(body: dict[str, Any]) -> dict[str, Any]:
    """A call with the text of its arguments: as recorded where it is kept, else written from the object."""
    arguments: object = body.get("arguments")
    recorded = mapping(mapping(body.get("extra")).get("leadline")).get("arguments")
    if isinstance(recorded, str) and (arguments == {} or _same(recorded, arguments)):
        arguments = recorded
    return {"id": body.get("tool_call_id"), "function": {"name": body.get("function_name"), "arguments": arguments}}


def _same(text: str, value: object) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _parts(content: object) -> object:
    """Content parts in the shape other readers know: an audio part has no text, an image part is an image."""
    return (
        [{"type": "image"} if _is_media(part) else part for part in content] if isinstance(content, list) else content
    )


def _is_media(part: object) -> bool:
    return mapping(part).get("type") in ("image", "audio") and "text" not in mapping(part)
