"""The round-trip check: what a chat template lost or mangled is told."""

from __future__ import annotations

import json
from typing import Any

from chat_templates import tokenizer

from leadline.sessions.adapt import adapt
from leadline.sessions.render import Renderer
from leadline.sessions.roundtrip import check_round_trip
from leadline.sessions.schema import Message, ToolCall
from leadline.sessions.templates import ChatTemplate


def said(role: Any, content: str = "", *calls: ToolCall) -> Message:
    return Message(role=role, content=content, tool_calls=calls)


def call(arguments: str) -> ToolCall:
    return ToolCall(id="toolu_01", name="bash", arguments=arguments)


def test_round_trip_tells_what_was_lost() -> None:
    chat = tokenizer("generic")
    traits = Renderer(chat).traits
    messages = adapt(
        [said("system", "S"), said("user", "first"), said("user", "second"), said("assistant", "third")], traits
    ).messages
    text = ChatTemplate(chat).render(messages)
    assert check_round_trip(text, messages, traits, decoded=text) == ()
    for broken in (
        text.replace("second", "2"),
        text.replace("first", "x").replace("second", "first").replace("x", "second"),
    ):
        assert [note.kind for note in check_round_trip(broken, messages, traits)] == ["missing"]
    [note] = check_round_trip(text, messages, traits, decoded=text.replace("third", "thixd"))
    assert f"character {text.index('third') + 3}" in note.reason


def test_round_trip_sees_arguments_quoted_twice() -> None:
    chat = tokenizer("hermes")
    traits = Renderer(chat).traits
    messages = adapt([said("user", "hi"), said("assistant", "", call('{"a": "b"}'))], traits).messages
    good = ChatTemplate(chat).render(messages)
    assert check_round_trip(good, messages, traits) == ()
    bad = good.replace('{"a": "b"}', json.dumps('{"a": "b"}'))
    assert "arguments of call bash" in check_round_trip(bad, messages, traits)[0].reason
