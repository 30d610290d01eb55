"""Small hand-written recordings in every format that is read, for tests: events, completion logs and chat messages."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

SCHEMA = {"type": "function", "function": {"name": "run", "description": "Run.", "parameters": {"type": "object"}}}


def call(identity: str, arguments: object = '{"command":  "ls"}', name: str = "run") -> dict[str, Any]:
    """An OpenAI tool call; note the two spaces of the default arguments, which must survive."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


# OpenHands V1 -------------------------------------------------------------------------------------------------------


def v1(kind: str, identity: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "id": identity, "timestamp": "2026-01-01T00:00:00", "source": "agent", **fields}


def v1_system(identity: str = "sys", tools: object = (SCHEMA,), **fields: Any) -> dict[str, Any]:
    return v1("SystemPromptEvent", identity, system_prompt={"type": "text", "text": "Be good."}, tools=tools, **fields)


def v1_message(identity: str, text: object, role: str = "user", **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if isinstance(text, str) else text
    message = {"role": role, "content": content}
    return v1("MessageEvent", identity, source="user" if role == "user" else "agent", llm_message=message, **fields)


def v1_action(
    identity: str, response: str | None, thought: str = "", flat: bool = True, **fields: Any
) -> dict[str, Any]:
    """An action whose call id is `c-<identity>`."""
    made = {"id": f"c-{identity}", "name": "run", "arguments": '{"command":  "ls"}'}
    recorded = made if flat else {"id": made["id"], "type": "function", "function": made}
    thoughts = [{"type": "text", "text": thought}] if thought else []
    base: dict[str, Any] = {"llm_response_id": response, "action": {"kind": "X"}, "thought": thoughts}
    base |= {"tool_name": "run", "tool_call_id": made["id"], "tool_call": recorded}
    return v1("ActionEvent", identity, **{**base, **fields})


def v1_result(identity: str, action: str, text: str = "out", **fields: Any) -> dict[str, Any]:
    observation = {"kind": "FileEditorObservation", "content": [{"type": "text", "text": text}], "is_error": False}
    base = {"tool_name": "run", "tool_call_id": f"c-{action}", "action_id": action, "observation": observation}
    return v1("ObservationEvent", identity, source="environment", **{**base, **fields})


def v1_condensation(identity: str, forgotten: list[Any], summary: str | None, offset: int | None) -> dict[str, Any]:
    fields = {"forgotten_event_ids": forgotten, "summary": summary, "summary_offset": offset}
    return v1("Condensation", identity, source="environment", **fields)


def write_v1(root: Path, events: list[Any], state: dict[str, Any] | None = None, start: int = 0) -> Path:
    """A V1 session directory; an event may be raw bytes. Returns the directory."""
    (root / "events").mkdir(parents=True, exist_ok=True)
    for index, event in enumerate(events, start=start):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        (root / "events" / f"event-{index:05d}-00000000-0000-4000-8000-{index:012d}.json").write_bytes(data)
    if state is not None:
        (root / "base_state.json").write_text(json.dumps(state))
    return root


# OpenHands V0 -------------------------------------------------------------------------------------------------------


def v0_metadata(response: str, calls: list[dict[str, Any]], mine: str, content: object = "Thinking.") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    answer = {"id": response, "choices": [{"index": 0, "message": message}]}
    return {
        "function_name": "run",
        "tool_call_id": mine,
        "total_calls_in_response": len(calls),
        "model_response": answer,
    }


def v0_action(number: int, action: str, args: dict[str, Any], source: str = "agent", **fields: Any) -> dict[str, Any]:
    return {"id": number, "source": source, "message": "for people", "action": action, "args": args, **fields}


def v0_observation(number: int, kind: str, content: object, cause: int | None = None, **fields: Any) -> dict[str, Any]:
    base = {"id": number, "source": "agent", "message": "for people", "observation": kind, "content": content}
    return {**base, "extras": {}, "success": True, **({} if cause is None else {"cause": cause}), **fields}


def v0_run(number: int, call_id: str, **fields: Any) -> list[dict[str, Any]]:
    """One tool turn: action `number` and its observation `number + 1`."""
    metadata = v0_metadata(f"r-{call_id}", [call(call_id)], call_id)
    args = {"command": "ls", "thought": "Thinking."}
    return [
        v0_action(number, "run", args, tool_call_metadata=metadata),
        v0_observation(number + 1, "run", "out", cause=number, tool_call_metadata=metadata, **fields),
    ]


def v0_start() -> list[dict[str, Any]]:
    return [
        v0_action(0, "system", {"content": "Be good.", "tools": [SCHEMA]}),
        v0_action(1, "message", {"content": "Do it.", "image_urls": None}, source="user"),
    ]


# Completion logs and chat records -----------------------------------------------------------------------------------


def completion(messages: list[Any], answer: dict[str, Any], stamp: float | None, **fields: Any) -> dict[str, Any]:
    log = {"messages": messages, "response": {"id": "x", "choices": [{"message": answer}]}, "args": [], "cost": 0.1}
    return {**log, "kwargs": {"tools": [SCHEMA]}, **({} if stamp is None else {"timestamp": stamp}), **fields}


def chat(turns: int, start: str = "Task.") -> list[dict[str, Any]]:
    """A system and a user message and `turns` answered tool turns."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be good."}, {"role": "user", "content": start}]
    for number in range(turns):
        messages.append({"role": "assistant", "content": f"turn {number}", "tool_calls": [call(f"c{number}")]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "name": "run", "content": f"out {number}"})
    return messages


def says(number: int) -> dict[str, Any]:
    """The answer that `chat(number + 1)` holds as its last turn."""
    return {"role": "assistant", "content": f"turn {number}", "tool_calls": [call(f"c{number}")]}


# Archives -----------------------------------------------------------------------------------------------------------


def tar_gz(members: dict[str, bytes], compress: bool = True) -> bytes:
    """An archive of regular files, in the order given."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue()) if compress else stream.getvalue()


def folder_tar(root: Path, name: str) -> bytes:
    """A directory's files as one archive, under the folder `name`."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return tar_gz({f"{name}/{path.relative_to(root)}": path.read_bytes() for path in files})
