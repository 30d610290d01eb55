"""Write a small random model as a `.gguf` file, with the conventions such files have: other names, interleaved query
and key rows for the llama architecture, 1 added to Gemma's norm weights, and a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def stored_name(name: str, architecture: str) -> str:
    """A tensor's name in the file."""
    base, _, kind = name.rpartition(".")
    names = _NAMES | (_GEMMA if architecture == "gemma3" else {})
    if base.startswith("model.layers."):
        _, _, index, part = base.split(".", 3)
        return f"blk.{index}.{names[part]}.{kind}"
    return f"{names[base]}.{kind}"


def interleave(weight: Any, heads: int) -> Any:
    """Query or key rows in the order of files of the llama architecture: i and i + d/2 become 2i and 2i + 1."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def stored_tensor(name: str, weight: Any, config: Any, architecture: str) -> Any:
    """A tensor as the file holds it."""
    if architecture == "llama" and ".q_proj" in name:
        return interleave(weight, config.num_attention_heads)
    if architecture == "llama" and ".k_proj" in name:
        return interleave(weight, config.num_key_value_heads)
    return weight + 1 if architecture == "gemma3" and name.endswith("norm.weight") else weight


def write(
    path: Path,
    network: Any,
    architecture: str,
    *,
    fields: dict[str, Any] | None = None,
    drop: str = "",
    add: Any = None,
) -> Path:
    """Write `network`; `fields` change or add metadata (None removes), `drop` leaves a tensor out, `add` adds some."""
    config = network.config
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    if hasattr(config, "head_dim"):
        sizes |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    base = config.rope_parameters
    if architecture == "gemma3":
        sizes["attention.sliding_window"] = config.sliding_window
        sizes["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
        sizes["rope.freq_base_swa"] = float(base["sliding_attention"]["rope_theta"])
        base = base["full_attention"]
    sizes["rope.freq_base"] = float(base["rope_theta"])
    metadata = {f"{architecture}.{name}": value for name, value in sizes.items()} | vocabulary(config.vocab_size)
    metadata |= fields or {}
    for name, value in metadata.items():
        _add(writer, name, value)
    for name, weight in network.state_dict().items():
        stored = stored_name(name, architecture)
        tied = name == "lm_head.weight" and config.tie_word_embeddings
        if stored != drop and not tied:
            writer.add_tensor(stored, np.ascontiguousarray(stored_tensor(name, weight.numpy(), config, architecture)))
    for name, weight in (add or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary(size: int) -> dict[str, Any]:
    """A sentencepiece vocabulary: <unk>, an end token, a user-defined token, two merged pieces, then letters."""
    special = ["<unk>", "<end>", "<tool>", "▁hi", "hi"]
    letters = ["▁", *(chr(code) for code in range(33, 127))]
    tokens = [*special, *letters, *(f"<unused{n}>" for n in range(size))][:size]
    types = [2, 3, 4, 1, 1, *[1] * (size - 5)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * 3 + [-2.0, -1.0] + [-1000.0] * (size - 5),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif value is not None:
        writer.add_array(name, value)
