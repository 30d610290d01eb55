"""Calls are read back from every form a template writes, and a call cut short is never taken for a complete one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from chat_templates import TEMPLATES, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from leadline.sessions.actions import Action, normalise_arguments, parse_actions
from leadline.sessions.probing import probe
from leadline.sessions.render import Renderer
from leadline.sessions.schema import Message, Segment, Session, ToolCall
from leadline.sessions.templates import CallForm, TemplateTraits


def traits(form: CallForm = "hermes") -> TemplateTraits:
    return dataclasses.replace(probe(tokenizer("generic")), call_form=form)


def done(name: str, arguments: Any) -> Action:
    return Action(name, json.dumps(arguments, sort_keys=True, separators=(",", ":")), True)


def turn(family: str, content: str, *arguments: str) -> str:
    calls = tuple(ToolCall(id=f"call_{n}", name=f"tool_{n}", arguments=text) for n, text in enumerate(arguments))
    messages = (Message(role="user", content="hi"), Message(role="assistant", content=content, tool_calls=calls))
    recording = Session(
        id="s", format="t", path="p", source="t", view="full", segments=(Segment(messages=messages),), tools=()
    )
    return Renderer(tokenizer(family)).render(recording).points[0].recorded_text


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("content", ["", "Let me see {this}.\n"])
def test_what_a_template_writes_is_read_back(family: str, content: str) -> None:
    first = {"command": "sed -n '1,5p' \"a b\"\n<x>", "path": "/repo"}
    second = {"text": "é ] } </tool_cal"}
    text = turn(family, content, json.dumps(first), json.dumps(second))
    assert parse_actions(text, probe(tokenizer(family))) == (done0(first), done1(second))


def done0(arguments: dict[str, Any]) -> Action:
    return Action("tool_0", normalise_arguments(arguments), True)


def done1(arguments: dict[str, Any]) -> Action:
    return Action("tool_1", normalise_arguments(arguments), True)


CASES: dict[str, tuple[CallForm, str, tuple[Action, ...]]] = {
    "hermes": (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"b": 1, "a": 2}}\n</tool_call>',
        (done("f", {"a": 2, "b": 1}),),
    ),
    "hermes double quoted": ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', (done("f", {"a": 1}),)),
    "hermes open": ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "x', (Action("f", None, False),)),
    "hermes unreadable": (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {a}}\n</tool_call>',
        (Action("f", None, False),),
    ),
    "hermes nameless": ("hermes", '<tool_call>\n{"na', ()),
    "hermes in an argument": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "<tool_call>{\\"name\\": \\"g\\"}"}}</tool_call>',
        (done("f", {"a": '<tool_call>{"name": "g"}'}),),
    ),
    "hermes no arguments": ("hermes", '<tool_call>{"name": "f"}</tool_call>', (done("f", {}),)),
    "not a call": ("hermes", '<tool_call>[1, 2]</tool_call> {"name": "f", "arguments": {}}', ()),
    "mistral list": (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "0"}, {"name": "g", "arguments": {}}]',
        (done("f", {"a": 1}), done("g", {})),
    ),
    "mistral open": (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "argu',
        (done("f", {}), Action("g", None, False)),
    ),
    "mistral named": (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"b',
        (done("f", {"a": 1}), Action("g", None, False)),
    ),
    "mistral with id": ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123456[ARGS]{"a": 1}', (done("f", {"a": 1}),)),
    "llama": ("llama", '{"name": "f", "parameters": {"a": 1}}', (done("f", {"a": 1}),)),
    "llama tagged": (
        "llama",
        '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        (done("f", {}), done("g", {})),
    ),
    "llama open": ("llama", 'Sure.\n{"name": "f", "parameters": {"a', (Action("f", None, False),)),
    "llama in prose": ("llama", 'as in {"name": "f"} here', ()),
    "xml": (
        "xml",
        "<function=f>\n<parameter=a>\n x \n</parameter>\n<parameter=b>1</parameter>\n</function>",
        (done("f", {"a": " x ", "b": "1"}),),
    ),
    "xml open": ("xml", "<function=f>\n<parameter=a>1</parameter>", (Action("f", None, False),)),
    "xml without parameters": ("xml", "<tool_call><function=f></function></tool_call>", (done("f", {}),)),
    "xml in a hermes template": (
        "hermes",
        "<function=f><parameter=a>1</parameter></function>",
        (done("f", {"a": "1"}),),
    ),
    "other falls back": ("other", '<tool_call>{"name": "f"}</tool_call>', (done("f", {}),)),
    "nested function": (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}',
        (done("f", {}),),
    ),
    "nothing": ("mistral", "plain words", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_forms(case: str) -> None:
    form, text, expected = CASES[case]
    assert parse_actions(text, traits(form)) == expected


@pytest.mark.parametrize("family", TEMPLATES)
def test_every_cut_of_a_call_is_incomplete_until_its_arguments_close(family: str) -> None:
    arguments = {"command": "ls -la /repo"}
    text = turn(family, "", json.dumps(arguments))
    known = probe(tokenizer(family))
    states = [parse_actions(text[:end], known) for end in range(len(text) + 1)]
    finished = [number for number, found in enumerate(states) if found and found[0].complete]
    assert finished == list(range(finished[0], len(text) + 1))
    assert finished[0] > text.index("/repo") + len("/repo")
    assert all(states[number] == (done0(arguments),) for number in finished)
    assert all(action.arguments is None for found in states[: finished[0]] for action in found)


@pytest.mark.parametrize("form", ["hermes", "mistral", "llama", "xml", "other"])
def test_a_call_without_its_marks_is_a_call(form: CallForm) -> None:
    """Models never trained on their template's marks write another special token, or nothing, in their place."""
    call = '{"name": "run", "arguments": {"command": "ls"}}'
    for text in (f"Let me look:\n<|im_start|>\n{call}\n<|im_start|>", call, f"Look.\n\n  {call}\nand so on"):
        assert parse_actions(text, traits(form)) == (done("run", {"command": "ls"}),)
    as_text = '{"name": "run", "arguments": "{\\"command\\": \\"ls\\"}"}'
    assert parse_actions(as_text, traits(form)) == (done("run", {"command": "ls"}),)
    twice = parse_actions(f"{call}\n{call}", traits(form))
    assert twice == (done("run", {"command": "ls"}),) * 2
    assert parse_actions(f"Let me look:\n{call[:-3]}", traits(form)) == (Action("run", None, False),)


def test_an_object_that_only_has_a_name_is_no_call() -> None:
    schema = '{"name": "run", "parameters": {"type": "object", "properties": {}}}'
    inline = 'in a line {"name": "f", "arguments": {}}'
    for text in ('{"name": "leadline", "version": "1"}', inline, '{"name": "f"}', schema, "\n" * 100_000):
        assert parse_actions(text, traits("hermes")) == ()
    marked = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n{"name": "g", "arguments": {}}'
    assert parse_actions(marked, traits("hermes")) == (done("f", {}),)  # marks, where there are any, decide


def test_arguments_are_normalised() -> None:
    assert normalise_arguments('{"b": [1,  2], "a": "é"}') == '{"a":"é","b":[1,2]}'
    assert normalise_arguments({"b": 1, "a": 2}) == normalise_arguments('{"a":2,"b":1}')
    assert normalise_arguments("{broken") is None
    assert normalise_arguments("[" * 200_000) is None


@given(
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "{",
                "}",
                '"name"',
                ": ",
                '"f"',
                "[TOOL_CALLS]",
                "[",
                "<function=f>",
                "</function>",
                "<parameter=a>",
                ",",
                "\n",
                "[ARGS]",
            ]
        )
    ).map("".join)
)
def test_parsing_never_raises(text: str) -> None:
    for form in ("hermes", "mistral", "llama", "xml", "other"):
        for action in parse_actions(text, traits(form)):
            assert action.complete == (action.arguments is not None)
