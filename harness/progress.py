"""What a person sees of a run on stderr: sessions, steps, scanners and time left; plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as RichBars,
)


class Progress(Protocol):
    """What the engine reports as it works."""

    def start_session(self, session: str, *, points: int, branches: int) -> None:
        """A session begins: its branch points and the branches still missing."""

    def skip_session(self, session: str, reason: str) -> None:
        """A session has nothing to replay."""

    def skip_point(self, session: str, step: int, reason: str, *, branches: int) -> None:
        """A branch point of the session in work, and so many branches of it, are set aside."""

    def finish_session(self) -> None:
        """The session in work is done."""

    def prefill(self, tokens: int) -> None:
        """A prefill up to `tokens` begins."""

    def prefilled(self, done: int) -> None:
        """The rows now hold `done` tokens."""

    def branch(self, label: str) -> None:
        """One branch of this scanner is done (or has failed)."""

    def failure(self, session: str, step: int | None, reason: str) -> None:
        """Something failed and was recorded."""


class Plain:
    """One line per session and per branch point's worth of branches: for logs and pipes."""

    def __init__(self, expected_sessions: int | None = None) -> None:
        self._expected = expected_sessions
        self._done = 0
        self._begun = time.monotonic()
        self._branches = 0
        self._left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start_session(self, session: str, *, points: int, branches: int) -> None:
        self._branches, self._left, self._session_begun = branches, branches, time.monotonic()
        of = f"/{self._expected}" if self._expected else ""
        self._say(f"session {self._done + 1}{of} {session}: {points} branch points, {branches} branches to decode")

    def skip_session(self, session: str, reason: str) -> None:
        self._say(f"skipped {session}: {reason}")

    def skip_point(self, session: str, step: int, reason: str, *, branches: int) -> None:
        self._branches -= branches
        self._left -= branches
        self._say(f"  skipped step {step}: {reason}")

    def finish_session(self) -> None:
        self._done += 1

    def prefill(self, tokens: int) -> None:
        self._say(f"  prefill to {tokens} tokens")

    def prefilled(self, done: int) -> None:
        return None

    def branch(self, label: str) -> None:
        self._left -= 1
        finished = self._branches - self._left
        seconds = (time.monotonic() - self._session_begun) / finished * self._left
        self._say(f"  {finished}/{self._branches} {label} (about {seconds:.0f} s left in this session)")

    def failure(self, session: str, step: int | None, reason: str) -> None:
        where = session if step is None else f"{session} step {step}"
        self._say(f"FAILED {where}: {reason}")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun:6.0f} s] {text}", file=sys.stderr, flush=True)


class Live:
    """Bars on a terminal."""

    def __init__(self, expected_sessions: int | None = None) -> None:
        self._console = Console(stderr=True)
        self._bars = RichBars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._sessions = self._bars.add_task("sessions", total=expected_sessions)
        self._prefill = self._bars.add_task("prefill tokens", total=None, visible=False)
        self._branch = self._bars.add_task("branches", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start_session(self, session: str, *, points: int, branches: int) -> None:
        self._bars.reset(
            self._branch, total=branches, visible=True, description=f"branches of {points} points, {session[:40]}"
        )

    def skip_session(self, session: str, reason: str) -> None:
        self._console.print(f"skipped {session}: {reason}", style="dim", markup=False, highlight=False)

    def skip_point(self, session: str, step: int, reason: str, *, branches: int) -> None:
        self._bars.update(self._branch, advance=branches)
        self.skip_session(f"{session} step {step}", reason)

    def finish_session(self) -> None:
        self._bars.advance(self._sessions)

    def prefill(self, tokens: int) -> None:
        self._bars.reset(self._prefill, total=tokens, visible=True)

    def prefilled(self, done: int) -> None:
        self._bars.update(self._prefill, completed=done)

    def branch(self, label: str) -> None:
        self._bars.update(self._branch, advance=1, description=f"branches, last {label}")

    def failure(self, session: str, step: int | None, reason: str) -> None:
        where = session if step is None else f"{session} step {step}"
        self._console.print(f"FAILED {where}: {reason}", style="red", markup=False, highlight=False)


def on_stderr(expected_sessions: int | None = None) -> Plain | Live:
    """Bars where stderr is a terminal, lines elsewhere."""
    return Live(expected_sessions) if sys.stderr.isatty() else Plain(expected_sessions)
