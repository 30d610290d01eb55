"""The shared core of the event readers: a log of entries in, condensation segments of chat messages out.

A reader maps its own events to `Say`, `Act`, `Result`, `Condense` and `Hidden` entries; `Log` groups the actions of one
model response into one assistant turn, matches results to calls, and walks the log once: at each condensation the
segment so far is closed and a new one opens with what the agent's model saw from then on. (SPEC section 5.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .content import note, plain
from .schema import Message, Note, Segment, ToolCall, View

UNMATCHED = "a tool result whose call"  # how the note on a result without its call begins


@dataclass(frozen=True)
class Entry:
    """One event of a log: `event` is the recorded id (what condensations name), `where` labels it in notes."""

    event: str
    where: str


@dataclass(frozen=True)
class Say(Entry):
    """A message that calls no tools; two `mergeable` ones in a row become one user message."""

    message: Message
    mergeable: bool = False


@dataclass(frozen=True)
class Act(Entry):
    """One action (with one or more calls) of the model response `response`; None makes it a response of its own."""

    response: str | None
    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class Result(Entry):
    """What came back for a call, found by `call_id` in the current turn, else by `cause` (the action's event id)."""

    call_id: str | None
    cause: str | None
    content: str
    name: str | None = None


@dataclass(frozen=True)
class Hidden(Entry):
    """An event without a message that still counts in a condensation's `offset`."""


@dataclass(frozen=True)
class Condense(Entry):
    """Events forgotten from here on, and the summary put in their place (None: no summary)."""

    forgotten: frozenset[str]
    summary: str | None
    offset: int | None


@dataclass
class _Turn:
    where: str
    content: str
    calls: list[ToolCall]
    acts: list[int]
    results: dict[int, int] = field(default_factory=dict)  # call number -> position of its result in the log


class Log:
    """Entries in order, resolved into turns; `segments` may be asked for once.

    dialect: "v0" rebuilds its view for every prompt: the newest summary only, appended when it has no offset, and the
    tool messages of a turn in the order of its calls. "v1" edits its view: a summary stays until it is forgotten, one
    without an offset is never inserted, and tool messages stand in the order they were logged.
    """

    def __init__(self, entries: Iterable[Entry], notes: list[Note], dialect: Literal["v0", "v1"]) -> None:
        self.entries = [_without_images(entry, notes) for entry in entries]
        self.notes = notes
        self._dialect = dialect
        self._newest: tuple[int, int | None] | None = None  # position and offset of the newest summary
        self._logged = len(self.entries)  # summaries are appended behind the logged entries
        self._turn_at: dict[int, _Turn] = {}  # position of an Act or a matched Result -> its turn
        self._turns: list[_Turn] = []
        self._resolve()

    def segments(self, view: View) -> tuple[Segment, ...]:
        """The log as segments; one segment in the full view. Every assistant turn is a step of exactly one of them."""
        done: list[Segment] = []
        held: list[int] = []
        old: frozenset[int] = frozenset()
        for position in range(len(self.entries)):
            entry = self.entries[position]
            if not isinstance(entry, Condense):
                held.append(position)
            elif view == "condensed":
                segment = self._render(held, old)
                if _steps(segment):
                    done.append(segment)
                held = self._condense(held, position, entry)
                old = frozenset(held)
        segment = self._render(held, old)
        if segment.messages or not done:
            done.append(segment)
        self._note_unanswered()
        return tuple(done)

    def _resolve(self) -> None:
        """Group actions by response and match every result to a call."""
        response: str | None = None
        by_action: dict[str, tuple[_Turn, int]] = {}
        by_call: dict[str, tuple[_Turn, int]] = {}  # of ids that are used again, the latest turn's
        for position, entry in enumerate(self.entries):
            if isinstance(entry, Act):
                # Only the latest turn can go on: a response id that returns later is a provider reusing ids.
                if not self._turns or entry.response is None or entry.response != response:
                    self._turns.append(_Turn(entry.where, entry.content, [], []))
                    response = entry.response
                turn = self._turns[-1]
                turn.acts.append(position)
                turn.content = turn.content or entry.content
                known = {call.id for call in entry.calls if by_call.get(call.id, (None, 0))[0] is turn}
                for call in entry.calls:
                    if call.id in known:
                        continue
                    if by_call.get(call.id, (None, 0))[0] is not turn:
                        by_call[call.id] = (turn, len(turn.calls))
                    turn.calls.append(call)
                if entry.calls:
                    by_action[entry.event] = by_call[entry.calls[-1].id]
                self._turn_at[position] = turn
            elif isinstance(entry, Result):
                found = by_call.get(entry.call_id) if entry.call_id is not None else None
                if found is None and entry.cause is not None:
                    found = by_action.get(entry.cause)
                self._match(position, entry, found)
            elif isinstance(entry, Say) and entry.message.role == "assistant":
                response = None

    def _match(self, position: int, result: Result, found: tuple[_Turn, int] | None) -> None:
        if found is None and result.call_id is None and self._turns:
            turn = self._turns[-1]
            open_calls = [n for n in range(len(turn.calls)) if n not in turn.results]
            if open_calls:
                found = (turn, open_calls[0])
                note(
                    self.notes, "repaired", result.where, "a tool result without an id was given to the first open call"
                )
        if found is None:
            # The call is in a hole of the log. The model saw its result, but never without its call.
            reason = f"{UNMATCHED} {result.call_id!r} is not in the log is kept as user text"
            note(self.notes, "repaired", result.where, reason)
            self.entries[position] = Say(result.event, result.where, Message(role="user", content=result.content))
            return
        turn, number = found
        if number in turn.results:
            note(self.notes, "dropped", result.where, f"call {turn.calls[number].id!r} already has a result")
            return
        if turn is not self._turns[-1]:
            note(self.notes, "repaired", result.where, "a result logged after a later turn was moved behind its call")
        turn.results[number] = position
        self._turn_at[position] = turn

    def _condense(self, held: Sequence[int], position: int, entry: Condense) -> list[int]:
        """What the model sees after the condensation at `position`: forgotten entries out, summary in, no halves."""
        logged = {self.entries[p].event for p in range(position)} | {self.entries[p].event for p in held}
        unknown = entry.forgotten - logged
        kept = [p for p in held if self.entries[p].event not in entry.forgotten]
        if unknown and not any(p >= self._logged for p in held):
            note(self.notes, "info", entry.where, f"{len(unknown)} forgotten event(s) are not in the log")
        if self._dialect == "v0" or (unknown and entry.summary is not None):
            # Early V1 logs rebuilt the view too and name the replaced summary by an id that was never logged.
            kept = [p for p in kept if p < self._logged]
        if entry.summary is not None and (entry.offset is not None or self._dialect == "v0"):
            self._newest = (len(self.entries), entry.offset)
            summary = Message(role="user", content=entry.summary)
            self.entries.append(Say(f"{entry.event}-summary", entry.where, summary))
            self._insert(kept, entry)
        elif entry.summary is not None:
            note(self.notes, "dropped", entry.where, "a summary has no offset; the agent did not insert it")
        elif self._dialect == "v0":
            self._insert(kept, entry)
        return self._whole(kept, position, entry)

    def _insert(self, kept: list[int], entry: Entry) -> None:
        """Put the newest summary at its offset."""
        if self._newest is None:
            return
        position, offset = self._newest
        at = len(kept) if offset is None else max(0, offset)
        if at > len(kept):
            note(self.notes, "repaired", entry.where, f"summary offset {at} is past the end ({len(kept)}); clamped")
        kept.insert(min(at, len(kept)), position)

    def _whole(self, kept: Sequence[int], position: int, entry: Condense) -> list[int]:
        """Drop turns that lost an action or a result to the condensation, or were never answered, and stray results."""
        present = set(kept)

        def is_whole(turn: _Turn) -> bool:
            acts = all(p in present for p in turn.acts if p < position)
            answers = [turn.results.get(n) for n in range(len(turn.calls))]
            return acts and all(p is not None and (p in present or p > position) for p in answers)

        whole = []
        dropped = 0
        for p in kept:
            turn = self._turn_at.get(p)
            if turn is not None and not is_whole(turn):
                dropped += 1
                continue
            whole.append(p)
        if dropped:
            note(
                self.notes, "info", entry.where, f"{dropped} event(s) left out: their call or result was condensed away"
            )
        return whole

    def _render(self, held: Sequence[int], old: frozenset[int]) -> Segment:
        messages: list[Message] = []
        carried = 0
        seen: set[int] = set()
        present = set(held)
        merging = False
        for position in held:
            entry = self.entries[position]
            if isinstance(entry, Say):
                if merging and entry.mergeable:
                    text = f"{messages[-1].content}\n{entry.message.content}"
                    messages[-1] = messages[-1].model_copy(update={"content": text})
                else:
                    messages.append(self._spaced(entry.message, messages))
                merging = entry.mergeable
            elif isinstance(entry, Act):
                turn = self._turn_at[position]
                if id(turn) in seen:
                    continue
                seen.add(id(turn))
                messages.extend(self._turn_messages(turn, present))
                merging = False
            else:
                continue
            if position in old:
                carried = len(messages)
        return Segment(messages=tuple(messages), carried=carried)

    def _spaced(self, message: Message, before: Sequence[Message]) -> Message:
        """V0 put a blank line in front of a user message that follows another one."""
        doubled = message.role == "user" and message.content and before and before[-1].role == "user"
        if self._dialect == "v0" and doubled:
            return message.model_copy(update={"content": f"\n\n{message.content}"})
        return message

    def _turn_messages(self, turn: _Turn, present: set[int]) -> list[Message]:
        numbers = sorted(turn.results, key=None if self._dialect == "v0" else lambda n: turn.results[n])
        messages = [Message(role="assistant", content=turn.content, tool_calls=tuple(turn.calls))]
        for number in numbers:
            result = self.entries[turn.results[number]]
            if turn.results[number] in present and isinstance(result, Result):
                call = turn.calls[number]
                name = result.name or call.name
                messages.append(Message(role="tool", content=result.content, tool_call_id=call.id, name=name))
        return messages

    def _note_unanswered(self) -> None:
        for turn in self._turns[:-1]:
            for number, call in enumerate(turn.calls):
                if number not in turn.results:
                    note(self.notes, "info", turn.where, f"call {call.id!r} of {call.name} was never answered")


def _steps(segment: Segment) -> bool:
    return any(message.role == "assistant" for message in segment.messages[segment.carried :])


def _without_images(entry: Entry, notes: list[Note]) -> Entry:
    """The entry with inline images replaced, whatever part of an event its text came from."""
    if isinstance(entry, Say) and ";base64," in entry.message.content:
        text = plain(entry.message.content, entry.where, notes)
        return replace(entry, message=entry.message.model_copy(update={"content": text}))
    if isinstance(entry, (Act, Result)) and ";base64," in entry.content:
        return replace(entry, content=plain(entry.content, entry.where, notes))
    if isinstance(entry, Condense) and entry.summary is not None:
        return replace(entry, summary=plain(entry.summary, entry.where, notes))
    return entry
