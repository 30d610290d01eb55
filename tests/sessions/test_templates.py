"""Traits are what the template does, not what it is called; adapted messages lose nothing on the way."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from chat_templates import GENERIC, HERMES, LLAMA, TEMPLATES, tokenizer

from leadline.errors import UsageError
from leadline.sessions.adapt import adapt, usable_tools
from leadline.sessions.probing import probe
from leadline.sessions.schema import Message, ToolCall
from leadline.sessions.templates import ChatTemplate, TemplateTraits, cut_turn

SCHEMA: dict[str, Any] = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
SPACED = '{"command":"ls  -la", "n": 1}'


def call(arguments: str = SPACED, name: str = "bash", identity: str = "toolu_01") -> ToolCall:
    return ToolCall(id=identity, name=name, arguments=arguments)


def said(role: Any, content: str = "", *calls: ToolCall, **more: Any) -> Message:
    return Message(role=role, content=content, tool_calls=calls, **more)


def rendered(family: str, *messages: Message, tools: Any = None) -> str:
    return ChatTemplate(tokenizer(family)).render(adapt(messages, probe(tokenizer(family))).messages, tools)


EXPECTED: dict[str, dict[str, Any]] = {
    "generic": {"tools_slot": False, "tool_role": False, "calls": "none", "alternates": False, "system": True},
    "hermes": {"tools_slot": True, "tool_role": True, "calls": "dict", "parallel_calls": True, "call_form": "hermes"},
    "xml": {"calls": "dict", "call_form": "xml", "calls_keep_content": True, "strips": frozenset()},
    "llama": {"calls": "dict", "call_form": "llama", "parallel_calls": False, "calls_keep_content": False},
    "mistral": {"calls": "string", "call_form": "mistral", "short_ids": True, "alternates": True, "late_system": False},
    "gemma": {"system": False, "tool_role": False, "alternates": True, "assistant_first": False, "calls": "none"},
    "thinking": {"generation_is_prefix": False, "turn_header": "<|im_start|>assistant\n"},
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_traits_are_measured(family: str) -> None:
    traits = probe(tokenizer(family))
    assert {name: getattr(traits, name) for name in EXPECTED[family]} == EXPECTED[family]


def test_more_traits() -> None:
    llama, mistral, gemma = (probe(tokenizer(family)) for family in ("llama", "mistral", "gemma"))
    assert llama.json_results
    assert llama.strips == {"system", "user", "assistant"}
    assert llama.ends == ("<|eot_id|>",)
    assert llama.call_parts == ('{"name": "', '", "parameters": ', "}")
    assert mistral.generation_prompt == ""
    assert not mistral.user_after_tool
    assert mistral.ends == ("</s>",)
    assert gemma.strips == {"user", "assistant"}
    assert gemma.default_system == ""
    assert "Be brief" in probe(tokenizer("generic")).default_system
    assert "Be brief" in probe(tokenizer("hermes")).default_system


def test_a_template_that_accepts_both_forms_gets_the_recorded_text() -> None:
    both = HERMES.replace(
        "call.function.arguments | tojson",
        "call.function.arguments if call.function.arguments is string else call.function.arguments | tojson",
    )
    assert with_template(both).calls == "string"


def test_templates_that_mangle_both_forms_have_no_form_for_calls() -> None:
    quoted = HERMES.replace("call.function.arguments | tojson", "(call.function.arguments | string) | tojson")
    assert with_template(quoted).calls == "none"


def test_two_templates_are_probed_apart() -> None:
    keeper = copy_of("hermes", {"default": GENERIC, "tool_use": HERMES})
    assert probe(keeper, with_tools=True).calls == "dict"
    assert probe(keeper, with_tools=False).calls == "none"


def test_end_of_turn_after_a_call_is_known() -> None:
    other = LLAMA.replace(
        "{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}", "{{- call.arguments | tojson }}{{ '}<|eom_id|>' }}"
    )
    traits = with_template(other, "llama")
    assert traits.ends == ("<|eot_id|>", "<|eom_id|>")
    assert traits.call_parts == ('{"name": "', '", "parameters": ', "}")


def with_template(template: str, family: str = "hermes") -> TemplateTraits:
    return probe(copy_of(family, template))


def copy_of(family: str, template: Any) -> Any:
    twin = copy.copy(tokenizer(family))
    twin.chat_template = template
    return twin


def test_the_printed_date_does_not_move() -> None:
    assert "Today: 26 Jul 2024" in rendered("llama", said("user", "hi"))


def test_options_reach_the_template() -> None:
    twin = copy_of("generic", GENERIC + "{{ mood | default('') }}")
    assert ChatTemplate(twin, {"mood": "calm"}).render([{"role": "user", "content": "hi"}]).endswith("calm")


@pytest.mark.parametrize(
    "template", [None, "", "{{ raise_exception('never') }}", "{{ messages[9].content.x }}", "{% broken"]
)
def test_a_missing_or_broken_template_is_a_usage_error(template: Any) -> None:
    with pytest.raises(UsageError):
        probe(copy_of("generic", template))


def test_dict_wanting_templates_write_json_not_a_quoted_string() -> None:
    text = rendered("hermes", said("user", "hi"), said("assistant", "", call()))
    assert '"arguments": {"command": "ls  -la", "n": 1}}' in text
    assert "\\" not in text


def test_string_wanting_templates_keep_the_recorded_spelling() -> None:
    text = rendered("mistral", said("user", "hi"), said("assistant", "", call()))
    assert f'"arguments": {SPACED}' in text


def test_xml_templates_write_parameters() -> None:
    text = rendered("xml", said("user", "hi"), said("assistant", "Look.", call()))
    assert "Look.\n<tool_call>\n<function=bash>\n<parameter=command>\nls  -la\n</parameter>" in text
    assert "<parameter=n>\n1\n</parameter>" in text


def test_without_a_form_calls_become_text_verbatim_one_after_another() -> None:
    turn = said("assistant", "Both.", call(), call("not json", 'odd"name'))
    [_, message] = adapt([said("user", "hi"), turn], probe(tokenizer("generic"))).messages
    first = '<tool_call>\n{"name": "bash", "arguments": ' + SPACED + "}\n</tool_call>"
    second = '<tool_call>\n{"name": "odd\\"name", "arguments": not json}\n</tool_call>'
    assert message == {"role": "assistant", "content": f"Both.\n{first}\n{second}"}


@pytest.mark.parametrize(
    "arguments", ["[1]", '"ls"', "{broken", "null", '{"a": "\\ud800"}', '{"a": NaN}', "[" * 100_000]
)
def test_arguments_that_are_no_object_are_kept_and_noted(arguments: str) -> None:
    adapted = adapt([said("user", "hi"), said("assistant", "", call(arguments))], probe(tokenizer("hermes")))
    assert adapted.messages[1]["tool_calls"][0]["function"]["arguments"] == {"_raw": arguments}
    assert [note.where for note in adapted.notes if "_raw" in note.reason] == ["message 1"]


@pytest.mark.parametrize(("family", "wanted"), [("hermes", {}), ("mistral", "{}")])
def test_blank_arguments_become_an_empty_object(family: str, wanted: Any) -> None:
    adapted = adapt([said("user", "hi"), said("assistant", "", call(" "))], probe(tokenizer(family)))
    assert adapted.messages[1]["tool_calls"][0]["function"]["arguments"] == wanted
    assert any("blank arguments" in note.reason for note in adapted.notes)


def test_text_beside_a_call_survives_a_template_that_would_drop_it() -> None:
    text = rendered("llama", said("user", "hi"), said("assistant", "Let me look.", call()), said("tool", "ok"))
    assert 'Let me look.\n{"name": "bash", "parameters": ' + SPACED + "}<|eot_id|>" in text


def test_parallel_calls_survive_a_template_that_takes_one() -> None:
    text = rendered("llama", said("user", "hi"), said("assistant", "", call(), call('{"command": "pwd"}')))
    assert SPACED in text
    assert '{"name": "bash", "parameters": {"command": "pwd"}}' in text


def test_short_ids_match_between_call_and_result() -> None:
    messages = [said("user", "hi")]
    for number in range(3):
        messages += [said("assistant", "", call(identity="same")), said("tool", f"r{number}", tool_call_id="same")]
    adapted = adapt(messages, probe(tokenizer("mistral"))).messages
    ids = [message["tool_calls"][0]["id"] for message in adapted if "tool_calls" in message]
    assert ids == ["000000000", "000000001", "000000002"]
    assert [message["tool_call_id"] for message in adapted if message["role"] == "tool"] == ids


def test_a_template_without_system_and_tool_roles_gets_alternating_user_turns() -> None:
    messages = [
        said("system", "S"),
        said("user", "U"),
        said("assistant", "A", call()),
        said("tool", "R1"),
        said("tool", "R2"),
    ]
    adapted = adapt([*messages, said("user", "more")], probe(tokenizer("gemma")))
    assert [message["role"] for message in adapted.messages] == ["user", "assistant", "user"]
    assert adapted.messages[0]["content"] == "S\n\nU"
    assert adapted.messages[2]["content"] == "R1\n\nR2\n\nmore"
    assert {note.kind for note in adapted.notes} == {"repaired"}


def test_alternation_with_calls_apart() -> None:
    turns = [said("system", "S"), said("user", "U"), said("assistant", "text", call()), said("tool", "R1")]
    turns += [said("assistant", "plain"), said("assistant", "", call()), said("tool", "R2"), said("user", "V")]
    turns += [
        said("assistant", "a"),
        said("assistant", "b"),
        said("system", "late"),
        said("user", "W"),
        said("assistant", "end"),
    ]
    text = rendered("mistral", *turns)
    wanted = ["S", "U", "text", "<tool_call>", "R1", "plain", "[TOOL_CALLS]", "R2", "V", "a\n\nb", "late\n\nW", "end"]
    places = [text.index(word) for word in wanted]
    assert places == sorted(places)


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize(
    "roles",
    ["", "a", "sa", "t", "st", "s", "ss", "us", "aat", "uat", "satau", "uuaa", "utu", "ssuaa"],
    ids=lambda roles: roles or "none",
)
def test_any_order_of_roles_renders(family: str, roles: str) -> None:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [said(names[role], f"word{number}") for number, role in enumerate(roles)]
    text = rendered(family, *messages)
    assert all(f"word{number}" in text for number in range(len(roles)))


def test_half_a_surrogate_pair_is_replaced_and_noted() -> None:
    adapted = adapt([said("user", "a\ud800b\U0001f600")], probe(tokenizer("generic")))
    assert adapted.messages[0]["content"] == "a\ufffdb\U0001f600"
    assert [note.kind for note in adapted.notes] == ["repaired"]


def test_tools_are_rendered_only_where_they_can_be() -> None:
    hermes, generic = probe(tokenizer("hermes")), probe(tokenizer("generic"))
    bare = {"name": "bash", "parameters": {"type": "object"}}
    assert usable_tools([SCHEMA], True, hermes) == ([SCHEMA], None)
    assert usable_tools([bare], True, hermes) == ([{"type": "function", "function": bare}], None)
    assert usable_tools([], True, generic) == ([], None)
    for tools, complete, traits in (
        ([SCHEMA], True, generic),
        ([SCHEMA], False, hermes),
        ([SCHEMA, {"title": "x"}], True, hermes),
        ([{"function": "text"}], True, hermes),
    ):
        schemas, note = usable_tools(tools, complete, traits)
        assert schemas == []
        assert note is not None


def test_adapting_a_prefix_gives_a_prefix() -> None:
    messages = [said("system", "S"), said("user", "U")]
    for number in range(4):
        messages += [
            said("assistant", "t" * (number % 2), call(identity=f"i{number}")),
            said("tool", "R", tool_call_id=f"i{number}"),
        ]
    for family in ("generic", "hermes", "llama"):
        traits = probe(tokenizer(family))
        whole = adapt(messages, traits).messages
        for cut in range(2, len(messages), 2):
            assert json.dumps(whole).startswith(json.dumps(adapt(messages[:cut], traits).messages)[:-1])


def test_cut_turn_takes_one_end() -> None:
    assert cut_turn("text \n<end>\n", ("<end>",)) == "text \n"
    assert cut_turn("a<end><end>\n", ("<end>",)) == "a<end>"
    assert cut_turn("open \n", ("<end>", "")) == "open \n"
