"""Queries and the new K/V record of one token a sequence, in PyTorch, rounded where transformers rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadForm:
    """Heads of a layer: KV heads, query heads per KV head, head_dim, and the norms over head_dim where it has them."""

    kv_heads: int
    group: int
    head_dim: int
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 1e-6


def split_heads(
    joint: Tensor,
    form: HeadForm,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    first: Tensor,
    query: Tensor,
    tail: Tensor,
    key: Tensor | None = None,
) -> None:
    """Write post-norm, post-rotary queries to `query` and the token's record into the tail at position - first.

    joint: `[N, (H G + 2 H) d]`, queries, keys, values of one token of each of N sequences. cos, sin: `[d]` in the
    model's precision. position, first: int32 `[1]`. query: fp32 `[N H, G, d]`. tail: records `[N H, t, 2, d]`, K beside
    V. key: fp32 `[N H, d]`, receives the token's key where it is given.
    """
    n, (h, g, d) = joint.shape[0], (form.kv_heads, form.group, form.head_dim)
    queries, keys, values = joint.split([h * g * d, h * d, h * d], dim=-1)
    queries = _rotate(_normed(queries.view(n, h, g, d), form.query_norm, form.eps), cos, sin)
    keys = _rotate(_normed(keys.view(n, h, d), form.key_norm, form.eps), cos, sin)
    query.copy_(queries.reshape(n * h, g, d))
    slot = int(position - first)
    tail[:, slot, 0] = keys.reshape(n * h, d)
    tail[:, slot, 1] = values.reshape(n * h, d)
    if key is not None:
        key.copy_(keys.reshape(n * h, d))


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
