"""One small session in every form that is read, as file name -> bytes: seeds of tests and of fuzzing."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from session_logs import (
    SCHEMA,
    call,
    chat,
    completion,
    says,
    tar_gz,
    v0_run,
    v0_start,
    v1_action,
    v1_condensation,
    v1_message,
    v1_result,
    v1_system,
)

Files = dict[str, bytes]
V1 = [
    v1_system(),
    v1_message("u", "Do it."),
    v1_action("a", "ra", "one"),
    v1_result("oa", "a"),
    v1_action("b", "rb", "two"),
    v1_result("ob", "b"),
    v1_condensation("k", ["a", "oa"], "Sum.", 2),
    v1_action("c", "rc", "three"),
]
V0 = [*v0_start(), *v0_run(2, "c1"), *v0_run(4, "c2")]
PAIRS = [
    [{"id": 0, "source": "user", "message": "m", "action": "message", "args": {"content": "Do it."}}, None],
    [
        {"id": 2, "source": "agent", "message": "m", "action": "run", "args": {"command": "ls", "thought": "Look."}},
        {"id": 3, "source": "agent", "cause": 2, "observation": "run", "content": "a.py", "extras": {"exit_code": 0}},
    ],
    [
        {"id": 4, "source": "agent", "action": "message", "args": {"content": "Done."}},
        {"observation": "null", "content": ""},
    ],
]
RESOLVER = [
    {"content": "Fix it.", "images_urls": None, "action": "message"},
    {"command": "ls", "thought": "Look.", "keep_prompt": True, "action": "run"},
    {"content": "a.py", "command_id": -1, "command": "ls", "exit_code": 0, "observation": "run"},
    {"outputs": {}, "thought": "All done.", "action": "finish"},
]
TRAJ = [
    {"role": "system", "content": "Be good.", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": "A demonstration.", "agent": "main", "is_demo": True},
    {"role": "user", "content": "Do it.", "agent": "main"},
    {"role": "assistant", "content": "Look.", "agent": "main", "tool_calls": [call("c1")], "message_type": "action"},
    {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["c1"], "message_type": "observation"},
]
TURNS = [
    {"role": "system", "system_prompt": "Be good.", "text": None},
    {"role": "user", "system_prompt": None, "text": "Do it."},
    {"role": "ai", "system_prompt": None, "text": "Look.\n```\nls\n```"},
    {"role": "user", "system_prompt": None, "text": "a.py"},
    {"role": "ai", "system_prompt": None, "text": "Done."},
]
XML = [
    {"role": "system", "content": "Be good."},
    {"role": "user", "content": "Do it."},
    {"role": "assistant", "content": "Look.\n<function=run>\n<parameter=command>ls</parameter>\n</function>"},
    {"role": "user", "content": [{"type": "text", "text": "OBSERVATION:\na.py"}]},
]


def atif(**fields: Any) -> dict[str, Any]:
    """A valid document of two agent steps, the first with two calls."""
    calls = [
        {"tool_call_id": f"c{number}", "function_name": "run", "arguments": {"command": "ls"}} for number in range(2)
    ]
    results = [{"source_call_id": f"c{number}", "content": f"out {number}"} for number in range(2)]
    agent = {"name": "x", "version": "1", "tool_definitions": [SCHEMA]}
    steps = [
        {"step_id": 1, "source": "system", "message": "Be good."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Do it."}]},
        {"step_id": 3, "source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results}},
        {"step_id": 4, "source": "agent", "message": "Done.", "reasoning_content": "Hm."},
    ]
    return {"schema_version": "ATIF-v1.8", "session_id": "s", "agent": agent, "steps": steps, **fields}


def claude(kind: str, number: int, content: object, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    """A Claude Code line `u<number>`, linked to the one before unless `parent` says otherwise."""
    linked = number - 1 if parent is None else parent
    message = {"role": kind, "content": content, **({"id": f"m{number}"} if kind == "assistant" else {})}
    base = {"type": kind, "uuid": f"u{number}", "parentUuid": f"u{linked}" if linked else None, "sessionId": "s"}
    return {**base, "isSidechain": False, "message": {**message, **fields.pop("message", {})}, **fields}


def claude_use(identity: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "Bash", "input": arguments or {"command": "ls"}}


def claude_result(identity: str, content: object = "a.py") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content}


CLAUDE = [
    {"type": "summary", "summary": "A task", "leafUuid": "u6"},
    claude("user", 1, "Do it."),
    claude("assistant", 2, [{"type": "thinking", "thinking": "Hm."}], message={"id": "r1"}),
    claude("assistant", 3, [{"type": "text", "text": "Look."}], message={"id": "r1"}),
    claude("assistant", 4, [claude_use("t1")], message={"id": "r1"}),
    claude("user", 5, [claude_result("t1", [{"type": "text", "text": "a.py"}])]),
    claude("assistant", 6, [{"type": "text", "text": "Done."}]),
]


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def codex_item(kind: str, **fields: Any) -> dict[str, Any]:
    return codex("response_item", type=kind, **fields)


def codex_says(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return codex_item("message", role=role, content=[{"type": kind, "text": text}])


CODEX = [
    codex("session_meta", id="x", base_instructions={"text": "Be good."}),
    codex_says("developer", "Sandbox rules."),
    codex_says("user", "Do it."),
    codex("event_msg", type="user_message", message="Do it."),
    codex_item("reasoning", encrypted_content="x", summary=[]),
    codex_says("assistant", "Look."),
    codex_item("function_call", name="shell", call_id="c1", arguments='{"command":  ["ls"]}'),
    codex_item("function_call_output", call_id="c1", output="a.py"),
    codex_item("custom_tool_call", name="apply_patch", call_id="c2", input="*** Begin"),
    codex_item("custom_tool_call_output", call_id="c2", output="ok"),
    codex_says("assistant", "Done."),
]


def responses_log() -> dict[str, Any]:
    """A completion log of the Responses API."""
    sent = [item["payload"] for item in CODEX[2:8] if item["type"] == "response_item"]
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}]
    asked = {"input": sent, "instructions": "Be good.", "tools": [SCHEMA], "latency_sec": 1.0}
    return {**asked, "response": {"id": "r", "output": output}, "timestamp": 1.0}


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


def lines(values: list[Any]) -> bytes:
    return b"".join(dump(value) + b"\n" for value in values)


def v1_files(prefix: str = "", pattern: str = "event-{0:05d}-00000000-0000-4000-8000-{0:012d}.json") -> Files:
    return {prefix + pattern.format(number): dump(event) for number, event in enumerate(V1)}


def zipped(members: Files) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def parquet(*rows: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), stream)
    return stream.getvalue()


def every_form() -> dict[str, Files]:
    """Every form; each holds one session (of one or more steps) that loads without a loss."""
    record = {"instance_id": "i", "instruction": "Do it.", "metadata": {}, "error": None}
    log = {**completion(chat(1), says(1), 2.0), "latency_sec": 1.0, "context_window": 9}
    export = v1_files(pattern="event_{0:06d}_0000-{0:04d}.json") | {"meta.json": b"{}"}
    noise = b"\x1b[32mready\x1b[0m\n" + lines(V1[:3]) + b"Agent is working\n" + lines(V1[3:])
    return {
        "oh-v1-session-dir": v1_files("s/events/") | {"s/base_state.json": b"{}"},
        "oh-v1-session-dir in a zip": {"export.zip": zipped(export)},
        "oh-v1-session-dir in a tar": {"s.tar.gz": tar_gz(v1_files("s/event_service/events/"))},
        "oh-v1-export": {"e.json": dump({"conversation_id": "c", "events": V1})},
        "oh-v1-events-lines": {"v1.jsonl": lines(V1)},
        "oh-v1-events-lines with noise": {"out.log": noise},
        "oh-v1-eval-output": {"output.jsonl": lines([{**record, "history": V1[2:]}])},
        "oh-v1-llm-completion-last": {"m-2.json": dump(log)},
        "oh-v1-llm-completion-last of items": {"m-1.json": dump(responses_log())},
        "oh-v0-session-dir": {f"s/events/{event['id']}.json": dump(event) for event in V0} | {"s/metadata.json": b"{}"},
        "oh-v0-trajectory": {"t.json": dump(V0)},
        "oh-v0-events-lines": {"v0.jsonl": lines(V0)},
        "oh-v0-eval-output": {"output.jsonl": lines([{**record, "history": V0}])},
        "oh-v0-eval-pairs": {"output.jsonl": lines([{**record, "history": PAIRS}])},
        "oh-v0-resolver-output": {"output.jsonl": lines([{"issue": {"number": 1}, "history": RESOLVER}])},
        "oh-v0-llm-completions-dir": {f"d/m-{n}.json": dump(completion(chat(n), says(n), float(n))) for n in range(3)},
        "chat-openai-tools": {"c.json": dump({"messages": chat(2), "tools": [SCHEMA]})},
        "chat-openai-tools in a table": {"train.parquet": parquet({"messages": json.dumps(chat(2)), "resolved": 1})},
        "chat-swegym-openhands": {
            "c.json": dump({"run_id": "r", "resolved": True, "messages": chat(2), "tools": [SCHEMA]})
        },
        "chat-swesmith-xml": {"c.json": dump({"messages": json.dumps(XML), "instance_id": "i"})},
        "chat-nebius-sweagent": {"c.json": dump({"instance_id": "i", "trajectory": TURNS})},
        "chat-conversations": {
            "c.json": dump({"conversations": [{"from": "human", "value": "Do it."}, {"from": "gpt", "value": "Done."}]})
        },
        "chat-messages": {"c.json": dump(chat(2))},
        "chat-message-lines": {"c.jsonl": lines(chat(2))},
        "sweagent-traj": {"t.traj": dump({"environment": "main", "trajectory": [], "history": TRAJ, "info": {}})},
        "mini-swe-agent-traj": {
            "t.traj.json": gzip.compress(
                dump(
                    {
                        "info": {"mini_version": "2", "model_stats": {}},
                        "messages": [*chat(2), {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}}],
                        "trajectory_format": "mini-swe-agent-1.1",
                    }
                )
            )
        },
        "atif": {"t.json": dump(atif())},
        "claude-code": {"c.jsonl": lines(CLAUDE)},
        "codex-rollout": {"rollout.jsonl": lines(CODEX)},
    }
