"""What `leadline sessions check` says about one session: its size (with a model also in tokens), and its losses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from leadline.cli.session_output import RowTable, console
from leadline.errors import UsageError, explain
from leadline.sessions.printable import printable
from leadline.sessions.schema import Segment, Session
from leadline.sessions.turns import UNMATCHED

if TYPE_CHECKING:
    from leadline.sessions.render import Renderer

KINDS = ("dropped", "repaired", "truncated", "image", "missing", "info")


class CheckTable:
    """One line a session, then every dropped and repaired event with its reason."""

    def __init__(self, *, with_tokens: bool) -> None:
        self._tokens = ("tokens",) if with_tokens else ()
        right = ("steps", "messages", *self._tokens, *KINDS, "unanswered", "unmatched", "attempt")
        self._table = RowTable("id", right=right)
        self._reasons: list[str] = []

    def add(self, row: dict[str, Any]) -> None:
        figures = [row[name] for name in ("steps", "messages", *self._tokens)]
        figures += [row["notes"].get(kind, "") for kind in KINDS] + [row["unanswered"] or "", row["unmatched"] or ""]
        self._table.add(row["id"], *figures, f"{row['attempt']} of {row['attempts']}" if row["attempts"] > 1 else "")
        for note in row["details"]:
            if note["kind"] in ("dropped", "repaired"):
                self._reasons.append(f"{note['kind']}  {row['id']}  {note['where']}: {note['reason']}")

    def close(self) -> None:
        self._table.close()
        for reason in self._reasons:
            console().print(Text(printable(reason)))


def session_row(session: Session) -> dict[str, Any]:
    """The facts that `list` and `check` share."""
    return {
        "id": session.id,
        "format": session.format,
        "path": session.path,
        "source": session.source,
        "steps": len(session.steps),
        "messages": sum(len(segment.messages) - segment.carried for segment in session.segments),
        "tool_calls": sum(len(step.message.tool_calls) for step in session.steps),
        "segments": len(session.segments),
        "tools": len(session.tools),
        "tools_complete": session.tools_complete,
        "attempt": session.attempt,
        "attempts": session.attempts,
        "notes": dict(sorted(Counter(note.kind for note in session.notes).items())),
    }


def check_row(session: Session, renderer: Renderer | None) -> dict[str, Any]:
    """`session_row` and what a check adds: calls and results that lack each other, images, notes, tokens."""
    return {
        **session_row(session),
        "view": session.view,
        "tokens": None if renderer is None else prompt_tokens(session, renderer),
        "unanswered": unanswered(session),
        "unmatched": sum(note.kind == "repaired" and note.reason.startswith(UNMATCHED) for note in session.notes),
        "images": sum(note.kind == "image" for note in session.notes),
        "details": [note.model_dump() for note in session.notes],
    }


def unanswered(session: Session) -> int:
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


def prompt_tokens(session: Session, renderer: Renderer) -> int:
    """Tokens of the session's longest prompt with the turn recorded behind it; 0 without steps.

    Prompts grow within a segment, so only the last step of each is rendered.
    """
    last = tuple(filter(None, map(_last_step, session.segments)))
    if not last:
        return 0
    points = renderer.render(session.model_copy(update={"segments": last})).points
    return max((point.n_tokens + len(point.recorded_ids) for point in points), default=0)


def _last_step(segment: Segment) -> Segment | None:
    """The segment up to its last step, with that step alone counted as one."""
    for position in range(len(segment.messages) - 1, segment.carried - 1, -1):
        if segment.messages[position].role == "assistant":
            return Segment(messages=segment.messages[: position + 1], carried=position)
    return None


def make_renderer(reference: str) -> Renderer:
    """The renderer of a model's tokenizer; no weights are loaded, converted or downloaded.

    reference: "embedded", a folder, a .gguf file or a hub id. One without a readable tokenizer is a UsageError.
    """
    from leadline.sessions.render import Renderer

    path = Path(reference).expanduser()
    if reference == "embedded" or path.is_file():
        from leadline.embedded import embedded_gguf
        from leadline.gguf_loader import open_gguf
        from leadline.gguf_tokenizer import build_tokenizer

        return Renderer(build_tokenizer(open_gguf(embedded_gguf() if reference == "embedded" else path)))
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else reference, trust_remote_code=False)
    except Exception as error:  # a damaged tokenizer file raises whatever its parser raises
        found = f"{reference}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        expected = '"embedded", an existing folder or .gguf file, or a hub id (OWNER/NAME)'
        raise UsageError(explain("no tokenizer there", field="--model", found=found, expected=expected)) from error
    return Renderer(tokenizer)
