"""Writes a recorded session in the OpenHands V1 layout: `base_state.json` and `events/`, one event a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leadline.sessions.recorder_log import AgentTurn, Call, CondenseTurn, Log, Stamps, UserTurn
from leadline.sessions.recorder_prompt import SYSTEM_PROMPT, ToolNames, tool_schemas

NAMES = ToolNames(bash="terminal", editor="file_editor")
_TOOL = {"bash": NAMES.bash, "editor": NAMES.editor, "think": "think", "finish": "finish"}
_KIND = {"bash": "Terminal", "editor": "FileEditor", "think": "Think", "finish": "Finish"}


def write(log: Log, parent: Path) -> Path:
    """Write `log` as the folder `parent/<id>` and return it."""
    folder = parent / log.id
    (folder / "events").mkdir(parents=True)
    stamps = Stamps(log.id)
    state = _base_state(log, stamps.uuid())
    (folder / "base_state.json").write_text(_text(state), encoding="utf-8")
    for index, event in enumerate(_events(log, stamps)):
        (folder / "events" / f"event-{index:05d}-{event['id']}.json").write_text(_text(event), encoding="utf-8")
    return folder


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n"


def _base_state(log: Log, conversation: str) -> dict[str, Any]:
    return {
        "id": conversation,
        "agent": {
            "kind": "Agent",
            "llm": {"model": "scripted/leadline-recorder", "max_message_chars": 30000},
            "tools": [{"name": NAMES.bash, "params": {}}, {"name": NAMES.editor, "params": {}}],
        },
        "workspace": {"kind": "LocalWorkspace", "working_dir": log.working_dir},
        "max_iterations": 100,
        "execution_status": "finished",
        "confirmation_policy": {"kind": "NeverConfirm"},
        "stats": {"usage_to_metrics": {}},
    }


def _events(log: Log, stamps: Stamps) -> list[dict[str, Any]]:
    tools = tool_schemas(NAMES)
    prompt = _event("SystemPromptEvent", "agent", stamps, system_prompt=_part(SYSTEM_PROMPT), tools=tools)
    events = [prompt, _user(log.task, stamps)]
    # The ids of the events each turn wrote, and of what the model still sees: a condensation names the events of the
    # turns it forgets, and the place of its summary in what is left.
    written: list[list[str]] = []
    view: list[str] = [event["id"] for event in events]
    for turn in log.turns:
        if isinstance(turn, UserTurn):
            new = [_user(turn.text, stamps)]
        elif isinstance(turn, CondenseTurn):
            ids = [event for turn_ids in written[turn.first : turn.last + 1] for event in turn_ids]
            offset = view.index(ids[0])
            new = [_condensation(ids, turn.summary, offset, stamps)]
            view = [event for event in view if event not in ids]
            view.insert(offset, new[0]["id"])
        else:
            new = _agent(turn, stamps)
        if not isinstance(turn, CondenseTurn):
            view += [event["id"] for event in new]
        events += new
        written.append([event["id"] for event in new])
    return events


def _event(
    kind: str, source: str, stamps: Stamps, after: tuple[float, float] = (0.05, 0.4), **fields: Any
) -> dict[str, Any]:
    return {"id": stamps.uuid(), "timestamp": stamps.time(*after), "source": source, **fields, "kind": kind}


def _part(text: str) -> dict[str, Any]:
    return {"cache_prompt": False, "type": "text", "text": text}


def _user(text: str, stamps: Stamps) -> dict[str, Any]:
    message = {"role": "user", "content": [_part(text)], "thinking_blocks": []}
    return _event("MessageEvent", "user", stamps, llm_message=message, activated_skills=[], extended_content=[])


def _condensation(ids: list[str], summary: str, offset: int, stamps: Stamps) -> dict[str, Any]:
    return _event(
        "Condensation",
        "environment",
        stamps,
        (2.0, 6.0),
        forgotten_event_ids=ids,
        summary=summary,
        summary_offset=offset,
        llm_response_id=stamps.token("chatcmpl-"),
    )


def _agent(turn: AgentTurn, stamps: Stamps) -> list[dict[str, Any]]:
    response = stamps.token("chatcmpl-")
    if not turn.calls:
        message = {"role": "assistant", "content": [_part(turn.say)], "thinking_blocks": []}
        return [_event("MessageEvent", "agent", stamps, (2.0, 9.0), llm_message=message, llm_response_id=response)]
    actions, observations = [], []
    for number, call in enumerate(turn.calls):
        action = _action(turn.say if number == 0 else "", call, response, stamps)
        actions.append(action)
        observations.append(_observation(call, action, stamps))
    return actions + observations


def _action(say: str, call: Call, response: str, stamps: Stamps) -> dict[str, Any]:
    call_id = stamps.token("call_")
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return _event(
        "ActionEvent",
        "agent",
        stamps,
        (2.0, 9.0),
        thought=[_part(say)] if say else [],
        thinking_blocks=[],
        action={**call.arguments, "kind": f"{_KIND[call.tool]}Action"},
        tool_name=_TOOL[call.tool],
        tool_call_id=call_id,
        tool_call={"id": call_id, "name": _TOOL[call.tool], "arguments": arguments, "origin": "completion"},
        llm_response_id=response,
        security_risk="LOW",
    )


def _observation(call: Call, action: dict[str, Any], stamps: Stamps) -> dict[str, Any]:
    outcome = call.outcome
    observation: dict[str, Any] = {"content": [_part(outcome.text)], "is_error": outcome.is_error}
    if call.tool == "bash":
        metadata = {
            "exit_code": outcome.exit_code,
            "pid": -1,
            "username": None,
            "hostname": None,
            "working_dir": outcome.working_dir,
            "py_interpreter_path": None,
            "prefix": "",
            "suffix": "",
        }
        observation |= {
            "command": call.arguments["command"],
            "exit_code": outcome.exit_code,
            "timeout": False,
            "metadata": metadata,
        }
    elif call.tool == "editor":
        observation |= {
            "command": call.arguments["command"],
            "path": call.arguments["path"],
            "prev_exist": outcome.existed,
            "old_content": outcome.old_content,
            "new_content": outcome.new_content,
        }
    observation["kind"] = f"{_KIND[call.tool]}Observation"
    return _event(
        "ObservationEvent",
        "environment",
        stamps,
        tool_name=action["tool_name"],
        tool_call_id=action["tool_call_id"],
        observation=observation,
        action_id=action["id"],
    )
