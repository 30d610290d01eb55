"""Small chat templates and tokenizers shaped like the families the harness meets.

Each template has one family's habits (where it puts tools, how it wants arguments, what it
refuses), none of its wording.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

GENERIC = """{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
Be brief<|im_end|>
{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# ChatML with a tools slot; calls want a dict, because it goes through tojson; results are wrapped into user turns.
HERMES = """{%- if tools %}
{{- '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}Be brief{% endif %}
{{- '\n# Functions\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
{{- 'Call them in <tool_call></tool_call>.<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>system\nBe brief<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant' }}{% if m.content %}{{ '\n' + m.content }}{% endif %}
{%- for call in m.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Calls as XML parameters: iterates over the arguments, so a string raises.
XML = HERMES.replace(
    """{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}""",
    """{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\n' }}{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}""",
)

# One call a turn, whose text is dropped; results are JSON-quoted under another role; contents trimmed; a date printed.
LLAMA = """{{- bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + strftime_now('%d %b %Y') + '\n\n' + system }}
{%- if tools %}{% for tool in tools %}{{ '\n' }}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}{{- '<|eot_id|>' }}
{%- for m in messages %}
{%- if m.role == 'tool' or m.role == 'ipython' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{ m.content | tojson }}{{ '<|eot_id|>' }}
{%- elif 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# Turns alternate (calls and results apart), arguments are strings, ids have nine letters, a late system is refused.
MISTRAL = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}
{%- set ns = namespace(turn=0) %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.first %}{{ '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' }}{% if loop.first and system is defined %}{{ system + '\n\n' }}{% endif %}{{ m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' and m.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{ ', ' }}{% endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- else %}{{ raise_exception('unknown role') }}
{%- endif %}
{%- endfor %}"""

# No system role, no tools, no tool role, strict alternation, contents trimmed.
GEMMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}{% endif %}
{{- '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# Opens every requested turn with a thought, keeps thoughts out of recorded turns, trims what stands before the answer.
THINKING = GENERIC.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}")

TEMPLATES = {
    "generic": GENERIC,
    "hermes": HERMES,
    "xml": XML,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "thinking": THINKING,
}

_CORPUS = [
    "def render(path): return open(path).read()  # the file\n\n    if not path:\n        raise ValueError('no path')\n",
    'the tool call {"name": "bash", "arguments": {"command": "ls -la /repo"}} printed 12 lines and 345 bytes of text\n',
    "<|im_start|>user\nplease look at the failing test<|im_end|> <s>[INST] and fix it [/INST]</s> <function=run>\n",
]
_SPECIAL = {
    "llama": ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"],
    "mistral": ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"],
    "gemma": ["<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"],
}
_CHATML = ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<filename>"]
_WORDS = {"hermes": ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"], "thinking": ["<think>"]}


@cache
def tokenizer(family: str) -> Any:
    """A byte-level tokenizer with the family's special tokens and template; llama and gemma add a BOS by themselves."""
    special = _SPECIAL.get(family, _CHATML)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False, special_tokens=special),
    )
    raw.add_tokens([AddedToken(word, special=False, normalized=False) for word in _WORDS.get(family, [])])
    if family in ("llama", "gemma"):
        _add_bos(raw, special[0])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token=special[0],
        eos_token=special[1],
        chat_template=TEMPLATES[family],
        clean_up_tokenization_spaces=False,
    )


@cache
def spaced_tokenizer(template: str = "generic") -> Any:
    """A sentencepiece-like tokenizer: a space before the first word, and a BOS the generic template does not write."""
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", *_CHATML]
    letters = sorted({chr(code) for code in range(32, 127)} | {"\n", "\t", "▁"})
    raw.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False, special_tokens=special),
    )
    _add_bos(raw, "<s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        chat_template=TEMPLATES[template],
        clean_up_tokenization_spaces=False,
    )


def _add_bos(raw: Tokenizer, bos: str) -> None:
    raw.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, raw.token_to_id(bos))]
    )
