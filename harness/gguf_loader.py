"""Load a `.gguf` file of an accepted architecture into the transformers model of the same name.

Only the `gguf` package is needed: tensors are dequantized, renamed and brought back to the conventions of transformers
(query and key rows of the llama architecture are stored interleaved for another RoPE; Gemma's norm weights are stored
with 1 added). Whatever the file holds that is not understood is an error, never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, TokenType, dequantize
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from leadline import rope
from leadline.errors import UsageError, explain

_FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ROPE_FACTORS = "rope_freqs.weight"
_ENDS = {  # what ends a turn or a text, in the vocabularies that have it as a control token
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>",
    "</s>",
}  # fmt: skip


class _Reader(GGUFReader):  # type: ignore[misc]
    """The package's reader over a plain array: slicing a memmap once per vocabulary entry takes three times as long."""

    @property
    def data(self) -> Any:
        return self._plain

    @data.setter
    def data(self, mapped: Any) -> None:
        self._plain = np.asarray(mapped)


@dataclass(frozen=True)
class GgufFile:
    """An open file of an accepted architecture: its metadata by name, and its tensors, still quantized."""

    path: Path
    architecture: str
    reader: Any

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value by its full name, or the default where the file has none."""
        found = self.reader.fields.get(name)
        return default if found is None else found.contents()

    def setting(self, name: str, default: Any = None) -> Any:
        """A value of the model's own section (`llama.` and so on)."""
        return self.field(f"{self.architecture}.{name}", default)

    def need(self, name: str) -> Any:
        """As `setting`, but a file without it is a UsageError."""
        value = self.setting(name)
        if value is None:
            raise _refuse(self.path, f"{self.architecture}.{name}", "nothing", "a value")
        return value


def open_gguf(path: Path) -> GgufFile:
    """Open and check a file. Damaged, split and foreign files are a UsageError that says what was found."""
    try:
        reader = _Reader(path)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError, OSError) as error:
        raise _refuse(path, "header", f"{type(error).__name__}: {error}", "a complete GGUF file") from error
    field = reader.fields.get("general.architecture")
    architecture = field.contents() if field is not None else None
    file = GgufFile(path, str(architecture), reader)
    if architecture not in _FAMILIES:
        raise _refuse(path, "general.architecture", repr(architecture), " or ".join(_FAMILIES))
    if int(file.field("split.count", 1)) > 1:
        raise _refuse(
            path, "split.count", file.field("split.count"), "a file that is not split (llama-gguf-split --merge)"
        )
    if int(file.setting("expert_count", 0)):
        raise _refuse(path, f"{architecture}.expert_count", file.setting("expert_count"), "a model without experts")
    return file


def read_config(file: GgufFile) -> Any:
    """The transformers configuration that the file's metadata describe."""
    names = {tensor.name for tensor in file.reader.tensors}
    heads = file.need("attention.head_count")
    kv_heads = file.setting("attention.head_count_kv", heads)
    for name, value in (("head_count", heads), ("head_count_kv", kv_heads)):
        if isinstance(value, list):
            raise _refuse(file.path, f"attention.{name}", "one value per layer", "one value for all layers")
    hidden = file.need("embedding_length")
    head_dim = file.setting("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if file.setting(name, head_dim) != head_dim:
            raise _refuse(file.path, f"{file.architecture}.{name}", file.setting(name), f"the head size, {head_dim}")
    embedding = next((tensor for tensor in file.reader.tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None:
        raise _refuse(file.path, "tensors", "no token_embd.weight", "the token embedding")
    options = {
        "vocab_size": int(embedding.shape[1]),
        "hidden_size": hidden,
        "intermediate_size": file.need("feed_forward_length"),
        "num_hidden_layers": file.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": file.need("context_length"),
        "rms_norm_eps": file.need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": file.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(file),
        "pad_token_id": file.field("tokenizer.ggml.padding_token_id"),
        "rope_parameters": _rope_parameters(file),
    }
    if file.architecture == "llama":
        options["attention_bias"] = "blk.0.attn_q.bias" in names
    if file.architecture == "gemma3":
        options |= _gemma_options(file, hidden, heads, head_dim)
    config = _FAMILIES[file.architecture][0](**options)
    if config.rope_parameters.get("rope_type") == "yarn":
        scaled = config.rope_parameters
        config.max_position_embeddings = int(scaled["original_max_position_embeddings"] * scaled["factor"])
    return config


def load_network(file: GgufFile, *, dtype: torch.dtype, rope_factor: float | None = None) -> Any:
    """The model with the file's weights in `dtype`, on the CPU, in eval mode. `rope_factor` stretches its positions."""
    config = read_config(file)
    if rope_factor is not None:
        if any(tensor.name == _ROPE_FACTORS for tensor in file.reader.tensors):
            raise _refuse(
                file.path, "rope", "per-frequency factors in the file", "a model whose positions are not scaled yet"
            )
        rope.stretch(config, rope_factor, file.path)
    state, factors = _read_tensors(file, config, dtype)
    network, report = _FAMILIES[file.architecture][1].from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    missing = sorted(report["missing_keys"])
    wrong = missing or sorted(report["unexpected_keys"]) or sorted(map(str, report["mismatched_keys"]))
    if wrong:
        what = "missing" if missing else "not of this model"
        raise _refuse(file.path, "tensors", f"{len(wrong)} {what}, the first {wrong[0]}", "the tensors of its metadata")
    if factors is not None:
        rotary = network.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq / factors.to(rotary.inv_freq)
    return network.eval()


def has_frequency_factors(file: GgufFile) -> bool:
    """Whether the file divides its RoPE frequencies by factors of its own (Llama 3.1 and later)."""
    return any(tensor.name == _ROPE_FACTORS for tensor in file.reader.tensors)


def unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo the interleaving of query or key rows `[heads * d, ...]`: pairs (2i, 2i+1) go back to (i, i + d/2)."""
    paired = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return paired.swapaxes(1, 2).reshape(weight.shape)


def _read_tensors(file: GgufFile, config: Any, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor | None]:
    """All tensors under their transformers names, and the RoPE factors `[d/2]` where the file has them."""

    def read(tensor: Any) -> tuple[str, Tensor]:
        try:
            weight = dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:  # gguf's way of saying that it cannot read a type
            raise _refuse(
                file.path, tensor.name, f"{tensor.tensor_type.name}: {error}", "a known tensor type"
            ) from error
        if tensor.name == _ROPE_FACTORS:
            return tensor.name, torch.from_numpy(np.array(weight, dtype=np.float32))
        name = _rename(file, tensor.name)
        weight = _convention(file.architecture, name, config)(weight)
        # What is not quantized is a view of the reader's memory, which is mapped read-only: that is copied.
        return name, torch.from_numpy(np.require(weight, np.float32, ["C", "W"])).to(dtype)

    with ThreadPoolExecutor(_threads()) as threads:  # dequantizing is most of a load, and numpy's
        state = dict(threads.map(read, file.reader.tensors))
    factors = state.pop(_ROPE_FACTORS, None)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state, factors


def _threads() -> int:
    """As many as this process may use, four at most: past that the interpreter's lock is in the way."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _rename(file: GgufFile, name: str) -> str:
    base, _, kind = name.rpartition(".")
    if base in _TOP and kind == "weight":
        return f"{_TOP[base]}.{kind}"
    names = _GEMMA_LAYER if file.architecture == "gemma3" else _LAYER
    block, _, rest = base.partition(".")
    index, _, part = rest.partition(".")
    if block != "blk" or part not in names or kind not in ("weight", "bias"):
        raise _refuse(file.path, "tensors", repr(name), f"tensors of the {file.architecture} architecture")
    return f"model.layers.{index}.{names[part]}.{kind}"


def _convention(architecture: str, name: str, config: Any) -> Callable[[Any], Any]:
    """What brings one stored tensor back to transformers' convention."""
    if architecture == "llama" and ".q_proj." in name:
        return lambda weight: unpermute(weight, config.num_attention_heads)
    if architecture == "llama" and ".k_proj." in name:
        return lambda weight: unpermute(weight, config.num_key_value_heads)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return lambda weight: weight - 1
    return lambda weight: weight


def _end_tokens(file: GgufFile) -> list[int] | None:
    """The end tokens the file names, and every control token that ends a turn or a text wherever there is one.

    A model's generation settings often list several, and a .gguf file has room for one or two.
    """
    found = [file.field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, types = (file.field(f"tokenizer.ggml.{name}", ()) for name in ("tokens", "token_type"))
    control = (i for i, kind in enumerate(types[: len(tokens)]) if kind == TokenType.CONTROL)
    found += [i for i in control if tokens[i] in _ENDS]
    return list(dict.fromkeys(token for token in found if token is not None)) or None


def _rope_parameters(file: GgufFile) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": float(file.setting("rope.freq_base", 10000.0))}
    kind = file.setting("rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        parameters |= {"rope_type": kind, "factor": float(file.need("rope.scaling.factor"))}
    elif kind != "none":
        raise _refuse(file.path, f"{file.architecture}.rope.scaling.type", repr(kind), "none, linear or yarn")
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = int(file.need("rope.scaling.original_context_length"))
    return parameters


def _gemma_options(file: GgufFile, hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    layers = file.need("block_count")
    pattern = file.setting("attention.sliding_window_pattern", 6)
    sliding = pattern if isinstance(pattern, list) else [bool((layer + 1) % pattern) for layer in range(layers)]
    local = {"rope_type": "default", "rope_theta": float(file.setting("rope.freq_base_swa", 10000.0))}
    # The 27B model alone scales scores by hidden / heads; its files say so by their 62 layers and nothing else.
    scalar = hidden // heads if layers == 62 else head_dim
    return {
        "rope_parameters": {"full_attention": _rope_parameters(file) | _gemma_base(file), "sliding_attention": local},
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        "sliding_window": file.need("attention.sliding_window"),
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": file.setting("attn_logit_softcapping"),
        "final_logit_softcapping": file.setting("final_logit_softcapping"),
    }


def _gemma_base(file: GgufFile) -> dict[str, float]:
    return {"rope_theta": float(file.setting("rope.freq_base", 1_000_000.0))}


def _refuse(path: Path, field: str, found: object, expected: str) -> UsageError:
    what = "cannot use this GGUF file"
    do = "give another .gguf file, or a folder or hub id in Hugging Face format"
    return UsageError(explain(what, file=path, field=field, found=found, expected=expected, do=do))
