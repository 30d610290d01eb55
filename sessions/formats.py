"""What every reader hands back, and the recordings that are recognised but not read, each with a precise reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import v0_events, v1_events
from .schema import Note, Segment
from .shape import items, mapping, string


@dataclass
class Draft:
    """A session as its reader sees it, before discovery gives it an id, a path and a source.

    part: tells sessions of one file or directory apart ("attempt-2", "line-7"); empty when there is only one.
    """

    format: str
    segments: tuple[Segment, ...]
    tools: tuple[dict[str, object], ...]
    tools_complete: bool
    notes: list[Note] = field(default_factory=list)
    part: str = ""


def unsupported(value: object) -> str | None:
    """Why a JSON document of a known kind is not read; None when it is none of the kinds below."""
    for name, matches in _KNOWN:
        if matches(value):
            return f"{name}: not a session leadline reads yet"
    return None


def stranger(value: object) -> str:
    """The reason for a JSON document of no known kind: what it is and what it holds."""
    if isinstance(value, dict):
        keys = ", ".join(repr(key[:40]) for key in list(value)[:6])
        return f"not a session: a JSON object of no known format (keys {keys or 'none'})"
    if isinstance(value, list):
        first = f" of {type(value[0]).__name__} items" if value else ", empty"
        return f"not a session: a JSON list{first}, of no known format"
    return f"not a session: a JSON {type(value).__name__}"


def _is_atif(value: object) -> bool:
    body = mapping(value[0] if isinstance(value, list) and value else value)
    return string(body.get("schema_version")).startswith("ATIF") and "steps" in body


def _is_mini_swe_agent(value: object) -> bool:
    body = mapping(value)
    info = mapping(body.get("info"))
    own = string(body.get("trajectory_format")).startswith("mini-swe-agent") or "mini_version" in info
    return own or ("model_stats" in info and "messages" in body)


def _is_swe_agent(value: object) -> bool:
    body = mapping(value)
    first = mapping(next(iter(items(body.get("trajectory"))), None))
    return "observation" in first and "action" in first and ("response" in first or "thought" in first)


def _is_swe_agent_records(value: object) -> bool:
    turns = items(mapping(value).get("trajectory"))
    return any(mapping(turn).get("role") == "ai" and "text" in mapping(turn) for turn in turns)


def is_eval_record(value: object) -> bool:
    """Whether a JSON object is one record of an evaluation's `output.jsonl` (a history beside what was evaluated)."""
    body = mapping(value)
    about = ("instance_id", "question_id", "test_result", "metadata", "metrics", "git_patch", "issue", "instruction")
    return "history" in body and any(key in body for key in about)


def _is_eval(value: object, matches: Callable[[dict[str, Any]], bool]) -> bool:
    return is_eval_record(value) and matches(mapping(value))


def _has_pairs(body: dict[str, Any]) -> bool:
    history = items(body.get("history"))
    return bool(history) and isinstance(history[0], list)


def _has_v1(body: dict[str, Any]) -> bool:
    return any(v1_events.is_event(event) for event in items(body.get("history")))


def _is_v1_completion(value: object) -> bool:
    body = mapping(value)
    asked = "messages" in body or "input" in body
    return asked and "response" in body and ("latency_sec" in body or "context_window" in body)


def _is_v1_list(value: object) -> bool:
    return any(v1_events.is_event(event) for event in items(value))


def _is_chat_list(value: object) -> bool:
    return bool(items(value)) and all(
        "role" in mapping(message) and "content" in mapping(message) for message in items(value)
    )


def _is_text_call_record(value: object) -> bool:
    messages = items(mapping(value).get("messages"))
    if any(mapping(message).get("tool_calls") for message in messages):
        return False
    said = [mapping(message).get("content") for message in messages if mapping(message).get("role") == "assistant"]
    return any("<function=" in string(text) for text in said)


_KNOWN: tuple[tuple[str, Callable[[object], bool]], ...] = (
    ("ATIF trajectory", _is_atif),
    ("mini-swe-agent trajectory", _is_mini_swe_agent),
    ("SWE-agent trajectory (.traj)", _is_swe_agent),
    ("SWE-agent chat record (roles system, user, ai)", _is_swe_agent_records),
    ("OpenHands resolver output", lambda value: _is_eval(value, lambda body: "issue" in body)),
    ("OpenHands evaluation output of action-observation pairs", lambda value: _is_eval(value, _has_pairs)),
    ("OpenHands V1 evaluation output", lambda value: _is_eval(value, _has_v1)),
    ("OpenHands evaluation output", is_eval_record),
    ("OpenHands V1 completion log", _is_v1_completion),
    ("OpenHands V1 export", lambda value: _is_v1_list(mapping(value).get("events"))),
    ("OpenHands V1 event list", _is_v1_list),
    ("OpenHands V1 event outside a session directory", v1_events.is_event),
    ("OpenHands V0 event outside a session directory", v0_events.is_event),
    ("bare list of chat messages", _is_chat_list),
    ("chat record whose tool calls are written as text", _is_text_call_record),
)
