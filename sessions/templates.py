"""What a chat template does with messages, measured by rendering small probes and reading the text it writes.

Nothing here looks at a model's name. A template that refuses a conversation, drops a message or mangles arguments
says so only in its output, so every trait is a question put to the template itself (SPEC section 5; `adapt` uses the
answers). A role counts as *known* only if the template treats it unlike a made-up one: a template that writes
whatever role name it is given was not made for tool results. The date a template may print is pinned, so that a
prompt is the same every day.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jinja2

from leadline.errors import UsageError, explain
from leadline.sessions.schema import Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CallForm = Literal["hermes", "mistral", "llama", "xml", "other"]
Chat = list[dict[str, Any]]

TEXT_CALL = ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")

_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


@dataclass(frozen=True)
class TemplateTraits:
    """What one chat template knows and demands (see `probe`).

    tools_slot:           it writes tool schemas.
    system / late_system: it writes a system message at the front / anywhere else.
    default_system:       text it puts before the first user turn when no system message is given ("" where it adds
                          none).
    tool_role:            it has a form of its own for tool results; json_results: it JSON-quotes their text.
    calls:                how it wants a call's arguments ("string" where both work: the recorded text survives);
                          "none" = no form.
    parallel_calls:       it writes several calls of one turn; calls_keep_content: and the turn's text beside them.
    call_form, call_parts: the form a call takes in its text, and the text around name and arguments where they are
                           contiguous.
    short_ids:            it refuses call ids that are not 9 letters or digits.
    alternates:           user and assistant must take turns; user_after_tool: a user turn may follow a tool result;
                          assistant_first: a conversation may open with an assistant turn.
    strips:               roles whose content loses leading or trailing whitespace.
    generation_prompt:    what asks for the next turn; turn_header: what of it a recorded turn begins with;
                          generation_is_prefix: all of it.
    ends:                 what ends an assistant turn, with and without a call: the end-of-turn token's text where it
                          is a token.
    written:              added tokens the template itself writes.
    """

    tools_slot: bool
    system: bool
    late_system: bool
    default_system: str
    tool_role: bool
    json_results: bool
    calls: Literal["dict", "string", "none"]
    parallel_calls: bool
    calls_keep_content: bool
    call_form: CallForm
    call_parts: tuple[str, str, str]
    short_ids: bool
    alternates: bool
    user_after_tool: bool
    assistant_first: bool
    strips: frozenset[Role]
    generation_prompt: str
    turn_header: str
    generation_is_prefix: bool
    ends: tuple[str, ...]
    written: frozenset[str]


class ChatTemplate:
    """A tokenizer's chat template as a function from messages to text, refusing with one exception type."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any] | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__
            raise UsageError(
                explain(
                    "The tokenizer has no chat template, so sessions cannot be rendered.",
                    file=name,
                    field="chat_template",
                    expected="an instruction-tuned model's tokenizer",
                    do="use the instruct variant of the model, or add a chat_template to its tokenizer_config.json",
                )
            )
        self._tokenizer = tokenizer
        self._options = {"strftime_now": _pinned_date, **(options or {})}

    def render(self, messages: Chat, tools: Sequence[dict[str, Any]] | None = None, *, generate: bool = False) -> str:
        """The text of a conversation; `generate` appends the request for the next turn. UsageError if refused."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=generate,
                **self._options,
            )
        except _REFUSALS as error:
            raise UsageError(f"the chat template refuses the conversation: {type(error).__name__}: {error}") from error
        return str(text)

    def attempt(self, messages: Chat, tools: Sequence[dict[str, Any]] | None = None, *, generate: bool = False) -> str:
        """As `render`, but "" where the template refuses: a refusal holds no probe word."""
        try:
            return self.render(messages, tools, generate=generate)
        except UsageError:
            return ""


def _pinned_date(pattern: str) -> str:
    return datetime.datetime(2024, 7, 26, 12, 0, 0).strftime(pattern)


def common_length(left: str, right: str) -> int:
    """Length of the longest common prefix of two texts, by bisection on slices (they run to megabytes)."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def cut_turn(text: str, ends: tuple[str, ...]) -> str:
    """A rendered assistant turn without its end (one of `ends`) and the whitespace behind that; whole without one."""
    body = text.rstrip()
    for end in sorted(ends, key=len, reverse=True):
        if end and body.endswith(end):
            return body[: -len(end)]
    return text
