"""`leadline sessions list|show|check|convert`: what recordings a directory holds, what they say, what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from leadline.cli.session_checks import CheckTable, check_row, make_renderer, session_row
from leadline.cli.session_output import JsonDocument, RowTable, console, print_json, print_skipped
from leadline.errors import UsageError, explain
from leadline.sessions.convert import Target, write_sessions
from leadline.sessions.directory import Discovery, Skipped, discover, iter_sessions
from leadline.sessions.printable import one_line, printable
from leadline.sessions.redaction import Redactor
from leadline.sessions.schema import Message, Session, View
from leadline.sessions.tables import parse_filters

app = typer.Typer(no_args_is_help=True, help="Recorded sessions: list them, show one, check what could not be read.")

_SHOWN = 400  # characters of a message that `show` prints


SessionsPath = Annotated[
    Path,
    typer.Argument(help="A session file, a directory or archive of them, or hf:OWNER/NAME[:SPLIT] on the hub."),
]
ViewOption = Annotated[
    View,
    typer.Option("--view", help="What the model saw, or the whole log.", envvar="LEADLINE_VIEW"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.", envvar="LEADLINE_JSON")]
RedactOption = Annotated[
    bool,
    typer.Option("--redact", help="Replace keys, tokens, e-mail addresses, home paths.", envvar="LEADLINE_REDACT"),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only records with column=value; may be repeated.", envvar="LEADLINE_FILTER"),
]


@app.command("list")
def list_sessions(
    path: SessionsPath,
    view: ViewOption = "condensed",
    redact: RedactOption = False,
    filters: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every session under PATH, and every other file with the reason why it is none."""
    skipped: list[Skipped] = []
    document = JsonDocument({"path": _named(path, redact), "view": view})
    table = RowTable("id", "format", "source", right=("steps", "messages", "segments", "tools"))
    count = 0
    for item in iter_sessions(path, view, redact=redact, filters=parse_filters(filters or [])):
        if isinstance(item, Skipped):
            skipped.append(item)
            continue
        count += 1
        row = session_row(item)
        if as_json:
            document.add({**row, "sha256": item.sha256})
            continue
        tools = f"{row['tools']}" if row["tools_complete"] else f"{row['tools']} (no schemas)" if row["tools"] else "0"
        table.add(*(row[key] for key in ("id", "format", "source", "steps", "messages", "segments")), tools)
    if as_json:
        document.close(skipped)
        return
    table.close()
    print_skipped(skipped)
    console().print(f"{count} sessions, {len(skipped)} other files", highlight=False)


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
    redact: RedactOption = False,
    filters: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one session's messages, shortened; with --step, the prompt of that step and what the agent then said."""
    found = discover(path, view, redact=redact, filters=parse_filters(filters or []))
    session = _pick(found, path, session_id)
    if step is not None and step >= len(session.steps):
        raise UsageError(
            explain("there is no such step", field="--step", found=step, expected=f"0 to {len(session.steps) - 1}")
        )
    if as_json:
        print_json(session.model_dump(mode="json") if step is None else _step_document(session, step))
        return
    screen = console()
    screen.print(Text(printable(f"{session.id}  {session.format}  {session.source}  {session.path}"), style="bold"))
    if step is None:
        number = 0
        for index, segment in enumerate(session.segments):
            if len(session.segments) > 1:
                screen.print(
                    Text(f"segment {index}: {len(segment.messages)} messages, {segment.carried} carried", "dim")
                )
            for position, message in enumerate(segment.messages):
                is_step = message.role == "assistant" and position >= segment.carried
                _print_message(screen, message, f"step {number}" if is_step else "", _SHOWN)
                number += is_step
    else:
        for message in session.prompt(session.steps[step]):
            _print_message(screen, message, "", _SHOWN)
        _print_message(screen, session.steps[step].message, f"step {step}", None)
    for note in session.notes:
        screen.print(Text(printable(f"note  {note.kind}  {note.where}: {note.reason}"), style="dim"))


@app.command("check")
def check_sessions(
    path: SessionsPath,
    view: ViewOption = "condensed",
    model: Annotated[
        str | None, typer.Option("--model", help="Count tokens with this model's tokenizer.", envvar="LEADLINE_MODEL")
    ] = None,
    redact: RedactOption = False,
    filters: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say per session what was dropped, repaired, cut or missing; exit 1 when something was lost."""
    asked = parse_filters(filters or [])
    renderer = make_renderer(model) if model is not None else None
    head = {"path": _named(path, redact), "view": view, "model": model, "redacted": redact}
    out: JsonDocument | CheckTable = JsonDocument(head) if as_json else CheckTable(with_tokens=renderer is not None)
    skipped: list[Skipped] = []
    lost = 0
    for item in iter_sessions(path, view, redact=redact, filters=asked):
        if isinstance(item, Skipped):
            skipped.append(item)
        else:
            row = check_row(item, renderer)
            lost += "dropped" in row["notes"]
            out.add(row)
    broken = sum(item.kind == "broken" for item in skipped)
    if isinstance(out, JsonDocument):
        out.close(skipped, ok=not lost and not broken)
    else:
        out.close()
        print_skipped(skipped)
        console().print(f"view: {view}", highlight=False)
        console().print(f"{lost} sessions lost something, {broken} files could not be read", highlight=False)
    if lost or broken:
        raise typer.Exit(1)


@app.command("convert")
def convert_sessions(
    path: SessionsPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new file (chat) or a new directory (atif).")],
    to: Annotated[
        Target,
        typer.Option("--to", help="atif: one JSON file a session. chat: JSON lines of messages.", envvar="LEADLINE_TO"),
    ],
    view: ViewOption = "condensed",
    redact: RedactOption = False,
    filters: FilterOption = None,
) -> None:
    """Write every session under PATH to OUT in a format that other tools read; reading it back gives the same."""
    skipped: list[Skipped] = []

    def sessions() -> Iterator[Session]:
        for item in iter_sessions(path, view, redact=redact, filters=asked):
            if isinstance(item, Session):
                yield item
            else:
                skipped.append(item)

    asked = parse_filters(filters or [])
    count = write_sessions(sessions(), to, out)
    broken = [item for item in skipped if item.kind == "broken"]
    print_skipped(broken)
    console().print(Text(printable(f"{count} sessions written to {out}, {len(broken)} files could not be read")))
    if broken:
        raise typer.Exit(1)


def _named(path: Path, redact: bool) -> str:
    return Redactor().text(str(path)) if redact else str(path)


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


def _print_message(screen: Console, message: Message, label: str, shown: int | None) -> None:
    text = message.content
    if shown is not None and len(text) > shown:
        text = f"{text[:shown]}… (+{len(text) - shown} characters)"
    head = " ".join(part for part in (message.role, message.name or "", label) if part)
    screen.print(Text(printable(f"── {head}"), style="bold cyan" if label else "cyan"))
    if text:
        screen.print(Text(printable(text)))
    for call in message.tool_calls:
        arguments = printable(call.arguments) if shown is None else one_line(call.arguments, shown)
        screen.print(Text(f"→ {printable(call.name)} {arguments}", style="yellow"))
