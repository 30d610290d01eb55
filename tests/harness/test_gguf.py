"""GGUF files: a model survives the round trip exactly, and what cannot be read rightly is refused."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
import tiny_models
import torch
from embedded_model import require_embedded
from transformers import AutoModelForCausalLM, AutoTokenizer

from leadline.errors import UsageError
from leadline.gguf_loader import load_network, open_gguf, read_config, unpermute
from leadline.gguf_tokenizer import build_tokenizer

# Files of Mistral models carry the llama architecture.
STORED_AS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}


def logits(network: Any) -> torch.Tensor:
    """Logits of 60 tokens, longer than the sliding window."""
    with torch.no_grad():
        found: torch.Tensor = network(tiny_models.prompt(60)[None]).logits
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_round_trip(kind: str, tied: bool, tmp_path: Path) -> None:
    network = tiny_models.network(kind, tie_word_embeddings=tied)
    path = tiny_gguf.write(tmp_path / "tiny.gguf", network, STORED_AS[kind])
    loaded = load_network(open_gguf(path), dtype=torch.float32)
    assert loaded.config.tie_word_embeddings is tied
    expected = network.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, weight in loaded.state_dict().items():
        # Gemma's norms come back through (w + 1) - 1.
        tolerance = 1e-6 if kind == "gemma3" and name.endswith("norm.weight") else 0.0
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=tolerance)
    torch.testing.assert_close(logits(loaded), logits(network), rtol=1e-4, atol=1e-4)


def test_biases_of_the_llama_architecture_are_brought_back_in_order(tmp_path: Path) -> None:
    network = tiny_models.network("llama", attention_bias=True)
    # Files have no bias for the output projection of this architecture.
    for layer in network.model.layers:
        layer.self_attn.o_proj.bias.data.zero_()
    path = tiny_gguf.write(tmp_path / "tiny.gguf", network, "llama")
    assert torch.equal(logits(load_network(open_gguf(path), dtype=torch.float32)), logits(network))


def test_unpermute_is_the_inverse_of_the_interleaving() -> None:
    weight = np.arange(2 * 8 * 3).reshape(16, 3)
    assert not np.array_equal(tiny_gguf.interleave(weight, 2), weight)
    assert np.array_equal(unpermute(tiny_gguf.interleave(weight, 2), 2), weight)
    assert tiny_gguf.interleave(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 256},
    ],
)
def test_rope_scaling_in_the_file(parameters: dict[str, Any], tmp_path: Path) -> None:
    network = tiny_models.network("qwen2", rope_parameters=parameters)
    fields = {"qwen2.rope.scaling.type": parameters["rope_type"], "qwen2.rope.scaling.factor": parameters["factor"]}
    if "original_max_position_embeddings" in parameters:
        fields["qwen2.rope.scaling.original_context_length"] = 256
    path = tiny_gguf.write(tmp_path / "tiny.gguf", network, "qwen2", fields=fields)
    loaded = load_network(open_gguf(path), dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(network))
    assert loaded.config.max_position_embeddings == 512
    assert not torch.allclose(logits(loaded), logits(tiny_models.network("qwen2")), atol=0.1)


def test_frequency_factors_in_the_file(tmp_path: Path) -> None:
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    network, plain = tiny_models.network("llama", rope_parameters=scaled), tiny_models.network("llama")
    factors = (plain.model.rotary_emb.inv_freq / network.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(8.0)
    path = tiny_gguf.write(tmp_path / "tiny.gguf", plain, "llama", add={"rope_freqs.weight": factors})
    loaded = load_network(open_gguf(path), dtype=torch.float32)
    torch.testing.assert_close(logits(loaded), logits(network), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(plain), logits(network), atol=0.1)
    with pytest.raises(UsageError, match="per-frequency factors"):
        load_network(open_gguf(path), dtype=torch.float32, rope_factor=2.0)


def test_gemma_defaults_where_the_file_is_silent(tmp_path: Path) -> None:
    network = tiny_models.network("gemma3")
    silent = {"attention.sliding_window_pattern": None, "rope.freq_base": None, "rope.freq_base_swa": None}
    path = tiny_gguf.write(
        tmp_path / "tiny.gguf", network, "gemma3", fields={f"gemma3.{name}": value for name, value in silent.items()}
    )
    config = read_config(open_gguf(path))
    assert config.layer_types == ["sliding_attention"] * 4, "five of six layers slide, from the first"
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1_000_000.0
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 10_000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": "blk.2.attn_k.weight"}, "1 missing, the first model.layers.2.self_attn.k_proj.weight"),
        ({"drop": "token_embd.weight"}, "no token_embd.weight"),
        ({"add": {"blk.0.attn_sinks.weight": np.zeros(6, np.float32)}}, "blk.0.attn_sinks.weight"),
        ({"add": {"blk.9.attn_q.weight": np.zeros((96, 48), np.float32)}}, "1 not of this model"),
        ({"fields": {"llama.expert_count": 8}}, "a model without experts"),
        ({"fields": {"split.count": 3}}, "not split"),
        ({"fields": {"llama.rope.scaling.type": "longrope"}}, "none, linear or yarn"),
        ({"fields": {"llama.rope.dimension_count": 8}}, "the head size, 16"),
        ({"fields": {"llama.attention.head_count": [6, 6, 6, 4]}}, "one value for all layers"),
        ({"fields": {"llama.context_length": None}}, "llama.context_length"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_models.network("llama"), "llama", **changes)
    with pytest.raises(UsageError, match=message) as caught:
        load_network(open_gguf(path), dtype=torch.float32)
    assert str(path) in str(caught.value)


def test_other_architectures_and_damaged_files_are_refused(tmp_path: Path) -> None:
    network = tiny_models.network("llama")
    path = tiny_gguf.write(tmp_path / "other.gguf", network, "phi3")
    with pytest.raises(UsageError, match="'phi3'"):
        open_gguf(path)
    whole = tiny_gguf.write(tmp_path / "whole.gguf", network, "llama").read_bytes()
    for size in (0, 3, 30, 1000, len(whole) // 2, len(whole) - 8):
        cut = tmp_path / f"cut-{size}.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="a complete GGUF file"):
            open_gguf(cut)
    text = tmp_path / "text.gguf"
    text.write_text("this is no model\n" * 100)
    with pytest.raises(UsageError, match="a complete GGUF file"):
        open_gguf(text)


def test_tokenizer_of_scored_pieces(tmp_path: Path) -> None:
    network = tiny_models.network("llama")
    tokenizer = build_tokenizer(open_gguf(tiny_gguf.write(tmp_path / "t.gguf", network, "llama")))
    assert tokenizer.convert_ids_to_tokens(tokenizer("oh hi<tool>x<end>").input_ids) == [
        *("o", "h", "▁hi", "<tool>", "x", "<end>")
    ]
    assert tokenizer.decode(tokenizer("oh hi<tool> x").input_ids) == "oh hi<tool> x"
    assert tokenizer.decode(tokenizer("a<end>").input_ids, skip_special_tokens=True) == "a"
    assert (tokenizer.eos_token, tokenizer.unk_token, tokenizer.bos_token) == ("<end>", "<unk>", None)
    fields = {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
    }
    file = open_gguf(tiny_gguf.write(tmp_path / "p.gguf", network, "llama", fields=fields))
    prefixed = build_tokenizer(file)
    assert prefixed.convert_ids_to_tokens(prefixed("hi").input_ids) == ["<end>", "▁hi"]


def test_end_tokens_are_those_named_and_every_control_token_that_ends_a_text(tmp_path: Path) -> None:
    """A file names <end>; a control <|endoftext|> ends a text as well, an ordinary token of such a name does not."""
    network = tiny_models.network("llama", tie_word_embeddings=True)
    known = tiny_gguf.vocabulary(network.config.vocab_size)
    tokens, types = known["tokenizer.ggml.tokens"], known["tokenizer.ggml.token_type"]
    tokens[-3:], types[-3:] = ["<|endoftext|>", "<|eot_id|>", "<|other|>"], [3, 1, 3]
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    path = tiny_gguf.write(tmp_path / "tiny.gguf", network, "llama", fields=fields)
    assert read_config(open_gguf(path)).eos_token_id == [1, len(tokens) - 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "unheard-of"}, "'unheard-of'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, "ggml.merges"),
        ({"tokenizer.ggml.scores": None}, "ggml.scores"),
        ({"tokenizer.ggml.scores": [0.0, 1.0]}, "2 entries"),
        ({"tokenizer.ggml.tokens": None}, "ggml.tokens"),
    ],
)
def test_an_unknown_vocabulary_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "t.gguf", tiny_models.network("llama"), "llama", fields=fields)
    with pytest.raises(UsageError, match=message):
        build_tokenizer(open_gguf(path))


def test_the_embedded_models_tokenizer_equals_transformers_own() -> None:
    path = require_embedded()
    ours = build_tokenizer(open_gguf(path))
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = Path(__file__).read_text(encoding="utf-8") + "\n\n  \tnaïve café 東京 🙂 don't 12345 <|im_start|>user\r\n"
    assert ours(text).input_ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(ours(text).input_ids) == text
    turns = [{"role": "user", "content": "hello"}]
    assert ours.apply_chat_template(turns, tokenize=False) == theirs.apply_chat_template(turns, tokenize=False)
    assert (ours.eos_token, ours.bos_token) == ("<|im_end|>", "<|im_start|>")


@pytest.mark.slow
def test_the_embedded_models_tensors_equal_transformers_own() -> None:
    if importlib.util.find_spec("accelerate") is None and not os.environ.get("CI"):
        pytest.skip("transformers' own GGUF loader needs accelerate")
    path = require_embedded()
    ours = load_network(open_gguf(path), dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in ours.state_dict().items())
