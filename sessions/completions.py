"""Reader of OpenHands completion logs (V0 and V1): one file per model call, each with the whole prompt as it was sent.

The last file of an attempt is the whole session. A directory may hold several tasks, several attempts at one task (the
message list starts again) and, where the agent condensed its history, lists that shrink or change within an attempt:
each of those opens a new segment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .chat_messages import is_messages, segment
from .content import note, tool_schemas
from .folders import natural
from .formats import Draft
from .response_items import chat_messages
from .schema import Message, Note, Segment, View
from .shape import items, mapping, string

LAST = "llm-completion-last"
DIRECTORY = "llm-completions-dir"
_STAMP = re.compile(r"([0-9]+(?:\.[0-9]+)?)\.json(?:\.gz)?$")


@dataclass(frozen=True)
class Completion:
    """One logged model call: the messages sent, the answer, and when. The body is kept as recorded."""

    name: str
    sent: tuple[Message, ...]
    stamp: float
    body: dict[str, Any]

    @property
    def task(self) -> tuple[Message, ...]:
        """What every call of a task starts with, condensed or not: the messages up to the first user message."""
        first = next((n for n, message in enumerate(self.sent, start=1) if message.role == "user"), len(self.sent))
        return self.sent[:first]

    @property
    def opens(self) -> bool:
        """Whether nothing was answered yet in this prompt."""
        return not any(message.role == "assistant" for message in self.sent)


def is_completion(value: object) -> bool:
    """Whether a JSON document is one completion log."""
    body = mapping(value)
    return is_messages(_sent(body)) and _answer(body) is not None


def completion(name: str, value: object) -> Completion:
    """A document that `is_completion` accepted."""
    body = mapping(value)
    return Completion(name, segment(_sent(body), []).messages, _stamp(name, body), body)


def read_completions(logs: list[Completion], view: View, *, archived: bool) -> list[tuple[Draft, list[Completion]]]:
    """The sessions in one directory's completion logs: one for each attempt at each task, with the logs of its task.

    A lone log of a task is called its last (format LAST) unless the directory was archived as a whole.
    """
    tasks: dict[tuple[Message, ...], list[Completion]] = {}
    for log in sorted(logs, key=lambda log: (log.stamp, log.name)):
        tasks.setdefault(log.task, []).append(log)
    drafts = []
    for calls in sorted(tasks.values(), key=lambda calls: natural(calls[-1].name)):
        attempts = _attempts(calls)
        for number, attempt in enumerate(attempts, start=1):
            draft = _session(attempt, view, DIRECTORY if archived or len(calls) > 1 else LAST)
            draft.part = f"attempt-{number}" if len(attempts) > 1 else ""
            draft.attempt, draft.attempts = number, len(attempts)
            drafts.append((draft, calls))
    return drafts


def _attempts(calls: list[Completion]) -> list[list[Completion]]:
    """Calls of one task split where the list is back at its start after it had grown."""
    attempts: list[list[Completion]] = [[calls[0]]]
    for call in calls[1:]:
        # A prompt without answers that is longer than the attempt's first one holds a summary of them.
        first = len(attempts[-1][0].sent)
        if call.opens and len(call.sent) <= first < len(attempts[-1][-1].sent):
            attempts.append([])
        attempts[-1].append(call)
    return attempts


def _session(calls: list[Completion], view: View, name: str) -> Draft:
    notes: list[Note] = []
    stretches: list[list[Completion]] = [[calls[0]]]
    for call in calls[1:]:
        before = stretches[-1][-1]
        if call.sent[: len(before.sent)] == before.sent:
            if len(call.sent) == len(before.sent):
                note(notes, "info", before.name, "the same prompt was sent again; this answer was not used")
            stretches[-1].append(call)
        else:
            stretches.append([call])
    segments = []
    for number, stretch in enumerate(stretches):
        last = stretch[-1].body
        held = segment([*_sent(last), _answer(last)], notes)
        carried = len(stretch[0].sent) if number else 0
        segments.append(Segment(messages=held.messages, carried=carried))
    if view == "full" and len(segments) > 1:
        segments = [_joined(segments)]
    tools, complete = tool_schemas(_tools(calls[-1].body), calls[-1].name, notes)
    version = "v1" if calls[-1].body.keys() & {"latency_sec", "context_window"} else "v0"
    return Draft(f"oh-{version}-{name}", tuple(segments), tools, complete, notes)


def _joined(segments: list[Segment]) -> Segment:
    """Everything ever said, once: each segment's own messages, and the results the last turn before it got."""
    messages = list(segments[0].messages)
    for later in segments[1:]:
        open_calls = {call.id for call in messages[-1].tool_calls}
        carried = later.messages[: later.carried]
        messages += [message for message in carried if message.role == "tool" and message.tool_call_id in open_calls]
        messages += later.messages[later.carried :]
    return Segment(messages=tuple(messages))


def _sent(body: dict[str, Any]) -> list[Any]:
    structured = body.get("fncall_messages")  # with tool calls written as text, `messages` holds the text form
    recorded = items(structured) or items(body.get("messages"))
    if recorded or "input" not in body:
        return recorded
    opening = string(body.get("instructions")) or string(mapping(body.get("kwargs")).get("instructions"))
    system = [{"role": "system", "content": opening}] if opening else []
    return system + chat_messages(_numbered(body.get("input")), [])


def _answer(body: dict[str, Any]) -> dict[str, Any] | None:
    for key in ("fncall_response", "response"):
        choice = mapping(next(iter(items(mapping(body.get(key)).get("choices"))), None))
        message = mapping(choice.get("message"))
        if message:
            return {**message, "role": "assistant"}
    answers = chat_messages(_numbered(mapping(body.get("response")).get("output")), [])
    return next((message for message in answers if message["role"] == "assistant"), None)


def _numbered(value: object) -> list[tuple[str, object]]:
    found = [{"role": "user", "content": value, "type": "message"}] if isinstance(value, str) else items(value)
    return [(f"item {number}", item) for number, item in enumerate(found)]


def _tools(body: dict[str, Any]) -> object:
    return mapping(body.get("kwargs")).get("tools") or body.get("tools")


def _stamp(name: str, body: dict[str, Any]) -> float:
    stamp = body.get("timestamp")
    if isinstance(stamp, int | float) and not isinstance(stamp, bool) and stamp == stamp:
        return float(stamp)
    found = _STAMP.search(name)
    return float(found.group(1)) if found else float("inf")
