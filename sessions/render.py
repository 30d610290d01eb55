"""A session as token ids: every step's prompt as its agent's model saw it, and the recorded turn as rendered.

The prompt of a step is the chat template over every message before it, with the request for the next turn; the
recorded turn is what the template writes from there to the end of turn, which is left out (SPEC section 5). Prompts
of one session share long prefixes: each branch point says how many tokens it has in common with the one before, so
that the engine knows from where to prefill again when a template or a condensation broke the prefix. Recorded text
never becomes a control token (`tokens`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from leadline.errors import UsageError, explain
from leadline.sessions.adapt import adapt, usable_tools
from leadline.sessions.probing import probe, user
from leadline.sessions.roundtrip import check_round_trip
from leadline.sessions.schema import Message, Note, Session, Step
from leadline.sessions.templates import Chat, ChatTemplate, TemplateTraits, cut_turn
from leadline.sessions.tokens import Ids, TokenEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class BranchPoint:
    """One step with its prompt, in tokens of one model.

    session_id, step, segment: where it stands (`Session.steps[step]`).
    prompt_ids:      `[n_tokens]` int32, read-only. recorded_ids: `[m]` int32, the recorded turn without its end of
                     turn.
    recorded_text:   the same as text (control tokens of the call form included).
    common_prefix:   tokens shared with the previous branch point's prompt (0 for the first).
    is_prefix:       the previous branch point's whole prompt is a prefix of this one (True for the first).
    tools_rendered:  whether tool schemas stand in the prompt.
    notes:           what is particular to this step.
    """

    session_id: str
    step: int
    segment: int
    prompt_ids: Ids
    recorded_ids: Ids
    recorded_text: str
    common_prefix: int
    is_prefix: bool
    tools_rendered: bool
    notes: tuple[Note, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.prompt_ids)


@dataclass(frozen=True, eq=False)
class RenderedSession:
    """Every step of a session as a branch point, in order, and the notes that concern the session as a whole."""

    session_id: str
    session_sha256: str
    points: tuple[BranchPoint, ...]
    traits: TemplateTraits
    tools_rendered: bool
    notes: tuple[Note, ...]


@dataclass
class _Voice:
    """A template as used with or without tool schemas: its traits, and the encoder that knows its control tokens."""

    traits: TemplateTraits
    encoder: TokenEncoder
    stop_ids: frozenset[int] = field(default_factory=frozenset)


class Renderer:
    """Renders sessions for one tokenizer. `options` are further template variables, e.g. {"enable_thinking": False}."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any] | None = None) -> None:
        self._tokenizer, self._options = tokenizer, dict(options or {})
        self._template = ChatTemplate(tokenizer, self._options)
        self._voices: dict[bool, _Voice] = {}

    @property
    def traits(self) -> TemplateTraits:
        """The template's traits with tool schemas in the prompt (where it has a slot for them)."""
        return self._voice(True).traits

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids of the template's own end-of-turn tokens; empty where its end of turn is not a single token."""
        return self._voice(True).stop_ids

    def decode(self, ids: Ids) -> str:
        """The text of ids with every token spelled out: what `parse_actions` reads and `recorded_text` holds."""
        return self._voice(True).encoder.decode(ids)

    def render(self, session: Session) -> RenderedSession:
        """Every step of `session` as a branch point. UsageError where the template refuses its messages."""
        schemas, missing = usable_tools(session.tools, session.tools_complete, self.traits)
        voice = self._voice(bool(schemas))
        marker = voice.encoder.begin(_texts(session))
        job = _Job(self._template, voice, marker, voice.encoder.guard(schemas, marker), session)
        points = job.points()
        notes = dict.fromkeys([*([missing] if missing else []), *job.session_notes()])
        return RenderedSession(session.id, session.sha256, tuple(points), voice.traits, bool(schemas), tuple(notes))

    def _voice(self, with_tools: bool) -> _Voice:
        if with_tools not in self._voices:
            traits = probe(self._tokenizer, with_tools=with_tools, options=self._options)
            turns = [user(), {"role": "assistant", "content": "Certainly,  it is.\n\n"}, user("And\tthen?\n")]
            encoder = TokenEncoder(self._tokenizer, traits.written, self._template.render(turns))
            ends = {encoder.id_of(end) for end in traits.ends} - {None}
            self._voices[with_tools] = _Voice(traits, encoder, frozenset(end for end in ends if end is not None))
        return self._voices[with_tools]


class _Job:
    """The rendering of one session."""

    def __init__(
        self, template: ChatTemplate, voice: _Voice, marker: str, tools: list[dict[str, Any]], session: Session
    ) -> None:
        self.template, self.traits, self.encoder = template, voice.traits, voice.encoder
        self.marker, self.tools, self.session = marker, tools, session

    def points(self) -> Iterator[BranchPoint]:
        previous: Ids | None = None
        for step in self.session.steps:
            point = self.point(step, previous)
            previous = point.prompt_ids
            yield point

    def point(self, step: Step, previous: Ids | None) -> BranchPoint:
        before = self.session.prompt(step)
        prompt = self.write(before, generate=True)
        text, alone = self.recorded(step.message, before, prompt)
        ids, recorded = self.encoder.encode(prompt, self.marker), self.encoder.encode(text, self.marker, continues=True)
        ids.setflags(write=False)
        recorded.setflags(write=False)
        common = 0 if previous is None else common_tokens(previous, ids)
        is_prefix = previous is None or common == len(previous)
        reasons = []
        if alone:
            reasons.append(
                "the template writes earlier turns anew once the answer is there: recorded turn rendered on its own"
            )
        if previous is not None and not is_prefix:
            reasons.append(f"the prompt shares {common} of the previous prompt's {len(previous)} tokens")
        if self.marker in text:
            reasons.append("the recorded turn spells a control token: tokenised as ordinary text")
        return BranchPoint(
            session_id=self.session.id,
            step=step.index,
            segment=step.segment,
            prompt_ids=ids,
            recorded_ids=recorded,
            recorded_text=self.encoder.reveal(text, self.marker),
            common_prefix=common,
            is_prefix=is_prefix,
            tools_rendered=bool(self.tools),
            notes=tuple(Note(kind="info", where=f"step {step.index}", reason=reason) for reason in reasons),
        )

    def write(self, messages: Sequence[Message], *, generate: bool) -> str:
        """The guarded text of a conversation."""
        guarded: Chat = []
        for message in adapt(messages, self.traits).messages:
            shielded = self.encoder.guard(message, self.marker, assistant=message["role"] == "assistant")
            guarded.append({**shielded, "role": message["role"]})
        try:
            return self.template.render(guarded, self.tools, generate=generate)
        except UsageError as error:
            raise UsageError(
                explain(
                    "A session cannot be rendered with this model's chat template.",
                    file=self.session.path,
                    field=f"{self.session.id}, the first {len(messages)} messages",
                    found=str(error),
                    expected="a conversation the template accepts",
                    do="leave this session out, or replay it with a model whose template takes it",
                )
            ) from error

    def recorded(self, message: Message, before: Sequence[Message], prompt: str) -> tuple[str, bool]:
        """The guarded recorded turn without its end, and whether it had to be rendered behind one user turn alone."""
        turn = (
            self.turn(prompt, self.write([*before, message], generate=False)) if self.follows(message, before) else None
        )
        if turn is not None:
            return turn, False
        single = [Message(role="user", content="Go on.")]
        turn = self.turn(self.write(single, generate=True), self.write([*single, message], generate=False))
        if turn is None:
            raise UsageError(
                explain(
                    "The chat template does not write an assistant turn where it asks for one.",
                    file=self.session.path,
                    field=self.session.id,
                    do="replay with a model whose template writes recorded turns behind its generation prompt",
                )
            )
        return turn, True

    def follows(self, message: Message, before: Sequence[Message]) -> bool:
        """Whether the turn stands right behind its prompt, with no empty turn that the template wants between them."""
        if not self.traits.alternates:
            return True
        return len(adapt([*before, message], self.traits).messages) <= len(adapt(before, self.traits).messages) + 1

    def turn(self, prompt: str, whole: str) -> str | None:
        """What `whole` has behind `prompt`, or behind the part of the request recorded turns have; end cut off."""
        for start in (prompt, prompt.removesuffix(self.traits.generation_prompt) + self.traits.turn_header):
            if whole.startswith(start):
                return cut_turn(whole[len(start) :], self.traits.ends)
        return None

    def session_notes(self) -> Iterator[Note]:
        """What the template adds, and per segment what had to change and what did not come through."""
        no_system = any(not any(m.role == "system" for m in segment.messages) for segment in self.session.segments)
        if self.traits.default_system and no_system:
            yield Note(
                kind="info", where="template", reason="no system message recorded: the chat template adds its own"
            )
        if not self.encoder.by_sections:
            yield Note(
                kind="info",
                where="template",
                reason="the tokenizer joins text across control tokens: every prompt is tokenised whole",
            )
        for number, segment in enumerate(self.session.segments):
            if not segment.messages:
                continue
            adapted = adapt(segment.messages, self.traits)
            text = self.write(segment.messages, generate=False)
            shown = self.encoder.reveal(text, self.marker)
            ids = self.encoder.encode(text, self.marker)
            decoded = self.encoder.decode(ids if self.encoder.bos is None else ids[1:])
            for note in _gathered(
                [*adapted.notes, *check_round_trip(shown, adapted.messages, self.traits, decoded=decoded)]
            ):
                yield note.model_copy(update={"where": f"segment {number}, {note.where}"})
            if cuts := text.count(self.marker):
                reason = f"{cuts} look-alikes of control tokens in recorded text: tokenised as ordinary text"
                yield Note(kind="info", where=f"segment {number}", reason=reason)


def common_tokens(left: Ids, right: Ids) -> int:
    """Length of the longest common prefix of two id arrays."""
    shorter = min(len(left), len(right))
    differing = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differing[0]) if len(differing) else shorter


def _gathered(notes: Sequence[Note]) -> list[Note]:
    """One note per reason, saying where it applies: a template without a tool role would otherwise fill pages."""
    places: dict[tuple[Any, str], list[str]] = {}
    for note in notes:
        places.setdefault((note.kind, note.reason), []).append(note.where)
    gathered = []
    for (kind, reason), wheres in places.items():
        more = f" and {len(wheres) - 3} more" if len(wheres) > 3 else ""
        gathered.append(Note(kind=kind, where=", ".join(wheres[:3]) + more, reason=reason))
    return gathered


def _texts(session: Session) -> list[str]:
    """Every recorded text of a session, for choosing a marker that stands in none of them."""
    texts = [json.dumps(list(session.tools), ensure_ascii=False)]
    for segment in session.segments:
        for message in segment.messages:
            texts += [message.content, message.name or "", message.tool_call_id or ""]
            texts += [part for call in message.tool_calls for part in (call.id, call.name, call.arguments)]
    return texts
