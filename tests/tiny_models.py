"""Small random models of every accepted architecture, seeded, with nothing left at a trivial value.

Biases and norm weights are drawn too: a loader or a hook that dropped one of them would otherwise go unnoticed.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from leadline.model import LoadedModel, from_network

VOCABULARY = 160
WINDOW = 24

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": _DEFAULT_ROPE}),
    "mistral": (MistralConfig, {"rope_parameters": _DEFAULT_ROPE, "sliding_window": None}),
    # Qwen 2 has no head_dim of its own: 6 heads of 8.
    "qwen2": (Qwen2Config, {"rope_parameters": _DEFAULT_ROPE, "head_dim": 8, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"rope_parameters": _DEFAULT_ROPE}),
    "gemma3": (
        Gemma3TextConfig,
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": False,
        },
    ),
}
ARCHITECTURES = tuple(_KINDS)


def network(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of one architecture, fp32, eval mode; `changes` go to its configuration."""
    config_class, options = _KINDS[kind]
    config = config_class(**{**_SIZES, **options, **changes})
    built = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in built.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        centre = 0.0 if kind == "gemma3" or not name.endswith("norm.weight") else 1.0
        # A tied head with a large embedding would repeat the last token for ever.
        spread = 0.05 if "embed_tokens" in name else 0.25
        # fp16-exact numbers survive every file format unchanged.
        parameter.data = (centre + spread * drawn).half().float()
    built.tie_weights()
    return built


def model(kind: str, seed: int = 0, **changes: Any) -> LoadedModel:
    """The same, described as a loaded model without a tokenizer."""
    return from_network(network(kind, seed, **changes), None, id=f"tiny-{kind}", weights_sha256="0" * 64)


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    """Random token ids `[length]`."""
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))
