"""What really happened in a recorded session, before it is written in one format or another, and the stamps it gets."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from leadline.sessions.recorder_workspace import Outcome

Tool = Literal["bash", "editor", "think", "finish"]
THOUGHT_KEPT = "Your thought was written down."


@dataclass(frozen=True)
class Call:
    """One tool call with what it gave back; `arguments` are in the order in which they are written down."""

    tool: Tool
    arguments: dict[str, Any]
    outcome: Outcome


@dataclass(frozen=True)
class UserTurn:
    text: str


@dataclass(frozen=True)
class CondenseTurn:
    """Turns `first` to `last` (positions in `Log.turns`, from 0, both included) are forgotten."""

    first: int
    last: int
    summary: str


@dataclass(frozen=True)
class AgentTurn:
    say: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Log:
    """One session: the task, then the turns in order."""

    id: str
    task: str
    working_dir: str
    turns: tuple[UserTurn | CondenseTurn | AgentTurn, ...]


class Stamps:
    """Ids and timestamps drawn from the session's name: they look like a recording's and are the same at every run."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._now = datetime(2026, 3, 2, 9, 0, 0) + timedelta(seconds=self._random.randrange(0, 28_800))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def token(self, prefix: str) -> str:
        """An id in the manner of a model provider, e.g. `call_3f0c...`."""
        return f"{prefix}{self._random.getrandbits(96):024x}"

    def time(self, low: float = 0.05, high: float = 0.4) -> str:
        """The next timestamp, `low` to `high` seconds after the one before it."""
        self._now += timedelta(seconds=self._random.uniform(low, high))
        return self._now.isoformat(timespec="microseconds")

    def epoch(self) -> int:
        """The latest timestamp in whole seconds, read as UTC."""
        return int((self._now - datetime(1970, 1, 1)).total_seconds())
