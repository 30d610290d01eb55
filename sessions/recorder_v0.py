"""Writes a recorded session in the OpenHands V0 form: one JSON array of events, calls with their model response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leadline.sessions.recorder_log import AgentTurn, Call, Log, Stamps, UserTurn
from leadline.sessions.recorder_prompt import SYSTEM_PROMPT, ToolNames, tool_schemas

NAMES = ToolNames(bash="execute_bash", editor="str_replace_editor")
_TOOL = {"bash": NAMES.bash, "editor": NAMES.editor, "think": "think", "finish": "finish"}


def write(log: Log, parent: Path) -> Path:
    """Write `log` as the file `parent/<id>.json` and return it."""
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / f"{log.id}.json"
    path.write_text(json.dumps(_events(log), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


class _Events:
    """The array being written: gives every event its number and time."""

    def __init__(self, stamps: Stamps) -> None:
        self.stamps = stamps
        self.items: list[dict[str, Any]] = []

    def add(self, source: str, message: str, after: tuple[float, float] = (0.05, 0.4), **fields: Any) -> int:
        number = len(self.items)
        self.items.append(
            {"id": number, "timestamp": self.stamps.time(*after), "source": source, "message": message, **fields}
        )
        return number


def _events(log: Log) -> list[dict[str, Any]]:
    events = _Events(Stamps(log.id))
    system = {
        "content": SYSTEM_PROMPT,
        "tools": tool_schemas(NAMES),
        "openhands_version": None,
        "agent_class": "leadline-recorder",
    }
    events.add("agent", "", action="system", args=system)
    _user(events, log.task)
    events.add("environment", "", observation="agent_state_changed", content="", extras={"agent_state": "running"})
    for turn in log.turns:
        if isinstance(turn, UserTurn):
            _user(events, turn.text)
        elif isinstance(turn, AgentTurn):
            _agent(events, turn)
        else:
            raise TypeError("condensations have no V0 form here; the script model refuses them")
    events.add("environment", "", observation="agent_state_changed", content="", extras={"agent_state": "finished"})
    return events.items


def _user(events: _Events, text: str) -> None:
    args = {"content": text, "image_urls": [], "wait_for_response": False}
    events.add("user", text, action="message", args=args)


def _agent(events: _Events, turn: AgentTurn) -> None:
    stamps = events.stamps
    if not turn.calls:
        args = {"content": turn.say, "image_urls": [], "wait_for_response": True}
        events.add("agent", turn.say, (2.0, 9.0), action="message", args=args)
        return
    ids = [stamps.token("call_") for _ in turn.calls]
    response = _response(turn, ids, stamps)
    causes = []
    for call, call_id in zip(turn.calls, ids, strict=True):
        metadata = {
            "function_name": _TOOL[call.tool],
            "tool_call_id": call_id,
            "model_response": response,
            "total_calls_in_response": len(turn.calls),
        }
        kind, args = _action(call)
        said = turn.say if call is turn.calls[0] else ""
        args = {**args, "thought": said}
        cause = events.add("agent", "", (2.0, 9.0), action=kind, tool_call_metadata=metadata, args=args)
        causes.append((call, cause, metadata))
    for call, cause, metadata in causes:
        if call.tool != "finish":
            kind, body = _observation(call)
            events.add("agent", "", cause=cause, observation=kind, tool_call_metadata=metadata, **body)


def _response(turn: AgentTurn, ids: list[str], stamps: Stamps) -> dict[str, Any]:
    calls = [
        {
            "index": number,
            "id": call_id,
            "type": "function",
            "function": {"name": _TOOL[call.tool], "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, (call, call_id) in enumerate(zip(turn.calls, ids, strict=True))
    ]
    message = {"content": turn.say, "role": "assistant", "tool_calls": calls}
    return {
        "id": stamps.token("chatcmpl-"),
        "created": stamps.epoch(),
        "model": "scripted/leadline-recorder",
        "object": "chat.completion",
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}],
    }


def _action(call: Call) -> tuple[str, dict[str, Any]]:
    arguments = call.arguments
    if call.tool == "bash":
        return "run", {"command": arguments["command"], "is_input": False, "blocking": False, "hidden": False}
    if call.tool == "think":
        return "think", {"thought": arguments["thought"]}
    if call.tool == "finish":
        return "finish", {"final_thought": arguments["message"], "outputs": {}}
    if arguments["command"] == "view":
        return "read", {"path": arguments["path"], "start": 0, "end": -1, "view_range": arguments.get("view_range")}
    return "edit", dict(arguments)


def _observation(call: Call) -> tuple[str, dict[str, Any]]:
    outcome = call.outcome
    if call.tool == "bash":
        metadata = {
            "exit_code": outcome.exit_code,
            "pid": -1,
            "working_dir": outcome.working_dir,
            "py_interpreter_path": None,
            "prefix": "",
            "suffix": "",
        }
        extras = {"command": call.arguments["command"], "metadata": metadata, "hidden": False}
        return "run", {"content": outcome.text, "extras": extras, "success": outcome.exit_code == 0}
    if call.tool == "think":
        return "think", {"content": outcome.text, "extras": {}}
    if outcome.is_error:
        return "error", {"content": outcome.text, "extras": {"error_id": ""}}
    extras = {"path": call.arguments["path"]}
    if call.arguments["command"] == "view":
        return "read", {"content": outcome.text, "extras": extras}
    edit = {"prev_exist": outcome.existed, "old_content": outcome.old_content, "new_content": outcome.new_content}
    return "edit", {"content": outcome.text, "extras": {**extras, **edit}}
