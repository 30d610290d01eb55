"""The questions put to a chat template: small conversations of probe words, rendered, and the text read back.

Each method of `_Probe` answers one question of `TemplateTraits` from what the template writes; none looks at a
model's name or at the template's source (SPEC section 5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from leadline.sessions.schema import Role
from leadline.sessions.templates import TEXT_CALL, CallForm, Chat, ChatTemplate, TemplateTraits, common_length, cut_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_USER, _ASSISTANT, _SYSTEM, _RESULT, _CALLED = "userprobe", "answerprobe", "systemprobe", "resultprobe", "callprobe"
_ARGUMENTS: dict[str, Any] = {"path": "a \"b\" <c> & 'é'", "lines": [1, 25], "deep": {"flag": True}}
_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "schemaprobe",
        "description": "Describe.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "where"}},
            "required": ["path"],
        },
    },
}


def probe(
    tokenizer: PreTrainedTokenizerBase, *, with_tools: bool = True, options: Mapping[str, Any] | None = None
) -> TemplateTraits:
    """Measure the chat template of `tokenizer`.

    with_tools: probe as used with tool schemas in the prompt (tokenizers may keep a second template for that).
    options: further variables handed to the template, e.g. {"enable_thinking": False}.
    Raises UsageError where there is no template or where it refuses a single user message.
    """
    return _Probe(tokenizer, ChatTemplate(tokenizer, options), with_tools).traits()


def user(text: str = _USER) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


class _Probe:
    """One measurement; each method answers one question."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, with_tools: bool) -> None:
        self.template, self.bos = template, str(tokenizer.bos_token or "")
        self.seen: list[str] = []
        self.added = {str(token.content): bool(token.special) for token in tokenizer.added_tokens_decoder.values()}
        template.render([user()])
        slot = "schemaprobe" in template.attempt([user()], [_SCHEMA])
        self.tools_slot = slot
        self.tools = [_SCHEMA] if slot and with_tools else None

    def write(self, *messages: dict[str, Any], generate: bool = False) -> str:
        text = self.template.attempt(list(messages), self.tools, generate=generate)
        self.seen.append(text)
        return text

    def traits(self) -> TemplateTraits:
        answer, second = _said("assistant", _ASSISTANT), user("nextprobe")
        asked, asking = self.write(user()), self.write(user(), generate=True)
        turn = self.write(user(), answer)
        generation = asking[len(asked) :] if asking.startswith(asked) else ""
        header = generation[: common_length(generation, turn[len(asked) :])] if turn.startswith(asked) else ""
        calls, short_ids = self.call_arguments()
        call = self.call(calls, short_ids)
        called = [user(), self.calling("", call)] if calls != "none" else [user(), answer]
        ends = self.ends(turn, self.write(*called))
        call_text = self.call_text(called, header, ends) if calls != "none" else ""
        result = {"role": "tool", "content": _RESULT, "tool_call_id": self.call_id(short_ids), "name": _CALLED}
        tool_role, json_results = self.tool_role(called, result)
        after = self.write(*called, result, second) if tool_role else ""
        alternates = not (
            _all_in(self.write(user(), answer, _said("assistant", "moreprobe"), second), _ASSISTANT, "moreprobe")
            and _all_in(self.write(user(), second), _USER, "nextprobe")
        )
        front = self.write(_said("system", _SYSTEM), user())
        opening = [_said("system", _SYSTEM)] if _all_in(front, _SYSTEM, _USER) else []
        late = self.write(*opening, user(), answer, _said("system", "lateprobe"), second)
        pair = self.write(user(), self.calling("", call, self.call(calls, short_ids, 1))) if calls != "none" else ""
        keeps = self.write(user(), self.calling("textprobe", call)) if calls != "none" else ""
        return TemplateTraits(
            tools_slot=self.tools_slot,
            system=bool(opening),
            late_system="lateprobe" in late,
            default_system=self.default_system(self.write(user(), answer, second)),
            tool_role=tool_role,
            json_results=json_results,
            calls=calls,
            parallel_calls=pair.count(_CALLED) == 2 * self.write(*called).count(_CALLED) if calls != "none" else False,
            calls_keep_content=_all_in(keeps, "textprobe", _CALLED),
            call_form=_form(call_text) if calls != "none" else "hermes",
            call_parts=_parts(call_text) or TEXT_CALL,
            short_ids=short_ids,
            alternates=alternates,
            user_after_tool=_all_in(after, _RESULT, "nextprobe"),
            assistant_first=_all_in(self.write(*opening, answer, second), _ASSISTANT, "nextprobe"),
            strips=self.strips(bool(opening), called if tool_role else None, result),
            generation_prompt=generation,
            turn_header=header,
            generation_is_prefix=turn.startswith(asking),
            ends=ends,
            written=frozenset(token for token in self.added if any(token in text for text in self.seen)),
        )

    def call_id(self, short: bool, number: int = 0) -> str:
        return f"{number:09d}" if short else f"call_{number}-probe"

    def call(self, form: str, short: bool, number: int = 0) -> dict[str, Any]:
        arguments = json.dumps(_ARGUMENTS, ensure_ascii=False) if form == "string" else _ARGUMENTS
        function = {"name": _CALLED, "arguments": arguments}
        return {"id": self.call_id(short, number), "type": "function", "function": function}

    def calling(self, text: str, *calls: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": text, "tool_calls": list(calls)}

    def call_arguments(self) -> tuple[Literal["dict", "string", "none"], bool]:
        """The form in which arguments come out as the JSON or XML they are, and whether ids must be short."""
        forms: tuple[Literal["string", "dict"], ...] = ("string", "dict")
        for short in (False, True):
            for form in forms:
                text = self.write(user(), self.calling("", self.call(form, short)))
                if _CALLED in text and _holds_arguments(text):
                    return form, short
        return "none", False

    def ends(self, turn: str, called: str) -> tuple[str, ...]:
        """What closes a turn without and with a call: a special token, or else the text behind the answer."""
        tail = _after(turn, _ASSISTANT)
        special = [token for token, is_special in self.added.items() if is_special]
        first = sorted((tail.find(token), -len(token), token) for token in special if token in tail)
        found = [first[0][2] if first else tail.strip()]
        found += [token for token in special if called.rstrip().endswith(token) and token not in found]
        return tuple(end for end in found if end)

    def call_text(self, called: Chat, header: str, ends: tuple[str, ...]) -> str:
        """The text of a turn that is one call, without the turn's header and end."""
        text, asked = self.write(*called), self.write(user())
        body = text[len(asked) :] if text.startswith(asked) else text
        return cut_turn(body.removeprefix(header), ends)

    def tool_role(self, called: Chat, result: dict[str, Any]) -> tuple[bool, bool]:
        before, text = self.write(*called), self.write(*called, result)
        if _RESULT not in text:
            return False, False
        generic = self.write(*called, {**result, "role": "zebraprobe"})
        start = common_length(before, text)
        if generic and generic[start:].replace("zebraprobe", "tool") == text[start:]:
            return False, False
        return True, 'x\\n\\"y' in self.write(*called, {**result, "content": 'x\n"y'})

    def default_system(self, three_turns: str) -> str:
        """What stands before the first user turn beyond BOS and the header that every user turn has."""
        before = self.template.attempt([user()]).partition(_USER)[0].removeprefix(self.bos)
        between = three_turns.partition(_ASSISTANT)[2].partition("nextprobe")[0]
        shared = common_length(before[::-1], between[::-1])
        extra = before[: len(before) - shared]
        return extra.strip() if any(letter.isalnum() for letter in extra) else ""

    def strips(self, system: bool, called: Chat | None, result: dict[str, Any]) -> frozenset[Role]:
        found: set[Role] = set()
        spaced = " \n padprobe \n "
        tests: list[tuple[Role, Chat]] = [
            ("user", [user(spaced)]),
            ("assistant", [user(), _said("assistant", spaced)]),
            ("assistant", [user(), _said("assistant", spaced), user("nextprobe")]),
        ]
        if system:
            tests.append(("system", [_said("system", spaced), user()]))
        if called is not None:
            tests.append(("tool", [*called, {**result, "content": spaced}]))
        for role, messages in tests:
            text = self.write(*messages)
            if spaced not in text and json.dumps(spaced)[1:-1] not in text:
                found.add(role)
        return frozenset(found)


def _all_in(text: str, *words: str) -> bool:
    return all(word in text for word in words)


def _after(text: str, word: str) -> str:
    return text.rpartition(word)[2] if word in text else ""


def _holds_arguments(text: str) -> bool:
    """True where the probe's arguments stand in the text as a JSON object, or as XML parameters of verbatim text."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except ValueError:
            value = None
        if isinstance(value, dict) and _ARGUMENTS in (value, *value.values()):
            return True
        start = text.find("{", start + 1)
    marks = [f"={key}>" for key in _ARGUMENTS]
    return _all_in(text, *marks, _ARGUMENTS["path"]) and all(
        json.dumps(_ARGUMENTS[key]) in text for key in ("lines", "deep")
    )


def _form(call_text: str) -> CallForm:
    if "<function=" in call_text:
        return "xml"
    if "[TOOL_CALLS]" in call_text:
        return "mistral"
    if "<tool_call>" in call_text:
        return "hermes"
    if '"parameters"' in call_text or "<|python_tag|>" in call_text:
        return "llama"
    return "other"


def _parts(call_text: str) -> tuple[str, str, str] | None:
    """The text before the name, between name and arguments, and after, where both stand whole and the rest is fixed."""
    written = json.dumps(_ARGUMENTS, ensure_ascii=False)
    before, _, rest = call_text.partition(_CALLED)
    between, found, behind = rest.partition(written)
    return (before, between, behind) if found and "-probe" not in call_text and "000000" not in call_text else None
