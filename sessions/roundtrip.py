"""Did the chat template write everything it was given? Checks a rendered conversation against its messages.

A template can drop a turn's text, quote a string twice or trim a result without any error (SPEC section 5). Here
every message's content and every call's name and arguments must be found in the text, in order, and the token ids
must decode to the text. What is not found becomes a note: the session still renders, the report says what the model
did not see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from leadline.sessions.schema import Note
from leadline.sessions.templates import Chat, TemplateTraits, common_length


def check_round_trip(
    text: str, messages: Chat, traits: TemplateTraits, *, decoded: str | None = None
) -> tuple[Note, ...]:
    """Notes on what of `messages` (as adapted) is not in the rendered `text`, in order.

    A role the template trims is compared trimmed, and a tool result it JSON-quotes quoted; a system message may stand
    anywhere, because some templates write it beside the last user turn. decoded: the text of the prompt's ids;
    differing from `text` is a note.
    """
    notes: list[Note] = []
    at = 0
    for index, message in enumerate(messages):
        for what, variants, anywhere in _wanted(message, traits):
            found = _earliest(text, variants, 0 if anywhere else at)
            if found is None:
                notes.append(
                    Note(
                        kind="missing",
                        where=f"rendered message {index}",
                        reason=f"{what} is not in the rendered text as recorded",
                    )
                )
            elif not anywhere:
                at = found
    if decoded is not None and decoded != text:
        spot = common_length(text, decoded)
        change = f"{text[spot : spot + 20]!r} became {decoded[spot : spot + 20]!r}"
        reason = f"the token ids decode to another text, from character {spot}: {change}"
        notes.append(Note(kind="info", where="tokens", reason=reason))
    return tuple(notes)


def _wanted(message: Mapping[str, Any], traits: TemplateTraits) -> Iterator[tuple[str, list[str], bool]]:
    """What must stand in the text for one message: (description, accepted spellings, whether it may stand anywhere)."""
    role, content = message["role"], message["content"]
    spellings = [content]
    if role in traits.strips:
        spellings += [content.strip(), content.lstrip(), content.rstrip()]
    if role == "tool" and traits.json_results:
        spellings = [json.dumps(spelling, ensure_ascii=False)[1:-1] for spelling in spellings]
    if content.strip():
        yield f"the {role} text", spellings, role == "system"
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield f"the name of call {name}", [name, json.dumps(name, ensure_ascii=False)[1:-1]], False
        if isinstance(arguments, str):
            yield f"the arguments of call {name}", [arguments], False
        elif traits.call_form == "xml":
            for key, value in arguments.items():
                written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield f"parameter {key} of call {name}", [f"{key}>{space}{written}" for space in ("\n", "")], False
        else:
            yield f"the arguments of call {name}", _json_spellings(arguments), False


def _json_spellings(value: Any) -> list[str]:
    plain = [json.dumps(value, ensure_ascii=ascii_only) for ascii_only in (False, True)]
    return [
        *plain,
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, ensure_ascii=False, sort_keys=True),
    ]


def _earliest(text: str, variants: list[str], start: int) -> int | None:
    """The end of the variant that ends first from `start`: greedy, so texts that stand in order are found."""
    found = [(text.find(variant, start), len(variant)) for variant in variants]
    return min((at + length for at, length in found if at >= 0), default=None)
