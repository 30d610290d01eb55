"""The recorded session as the harness sees it: chat messages in condensation segments, and the steps (assistant turns)
in them.

A session is an ordered list of chat messages. Where the agent's history was condensed, the model saw a *new* list from
then on, so a session is a tuple of `Segment`s: each holds the whole message list as the model saw it from one
condensation to the next, and says how many of its messages were carried over from before. A session without
condensation, and the `full` view of any session, has one segment. (SPEC section 5.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["system", "user", "assistant", "tool"]
View = Literal["condensed", "full"]
NoteKind = Literal["dropped", "repaired", "truncated", "image", "missing", "info"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(_Frozen):
    """One function call of an assistant turn. `arguments` is the recorded text, never re-serialised."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as a JSON object; None when the recorded text is not one."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class Message(_Frozen):
    """One chat message, text only (images are replaced by a marker when read)."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Note(_Frozen):
    """One thing a reader dropped, repaired or could not rebuild; `where`: event index, line or file."""

    kind: NoteKind
    where: str
    reason: str


class Segment(_Frozen):
    """The message list the model saw between two condensations.

    `carried` messages at the front were already there (kept or inserted by the condensation that opened the segment);
    assistant messages after them are the steps of this segment.
    """

    messages: tuple[Message, ...]
    carried: int = 0


@dataclass(frozen=True)
class Step:
    """One assistant turn: its index in the session, and where it stands (`segments[segment].messages[position]`)."""

    index: int
    segment: int
    position: int
    message: Message


class Session(_Frozen):
    """A recorded trajectory.

    id:       unique in its directory; the file or directory name plus the attempt or record where there are several.
    format:   the reader's name for what it read, e.g. "oh-v1-session-dir".
    path:     where it was read from (an archive member or record is appended after "#").
    sha256:   of the canonical JSON of segments and tools: the identity of the content that is replayed.
    source:   the task or repository the recording comes from; sessions that share it form one cluster.
    tools:    OpenAI function schemas; `tools_complete` is False where a tool has no parameter schema.
    notes:    everything dropped, repaired, truncated or missing.
    attempt:  which of the `attempts` recorded tries at the same task this is, from 1.
    """

    id: str
    format: str
    path: str
    source: str
    view: View
    segments: tuple[Segment, ...]
    tools: tuple[dict[str, Any], ...] = ()
    tools_complete: bool = True
    notes: tuple[Note, ...] = ()
    attempt: int = 1
    attempts: int = 1

    @cached_property
    def sha256(self) -> str:
        import hashlib

        body = {
            "segments": [segment.model_dump(mode="json") for segment in self.segments],
            "tools": list(self.tools),
            "tools_complete": self.tools_complete,
        }
        text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every assistant turn once, in order (SPEC section 5)."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[Step]:
        index = 0
        for number, segment in enumerate(self.segments):
            for position in range(segment.carried, len(segment.messages)):
                message = segment.messages[position]
                if message.role == "assistant":
                    yield Step(index, number, position, message)
                    index += 1

    def prompt(self, step: Step) -> tuple[Message, ...]:
        """Every message before the step, as the agent's model saw it."""
        return self.segments[step.segment].messages[: step.position]
