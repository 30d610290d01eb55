"""Where the scripted agent works: a temporary directory, a shell that remembers its folder, and a file editor.

Commands are really run and their output is what came back, stdout and stderr in the order written. So that the same
script gives the same bytes on any machine, the environment is fixed (C.UTF-8, UTC, hash seed, terminal width, git
author, dates and configuration, no caret lines in Python tracebacks) and two things in the output are normalised: the
temporary directory is written `/workspace`, and unittest's "Ran N tests in 0.123s" is written with 0.000s.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from leadline.errors import MachineError, UsageError, explain

SHOWN_ROOT = "/workspace"
TOOLS = ("bash", "git", "make", "sed", "grep", "find", "sort", "uniq", "wc", "cat", "head", "tail", "cut", "diff")
_UNITTEST_TIME = re.compile(r"^(Ran \d+ tests? in )\d+\.\d+s$", re.MULTILINE)
_LIMIT_S = 60
_EXCERPT = 4


@dataclass(frozen=True)
class Outcome:
    """What a tool call gave back. `exit_code` is None for editor calls; old and new content belong to edits."""

    text: str
    working_dir: str
    exit_code: int | None = None
    is_error: bool = False
    existed: bool = True
    old_content: str | None = None
    new_content: str | None = None


class Workspace:
    """A temporary root directory shown as `/workspace`; a context manager that removes it at the end."""

    def __init__(self) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise MachineError(
                explain(
                    "the recorder needs tools this machine lacks", found="no " + ", ".join(missing), do="install them"
                )
            )
        # The real path, so that what `pwd` prints is the string that is replaced.
        self._holder = Path(tempfile.mkdtemp(prefix="leadline-")).resolve()
        self.root = self._holder / "root"
        self._bin = self._holder / "bin"
        self._here = self._holder / "cwd"
        self._minutes = 0
        for folder in (self.root, self._bin, self._holder / "home"):
            folder.mkdir()
        # A shim, not a link: a linked interpreter would not find its own virtual environment.
        shim = self._bin / "python"
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        shim.chmod(0o755)
        self._cwd = self.root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._holder, ignore_errors=True)

    @property
    def working_dir(self) -> str:
        """The shell's current folder as the agent sees it."""
        return self._shown(str(self._cwd))

    def write(self, path: str, text: str) -> None:
        """Write a project file before the session starts."""
        target = self._real(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def bash(self, command: str) -> Outcome:
        """Run `command` in the shell's current folder; a later command starts where this one ended."""
        self._minutes += 1
        # The trap is what keeps `cd` alive between commands, even after `exit`.
        script = f"umask 022\ntrap 'pwd -P > {shlex.quote(str(self._here))}' EXIT\n" + self._hidden(command)
        try:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-c", script],
                cwd=self._cwd,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                explain("a scripted command did not end", found=command, expected=f"{_LIMIT_S} s at most")
            ) from error
        self._cwd = Path(self._here.read_text(encoding="utf-8").strip())
        text = _UNITTEST_TIME.sub(r"\g<1>0.000s", self._shown(done.stdout.decode("utf-8", "replace")))
        return Outcome(text.rstrip("\n"), self.working_dir, exit_code=done.returncode)

    def view(self, path: str, view_range: tuple[int, int] | None) -> Outcome:
        """A file with numbered lines, or a folder's entries two levels deep."""
        target = self._real(path)
        if target.is_dir():
            names = sorted(entry for entry in target.rglob("*") if _listed(entry.relative_to(target)))
            shown = [self._shown(str(entry)) + ("/" if entry.is_dir() else "") for entry in names]
            return Outcome(
                f"Entries of {path}, two levels deep, hidden ones left out:\n" + "\n".join(shown), self.working_dir
            )
        if not target.is_file():
            return self._error(f"There is no file {path}.")
        lines = target.read_text(encoding="utf-8").splitlines()
        first, last = view_range or (1, len(lines))
        if not 1 <= first <= last <= len(lines):
            return self._error(f"view_range [{first}, {last}] does not fit: {path} has {len(lines)} lines.")
        return Outcome(
            f"{path}, lines {first}-{last} of {len(lines)}:\n" + _numbered(lines, first, last), self.working_dir
        )

    def create(self, path: str, text: str) -> Outcome:
        """Write a new file; an existing one is an error, as an agent's editor treats it."""
        target = self._real(path)
        if target.exists():
            return self._error(f"{path} exists already; edit it instead of creating it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return Outcome(
            f"Created {path} ({len(text.splitlines())} lines).", self.working_dir, existed=False, new_content=text
        )

    def replace(self, path: str, old: str, new: str) -> Outcome:
        """Replace the one occurrence of `old`; none or several are an error."""
        target = self._real(path)
        if not target.is_file():
            return self._error(f"There is no file {path}.")
        before = target.read_text(encoding="utf-8")
        if (count := before.count(old)) != 1:
            return self._error(f"Nothing replaced: old_str occurs {count} times in {path}, it must occur exactly once.")
        at = before[: before.index(old)].count("\n") + 1
        return self._edited(path, before, before.replace(old, new), at, at + new.count("\n"))

    def insert(self, path: str, line: int, new: str) -> Outcome:
        """Insert `new` after line `line` (0 = at the top)."""
        target = self._real(path)
        if not target.is_file():
            return self._error(f"There is no file {path}.")
        before = target.read_text(encoding="utf-8")
        lines = before.splitlines(keepends=True)
        if not 0 <= line <= len(lines):
            return self._error(f"insert_line {line} does not fit: {path} has {len(lines)} lines.")
        added = new if new.endswith("\n") else new + "\n"
        after = "".join([*lines[:line], added, *lines[line:]])
        return self._edited(path, before, after, line + 1, line + added.count("\n"))

    def _edited(self, path: str, before: str, after: str, first: int, last: int) -> Outcome:
        self._real(path).write_text(after, encoding="utf-8")
        lines = after.splitlines()
        top, end = max(1, first - _EXCERPT), min(len(lines), last + _EXCERPT)
        text = f"Edited {path}. Lines {top}-{end} are now:\n" + _numbered(lines, top, end)
        return Outcome(text, self.working_dir, old_content=before, new_content=after)

    def _error(self, text: str) -> Outcome:
        return Outcome(text, self.working_dir, is_error=True)

    def _real(self, path: str) -> Path:
        target = Path(os.path.normpath(self._hidden(path)))
        if not target.is_relative_to(self.root):
            raise UsageError(
                explain("a script leaves its workspace", found=path, expected=f"a path under {SHOWN_ROOT}")
            )
        return target

    def _shown(self, text: str) -> str:
        return text.replace(str(self.root), SHOWN_ROOT)

    def _hidden(self, text: str) -> str:
        return text.replace(SHOWN_ROOT, str(self.root))

    def _environment(self) -> dict[str, str]:
        # Git hashes hold the date: each command is one minute after the one before it.
        date = f"2026-03-02T{9 + self._minutes // 60:02d}:{self._minutes % 60:02d}:00+0000"
        return {
            "PATH": f"{self._bin}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self._holder / "home"),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "dumb",
            "COLUMNS": "100",
            "PAGER": "cat",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNODEBUGRANGES": "1",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONNOUSERSITE": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "Sample Author",
            "GIT_AUTHOR_EMAIL": "author@example.com",
            "GIT_COMMITTER_NAME": "Sample Author",
            "GIT_COMMITTER_EMAIL": "author@example.com",
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
        }


def _listed(relative: Path) -> bool:
    return len(relative.parts) <= 2 and not any(part.startswith(".") for part in relative.parts)


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:6d}\t{lines[number - 1]}" for number in range(first, last + 1))
