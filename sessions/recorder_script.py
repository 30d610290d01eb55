"""The script of a scripted agent: the project files it starts from and, turn by turn, what it says and calls.

A script is a TOML file in `samples/scripts/`. It holds only the agent's and the user's half of a session; everything a
tool answered is missing on purpose, because the recorder gets that by really running the call.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator, model_validator

from leadline.errors import UsageError, explain

# TOML's multi-line strings end with a newline that nobody would type.
Prose = Annotated[str, StringConstraints(strip_whitespace=True)]

SCRIPTS = Path(__file__).parent / "samples" / "scripts"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Frozen):
    """A project file that exists before the session starts; `path` is relative to the project folder."""

    path: str
    text: str


class View(_Frozen):
    """Editor call: show a file with line numbers, or a folder's entries. `view_range`: first and last line, from 1."""

    path: str
    view_range: tuple[int, int] | None = None


class Create(_Frozen):
    """Editor call: write a new file."""

    path: str
    file_text: str


class Replace(_Frozen):
    """Editor call: replace the one occurrence of `old_str`."""

    path: str
    old_str: str
    new_str: str


class Insert(_Frozen):
    """Editor call: insert `new_str` after line `insert_line` (0 = at the top)."""

    path: str
    insert_line: int
    new_str: str


class Condense(_Frozen):
    """A condensation: turns `forget[0]` to `forget[1]` (counted from 1, both included) give way to `summary`."""

    forget: tuple[int, int]
    summary: Prose


class Turn(_Frozen):
    """One entry of a script: a user message, a condensation, or an agent turn (`say` and at most one kind of call).

    `bash` may list several commands: they are parallel calls of the one turn. A turn with `say` alone is a plain
    assistant message.
    """

    user: Prose | None = None
    condense: Condense | None = None
    say: Prose = ""
    bash: Prose | list[Prose] | None = None
    view: View | None = None
    create: Create | None = None
    replace: Replace | None = None
    insert: Insert | None = None
    think: Prose | None = None
    finish: Prose | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        calls = [self.bash, self.view, self.create, self.replace, self.insert, self.think, self.finish]
        called = sum(call is not None for call in calls)
        others = (self.user is not None) + (self.condense is not None)
        agent = called or self.say
        if called > 1 or others > 1 or bool(others) == bool(agent):
            raise ValueError("a turn is one user message, or one condensation, or `say` with at most one kind of call")
        return self

    @property
    def commands(self) -> list[str]:
        """The bash commands of this turn, none where it calls another tool."""
        return [self.bash] if isinstance(self.bash, str) else list(self.bash or ())


class Script(_Frozen):
    """A whole script. `setup` commands run before the session and are not part of it (a git history, a data file)."""

    id: str
    set: Literal["replay", "calibration"]
    format: Literal["openhands-v1", "openhands-v0"]
    project: str
    task: Prose
    files: tuple[File, ...] = ()
    setup: tuple[str, ...] = ()
    turns: tuple[Turn, ...]

    @field_validator("id", "project")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not value.replace("-", "").replace("_", "").isalnum():
            raise ValueError("must be a plain name of letters, digits, - and _")
        return value

    @model_validator(mode="after")
    def _condensations(self) -> Self:
        gone: set[int] = set()
        for number, turn in enumerate(self.turns, 1):
            if turn.condense is None:
                continue
            first, last = turn.condense.forget
            forgotten = set(range(first, last + 1))
            if self.format != "openhands-v1":
                raise ValueError("condensations are recorded in the openhands-v1 format only")
            if not 1 <= first <= last < number:
                raise ValueError(f"turn {number}: forget = [{first}, {last}] must lie before the condensation")
            if forgotten & gone:
                raise ValueError(f"turn {number}: forget = [{first}, {last}] holds turns that are forgotten already")
            gone |= forgotten | {number}
        return self


def load(path: Path) -> Script:
    """Read one script. Raises UsageError when the file is no TOML or no script."""
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            explain("cannot read the recorder script", file=path, found=error, expected="a TOML file")
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(explain("not a recorder script", file=path, field=field, found=first["msg"])) from error


def bundled() -> tuple[Path, ...]:
    """The scripts of the bundled samples, in name order."""
    return tuple(sorted(SCRIPTS.glob("*.toml")))
