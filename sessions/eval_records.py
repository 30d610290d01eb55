"""Readers of OpenHands evaluation records: one line of `output.jsonl`, with the session under `history`.

Four kinds of history: V1 events, V0 events, the pairs of action and observation that were written before August 2024,
and the bare fields of V0 events that the issue resolver writes. (The record's own keys differ per benchmark.)
"""

from __future__ import annotations

from typing import Any

from . import v1_events
from .content import note
from .event_drafts import labelled, v0_draft, v1_draft
from .formats import Draft
from .schema import Note, View
from .shape import items, mapping

_ABOUT = ("instance_id", "question_id", "test_result", "metadata", "metrics", "git_patch", "issue", "instruction")


class EvalRecord:
    """A record with a history of V1 or V0 events; one with an empty history is a session without steps."""

    format = "oh-v0-eval-output"

    def sniff(self, value: object) -> bool:
        body = mapping(value)
        return isinstance(body.get("history"), list) and any(key in body for key in _ABOUT)

    def read(self, value: object, view: View) -> list[Draft]:
        body = mapping(value)
        history = items(body.get("history"))
        notes: list[Note] = []
        _note_outcome(body, notes)
        task = body.get("instruction")
        if not history:
            note(notes, "info", "history", "the record's history is empty: a session without steps")
        if any(isinstance(entry, list) for entry in history):
            return [v0_draft("oh-v0-eval-pairs", labelled(_unpaired(history, notes), "v0", notes), view, notes, task)]
        if any(v1_events.is_event(entry) for entry in history):
            return [v1_draft("oh-v1-eval-output", labelled(history, "v1", notes), view, notes, instruction=task)]
        if any(_is_bare(entry) for entry in history):
            whole = [_wrapped(entry, number == 0) for number, entry in enumerate(history)]
            return [v0_draft("oh-v0-resolver-output", labelled(whole, "v0", notes), view, notes, task)]
        return [v0_draft(self.format, labelled(history, "v0", notes), view, notes, task)]


def _note_outcome(body: dict[str, Any], notes: list[Note]) -> None:
    error = body.get("error")
    if isinstance(error, str) and error:
        note(notes, "info", "record", f"the recorded run ended with an error: {' '.join(error.split())[:160]}")


def _unpaired(history: list[Any], notes: list[Note]) -> list[Any]:
    """Actions and observations in a row; a missing second half stands for an action that nothing answered."""
    flat: list[Any] = []
    for number, pair in enumerate(history):
        if not isinstance(pair, list):
            flat.append(pair)
            continue
        flat += [half for half in pair if half is not None]
        if len(pair) != 2:
            note(notes, "info", f"item {number}", f"a pair of {len(pair)} parts")
    return flat


def _is_bare(entry: object) -> bool:
    """Whether an entry is the fields of a V0 event without the envelope around them."""
    body = mapping(entry)
    if isinstance(body.get("action"), str):
        return "args" not in body
    return isinstance(body.get("observation"), str) and not body.keys() & {"extras", "source", "id"}


def _wrapped(entry: object, first: bool) -> object:
    """A bare entry in its envelope, any other as it is.

    The bare form does not say who sent a message: the first is the task, the others are the agent's.
    """
    if not _is_bare(entry):
        return entry
    body = mapping(entry)
    fields = {key: value for key, value in body.items() if key not in ("action", "observation", "content")}
    if isinstance(body.get("action"), str):
        args = {**fields, "content": body["content"]} if "content" in body else fields
        return {"action": body["action"], "source": "user" if first else "agent", "args": args}
    return {"observation": body["observation"], "source": "agent", "content": body.get("content"), "extras": fields}
