"""`leadline sessions list|show|check`: what recordings a directory holds, what they say, and what could not be read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leadline.errors import UsageError, explain
from leadline.sessions.directory import Discovery, Skipped, discover
from leadline.sessions.printable import one_line, printable
from leadline.sessions.schema import Message, Session, View

app = typer.Typer(no_args_is_help=True, help="Recorded sessions: list them, show one, check what could not be read.")

_SHOWN = 400  # characters of a message that `show` prints


SessionsPath = Annotated[Path, typer.Argument(help="A session file, or a directory of them.")]
ViewOption = Annotated[
    View,
    typer.Option("--view", help="What the model saw, or the whole log.", envvar="LEADLINE_VIEW"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.", envvar="LEADLINE_JSON")]


@app.command("list")
def list_sessions(path: SessionsPath, view: ViewOption = "condensed", as_json: JsonOption = False) -> None:
    """List every session under PATH, and every other file with the reason why it is none."""
    found = discover(path, view)
    if as_json:
        document = {"path": str(path), "view": view, **_counts(found)}
        document["sessions"] = [_row(session) for session in found.sessions]
        document["skipped"] = [_skipped_row(item) for item in found.skipped]
        _print_json(document)
        return
    table = _table("id", "format", "source", right=("steps", "messages", "segments", "tools"))
    for session in found.sessions:
        row = _row(session)
        tools = (
            f"{row['tools']}" if session.tools_complete else f"{row['tools']} (no schemas)" if session.tools else "0"
        )
        _add(table, session.id, session.format, session.source, row["steps"], row["messages"], row["segments"], tools)
    console = _console()
    console.print(table)
    _print_skipped(console, found.skipped)
    console.print(f"{len(found.sessions)} sessions, {len(found.skipped)} other files", highlight=False)


@app.command("show")
def show_session(
    path: SessionsPath,
    session_id: Annotated[
        str | None, typer.Option("--session", help="Id of the session, as `list` prints it.", envvar="LEADLINE_SESSION")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="Show this step whole, after its prompt.", envvar="LEADLINE_STEP"),
    ] = None,
    view: ViewOption = "condensed",
    as_json: JsonOption = False,
) -> None:
    """Print one session's messages, shortened; with --step, the prompt of that step and what the agent then said."""
    session = _pick(discover(path, view), path, session_id)
    if step is not None and step >= len(session.steps):
        raise UsageError(
            explain("there is no such step", field="--step", found=step, expected=f"0 to {len(session.steps) - 1}")
        )
    if as_json:
        _print_json(session.model_dump(mode="json") if step is None else _step_document(session, step))
        return
    console = _console()
    console.print(Text(printable(f"{session.id}  {session.format}  {session.source}  {session.path}"), style="bold"))
    if step is None:
        number = 0
        for index, segment in enumerate(session.segments):
            if len(session.segments) > 1:
                console.print(
                    Text(f"segment {index}: {len(segment.messages)} messages, {segment.carried} carried", "dim")
                )
            for position, message in enumerate(segment.messages):
                is_step = message.role == "assistant" and position >= segment.carried
                _print_message(console, message, f"step {number}" if is_step else "", _SHOWN)
                number += is_step
    else:
        for message in session.prompt(session.steps[step]):
            _print_message(console, message, "", _SHOWN)
        _print_message(console, session.steps[step].message, f"step {step}", None)
    for note in session.notes:
        console.print(Text(printable(f"note  {note.kind}  {note.where}: {note.reason}"), style="dim"))


@app.command("check")
def check_sessions(path: SessionsPath, view: ViewOption = "condensed", as_json: JsonOption = False) -> None:
    """Say per session what was dropped, repaired, cut or missing; exit 1 when something was lost."""
    found = discover(path, view)
    broken = [item for item in found.skipped if item.kind == "broken"]
    lost = [session for session in found.sessions if any(note.kind == "dropped" for note in session.notes)]
    if as_json:
        sessions = [
            {
                **_row(session),
                "unanswered": _unanswered(session),
                "details": [note.model_dump() for note in session.notes],
            }
            for session in found.sessions
        ]
        skipped = [_skipped_row(item) for item in found.skipped]
        document = {"path": str(path), "view": view, **_counts(found), "ok": not lost and not broken}
        _print_json({**document, "sessions": sessions, "skipped": skipped})
    else:
        kinds = ("dropped", "repaired", "truncated", "image", "missing", "info")
        table = _table("id", right=("steps", *kinds, "unanswered"))
        for session in found.sessions:
            count: Counter[str] = Counter(note.kind for note in session.notes)
            _add(
                table,
                session.id,
                len(session.steps),
                *(count[kind] or "" for kind in kinds),
                _unanswered(session) or "",
            )
        console = _console()
        console.print(table)
        for session in lost:
            for note in session.notes:
                if note.kind == "dropped":
                    console.print(Text(printable(f"dropped  {session.id}  {note.where}: {note.reason}")))
        _print_skipped(console, found.skipped)
        console.print(f"{len(lost)} sessions lost something, {len(broken)} files could not be read", highlight=False)
    if lost or broken:
        raise typer.Exit(1)


def _counts(found: Discovery) -> dict[str, Any]:
    kinds = Counter(item.kind for item in found.skipped)
    return {
        "n_sessions": len(found.sessions),
        "n_skipped": len(found.skipped),
        "skipped_kinds": dict(sorted(kinds.items())),
    }


def _row(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "format": session.format,
        "path": session.path,
        "source": session.source,
        "sha256": session.sha256,
        "steps": len(session.steps),
        "messages": sum(len(segment.messages) - segment.carried for segment in session.segments),
        "tool_calls": sum(len(step.message.tool_calls) for step in session.steps),
        "segments": len(session.segments),
        "tools": len(session.tools),
        "tools_complete": session.tools_complete,
        "notes": dict(sorted(Counter(note.kind for note in session.notes).items())),
    }


def _skipped_row(item: Skipped) -> dict[str, str]:
    return {"path": item.path, "kind": item.kind, "reason": item.reason}


def _unanswered(session: Session) -> int:
    """Calls of the session's steps without a tool message right behind them; a last step's calls often have none."""
    count = 0
    for step in session.steps:
        answered: set[str | None] = set()
        for message in session.segments[step.segment].messages[step.position + 1 :]:
            if message.role != "tool":
                break
            answered.add(message.tool_call_id)
        count += sum(call.id not in answered for call in step.message.tool_calls)
    return count


def _pick(found: Discovery, path: Path, session_id: str | None) -> Session:
    ids = [session.id for session in found.sessions]
    if not ids:
        reasons = "; ".join(sorted({item.reason for item in found.skipped})[:3]) or "no files"
        do = "run `leadline sessions list` on it to see why"
        raise UsageError(explain("there is no session here", file=path, found=reasons, do=do))
    if session_id is None and len(ids) == 1:
        return found.sessions[0]
    if session_id not in ids:
        shown = ", ".join(ids[:12]) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")
        raise UsageError(
            explain("name one session", file=path, field="--session", found=session_id or "none named", expected=shown)
        )
    return found.sessions[ids.index(session_id)]


def _step_document(session: Session, index: int) -> dict[str, Any]:
    step = session.steps[index]
    prompt = [message.model_dump(mode="json") for message in session.prompt(step)]
    return {"id": session.id, "step": index, "prompt": prompt, "message": step.message.model_dump(mode="json")}


def _print_message(console: Console, message: Message, label: str, shown: int | None) -> None:
    text = message.content
    if shown is not None and len(text) > shown:
        text = f"{text[:shown]}… (+{len(text) - shown} characters)"
    head = " ".join(part for part in (message.role, message.name or "", label) if part)
    console.print(Text(printable(f"── {head}"), style="bold cyan" if label else "cyan"))
    if text:
        console.print(Text(printable(text)))
    for call in message.tool_calls:
        arguments = printable(call.arguments) if shown is None else one_line(call.arguments, shown)
        console.print(Text(f"→ {printable(call.name)} {arguments}", style="yellow"))


def _print_skipped(console: Console, skipped: tuple[Skipped, ...]) -> None:
    if not skipped:
        return
    table = _table("not a session", "kind", "reason")
    for item in skipped:
        _add(table, item.path, item.kind, item.reason)
    console.print(table)


def _table(*left: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(one_line(str(cell), 1000)) for cell in cells))


def _console() -> Console:
    """Standard output; wide enough for whole rows where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))
