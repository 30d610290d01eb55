"""The one place where a model's attention is replaced: register, run a step, put everything back.

The hook is an attention implementation of transformers' own interface, chosen on one model instance; nothing is
patched. The mask function is registered with it: without a mask, transformers falls back on a causal flag that is
aligned to the first key, and a chunked prefill is silently wrong. What a step needs (the `Attend` of this call) travels
as a keyword argument through the model, so there is no global state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from leadline.errors import UsageError, explain
from leadline.model import LoadedModel
from leadline.rows import Rows

IMPLEMENTATION = "leadline"


class Attend(Protocol):
    """Attention of one scanned layer for T new tokens, which are the last T of the n keys.

    `query` is `[Hq, T, d]`, `keys` and `values` `[H, n, d]` views of the rows; token i may see keys 0..n-T+i. The query
    heads of KV head h are h*G..h*G+G-1. Returns `[Hq, T, d]`.
    """

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend in one layer."""
        ...


@dataclass(frozen=True)
class _Call:
    """What one `forward` hands down to the attention function of every layer."""

    attend: Attend | None
    scanned: frozenset[int]


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    leadline: _Call | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    if leadline is None or leadline.attend is None or module.layer_idx not in leadline.scanned:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **rest
        )
        return out
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = leadline.attend(module.layer_idx, query[0], key[0], value[0], scale)
    if attended.shape != query.shape[1:]:
        raise ValueError(
            f"attend gave {tuple(attended.shape)} in layer {module.layer_idx}, not {tuple(query.shape[1:])}"
        )
    return attended.to(query.dtype).transpose(0, 1)[None].contiguous(), None


@contextmanager
def hooked(model: LoadedModel) -> Iterator[LoadedModel]:
    """Run this model instance under the hook; its previous implementation comes back on exit, also after an error."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    previous = model.network.config._attn_implementation
    model.network.set_attn_implementation(IMPLEMENTATION)
    try:
        yield model
    finally:
        model.network.set_attn_implementation(previous)


@torch.no_grad()
def forward(
    model: LoadedModel,
    ids: Tensor,
    rows: Rows,
    *,
    attend: Attend | None = None,
    logits: Literal["last", "all"] = "last",
) -> Tensor:
    """Feed T token ids `[T]` after the rows, append their K/V, and return raw logits in fp32, `[1, V]` or `[T, V]`.

    With `attend`, scanned layers use it (the model must be `hooked`); all others, and every layer without it, use the
    model's own dense attention and mask. If anything raises, the rows are back at their previous length. Too many
    tokens for the rows or for the model's positions is a UsageError.
    """
    if ids.ndim != 1 or not ids.shape[0]:
        raise ValueError(f"ids must be a non-empty [T] tensor, not {tuple(ids.shape)}")
    network, start = model.network, rows.length
    if attend is not None and network.config._attn_implementation != IMPLEMENTATION:
        raise RuntimeError("attend needs the model to be hooked: with hooked(model): ...")
    rows.check_room(ids.shape[0])
    if start + ids.shape[0] > model.shape.max_positions:
        raise UsageError(
            explain(
                "the context is longer than the model's positions",
                field="context",
                found=f"{start + ids.shape[0]} tokens",
                expected=f"at most {model.shape.max_positions} for {model.id} (rope {model.rope})",
                do="lower the longest context, or stretch the positions with rope yarn:FACTOR",
            )
        )
    call = _Call(attend, frozenset(model.shape.scanned_layers))
    try:
        out = network(
            input_ids=ids.to(model.device)[None],
            use_cache=True,
            logits_to_keep=1 if logits == "last" else 0,
            leadline=call,
            **{_cache_argument(network): rows},
        )
    except BaseException:
        # Ctrl-C too: a stop in a middle layer leaves the layers before it one step ahead of those after it.
        for layer in rows.layers:
            layer.rewind(start)
        raise
    found: Tensor = out.logits[0].float()
    return found


def dense(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Causal dense attention, the very computation of a hooked layer without `attend`, bit for bit.

    `query` `[Hq, T, d]` are the last T positions of `keys` and `values` `[H, n, d]`; returns `[Hq, T, d]`.
    """
    new, total = query.shape[1], keys.shape[1]
    mask = None
    if new not in (1, total):
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)[None, None]
    heads = SimpleNamespace(num_key_value_groups=query.shape[0] // keys.shape[0], is_causal=True)
    out: Tensor = sdpa_attention_forward(heads, query[None], keys[None], values[None], mask, scaling=scaling)[0]
    return out[0].transpose(0, 1)


def _cache_argument(network: Any) -> str:
    """The name under which this version of transformers takes the rows: `cache` in newer ones."""
    return "cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values"
