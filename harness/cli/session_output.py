"""How the sessions commands print: tables a few hundred rows at a time, JSON one session at a time, so that memory does
not grow with the number of sessions. Recorded text is made harmless before it reaches a terminal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leadline.sessions.found import Skipped
from leadline.sessions.printable import one_line

_ROWS = 500  # of a table that are held back to align its columns


class RowTable:
    """A table of any length; `add` takes one row, `close` prints what is left (at least the header)."""

    def __init__(self, *left: str, right: tuple[str, ...] = ()) -> None:
        self._left, self._right = left, right
        self._table = table(*left, right=right)
        self._printed = False

    def add(self, *cells: object) -> None:
        add(self._table, *cells)
        if self._table.row_count == _ROWS:
            self._print()

    def close(self) -> None:
        if self._table.row_count or not self._printed:
            self._print()

    def _print(self) -> None:
        console().print(self._table)
        self._printed = True
        self._table = table(*self._left, right=self._right)


class JsonDocument:
    """One JSON object whose `sessions` are written as they come, between the fields of `head` and of `close`."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self.sessions = 0

    def add(self, row: dict[str, Any]) -> None:
        if self.sessions == 0:
            typer.echo(json.dumps(self._head, indent=2)[:-2] + ',\n  "sessions": [')
        typer.echo((",\n" if self.sessions else "") + _indented(row), nl=False)
        self.sessions += 1

    def close(self, skipped: Sequence[Skipped], **tail: Any) -> None:
        kinds = Counter(item.kind for item in skipped)
        ends = {"n_sessions": self.sessions, "n_skipped": len(skipped), "skipped_kinds": dict(sorted(kinds.items()))}
        ends |= {**tail, "skipped": [{"path": s.path, "kind": s.kind, "reason": s.reason} for s in skipped]}
        if self.sessions == 0:
            typer.echo(json.dumps({**self._head, "sessions": [], **ends}, indent=2))
        else:
            typer.echo("\n  ]," + json.dumps(ends, indent=2)[1:])


def _indented(row: dict[str, Any]) -> str:
    return "    " + json.dumps(row, indent=2).replace("\n", "\n    ")


def print_json(document: dict[str, Any]) -> None:
    """A whole document at once."""
    typer.echo(json.dumps(document, indent=2))


def print_skipped(skipped: Sequence[Skipped]) -> None:
    """The files that gave no session, with the reasons; nothing where there are none."""
    if skipped:
        rows = RowTable("not a session", "kind", "reason")
        for item in skipped:
            rows.add(item.path, item.kind, item.reason)
        rows.close()


def table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without lines."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in left:
        made.add_column(name, overflow="fold")
    for name in right:
        made.add_column(name, justify="right")
    return made


def add(made: Table, *cells: object) -> None:
    """One row of harmless text."""
    made.add_row(*(Text(one_line(str(cell), 1000)) for cell in cells))


def console() -> Console:
    """Standard output; wide enough for whole rows where it is no terminal."""
    made = Console()
    return made if made.is_terminal else Console(width=240)
