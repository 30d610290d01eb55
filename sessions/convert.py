"""Sessions written as ATIF documents or as chat records, so that reading them back gives the same messages and tools.

ATIF knows no condensation and keeps arguments as objects: a session of several segments becomes a list of documents
that continue each other, and the recorded text of arguments stands in the `extra` field that the format leaves free.
A chat record is one line for each segment, with what else is needed in its own `leadline` object.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from atif import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory

from leadline.errors import UsageError, explain

from .schema import Message, Segment, Session
from .schema import ToolCall as Call

Target = Literal["atif", "chat"]
_VERSION = "ATIF-v1.8"
_UNSAFE = re.compile(r"[^\w.~+-]+", re.ASCII)


def write_sessions(sessions: Iterable[Session], target: Target, out: Path) -> int:
    """Write sessions one at a time and return how many: chat records to the file `out`, ATIF documents into the
    directory `out`, one file each.

    What exists is never overwritten: an `out` that is there (or a directory that is not empty) is a UsageError, as is
    one that cannot be written. Nothing is left behind when reading or writing fails half way.
    """
    if out.exists() and not (target == "atif" and out.is_dir() and not any(out.iterdir())):
        expected = "a new or empty directory" if target == "atif" else "a new file"
        raise UsageError(explain("there is something already", field="OUT", file=out, expected=expected))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as held:
            made = Path(held) / out.name
            count = _write_chat(sessions, made) if target == "chat" else _write_atif(sessions, made)
            os.replace(made, out)
    except OSError as error:
        found = error.strerror or str(error)
        raise UsageError(explain("cannot be written", field="OUT", file=out, found=found)) from error
    return count


def chat_records(session: Session) -> Iterator[dict[str, Any]]:
    """One OpenAI-style record for each segment."""
    for number, segment in enumerate(session.segments):
        own = {"session": session.id, "segment": number, "segments": len(session.segments), "carried": segment.carried}
        yield {
            "id": session.id,
            "source": session.source,
            "messages": [_chat_message(message) for message in segment.messages],
            "tools": list(session.tools),
            "leadline": {
                **own,
                "format": session.format,
                "view": session.view,
                "tools_complete": session.tools_complete,
            },
        }


def atif_documents(session: Session) -> list[dict[str, Any]]:
    """One ATIF document for each segment, made by the `atif` package; carried messages are marked as copied context."""
    ids = [f"{session.id}-{number + 1}" for number in range(len(session.segments))]
    documents = []
    for number, segment in enumerate(session.segments):
        own = {"session": session.id if len(ids) > 1 else "", "segment": number, "carried": segment.carried}
        own |= {"source": session.source, "view": session.view, "tools_complete": session.tools_complete}
        trajectory = Trajectory(
            schema_version=_VERSION,
            session_id=session.id,
            trajectory_id=ids[number],
            agent=Agent(name=session.format, version="unknown"),
            steps=_steps(segment),
            continued_trajectory_ref=ids[number + 1] if number + 1 < len(ids) else None,
            extra={"leadline": own},
        )
        document = trajectory.to_json_dict()
        if session.tools:
            # Put in as recorded: the package would not write a schema that is nested more than 200 deep.
            document["agent"]["tool_definitions"] = list(session.tools)
        documents.append(document)
    return documents


def _write_chat(sessions: Iterable[Session], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for count, session in enumerate(sessions, start=1):  # noqa: B007
            for record in chat_records(session):
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    return count


def _write_atif(sessions: Iterable[Session], folder: Path) -> int:
    folder.mkdir()
    used: set[str] = set()
    for session in sessions:
        documents = atif_documents(session)
        # An id may hold anything a file name of the recording held; only harmless characters reach the disk.
        base = _UNSAFE.sub("_", session.id).strip(".")[:150] or "session"
        name, again = base, 1
        while name.casefold() in used:
            again += 1
            name = f"{base}~{again}"
        used.add(name.casefold())
        text = json.dumps(documents[0] if len(documents) == 1 else documents, ensure_ascii=False, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return len(used)


def _chat_message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def _steps(segment: Segment) -> list[Step]:
    steps: list[Step] = []
    for position, message in enumerate(segment.messages):
        if message.role == "tool":
            _add_result(steps[-1], message)
            continue
        source: Any = {"assistant": "agent"}.get(message.role, message.role)
        calls = [_call(call) for call in message.tool_calls] or None
        copied = True if position < segment.carried else None
        step = Step(step_id=len(steps) + 1, source=source, message=message.content, tool_calls=calls)
        steps.append(step.model_copy(update={"is_copied_context": copied}))
    return steps


def _call(call: Call) -> ToolCall:
    parsed, written = call.parsed(), None
    try:
        # Neither NaN nor deep nesting is for ATIF; such arguments are kept as their recorded text alone.
        parsed = None if parsed is None or _is_deep(parsed) else parsed
        written = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    except ValueError:
        parsed = None
    exact = parsed is not None and written == call.arguments
    extra = None if exact else {"leadline": {"arguments": call.arguments}}
    return ToolCall(tool_call_id=call.id, function_name=call.name, arguments=parsed or {}, extra=extra)


def _is_deep(value: object) -> bool:
    """Whether a JSON value is nested deeper than the `atif` package writes."""
    level: list[Any] = [value]
    for _ in range(100):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _add_result(step: Step, message: Message) -> None:
    names = {call.tool_call_id: call.function_name for call in step.tool_calls or []}
    extra = None
    if message.name != names.get(message.tool_call_id or ""):
        extra = {"leadline": {"name": message.name}}
    result = ObservationResult(source_call_id=message.tool_call_id, content=message.content, extra=extra)
    if step.observation is None:
        step.observation = Observation(results=[])
    step.observation.results.append(result)
