"""Queries and the new K/V record of one token a sequence, in Triton: a program is one head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.heads.reference import HeadForm
from leadline.kernels.jit import jit


@jit
def _normed(
    low: tl.tensor,
    high: tl.tensor,
    weight: tl.tensor,
    at: tl.tensor,
    live: tl.tensor,
    half: tl.constexpr,
    eps: tl.tensor,
    kind: tl.constexpr,
) -> tl.tensor:
    """RMSNorm over the two halves of a head, rounded before the weight and after it."""
    scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * half) + eps)
    low_weight = tl.load(weight + at, mask=live, other=0.0).to(tl.float32)
    high_weight = tl.load(weight + half + at, mask=live, other=0.0).to(tl.float32)
    low = (low_weight * (low * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
    high = (high_weight * (high * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
    return low, high


@jit
def _rotated(x: tl.tensor, other: tl.tensor, cos: tl.tensor, sin: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """x cos + other sin, each product and the sum rounded to the model's precision."""
    left = (x * cos).to(kind).to(tl.float32)
    return (left + (other * sin).to(kind).to(tl.float32)).to(kind)


@jit
def _split_heads(
    joint: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    position: tl.tensor,
    first: tl.tensor,
    query: tl.tensor,
    tail: tl.tensor,
    key: tl.tensor,
    eps: tl.tensor,
    tail_head: tl.tensor,
    tail_row: tl.tensor,
    tail_side: tl.tensor,
    heads: tl.constexpr,
    group: tl.constexpr,
    half: tl.constexpr,
    padded: tl.constexpr,
) -> None:
    d: tl.constexpr = 2 * half
    sequence = tl.program_id(1).to(tl.int64)
    which = tl.program_id(0)
    kind: tl.constexpr = joint.dtype.element_ty
    at = tl.arange(0, padded)
    live = at < half
    source = joint + sequence * ((heads * group + 2 * heads) * d) + which * d + at
    low = tl.load(source, mask=live, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=live, other=0.0).to(tl.float32)
    if which < heads * (group + 1):
        if which < heads * group:
            if query_norm is not None:
                low, high = _normed(low, high, query_norm, at, live, half, eps, kind)
        else:
            if key_norm is not None:
                low, high = _normed(low, high, key_norm, at, live, half, eps, kind)
        low_cos = tl.load(cos + at, mask=live, other=0.0).to(tl.float32)
        high_cos = tl.load(cos + half + at, mask=live, other=0.0).to(tl.float32)
        low_sin = tl.load(sin + at, mask=live, other=0.0).to(tl.float32)
        high_sin = tl.load(sin + half + at, mask=live, other=0.0).to(tl.float32)
        turned_low = _rotated(low, -high, low_cos, low_sin, kind)
        turned_high = _rotated(high, low, high_cos, high_sin, kind)
        low, high = turned_low.to(tl.float32), turned_high.to(tl.float32)
    if which < heads * group:
        place = query + (sequence * heads * group + which) * d + at
        tl.store(place, low, mask=live)
        tl.store(place + half, high, mask=live)
    else:
        side = (which - heads * group) // heads
        head = sequence * heads + (which - heads * group) % heads
        slot = (tl.load(position) - tl.load(first)).to(tl.int64)
        record = tail + head * tail_head + slot * tail_row + side * tail_side + at
        tl.store(record, low.to(kind), mask=live)
        tl.store(record + half, high.to(kind), mask=live)
        if key is not None and side == 0:
            tl.store(key + head * d + at, low, mask=live)
            tl.store(key + head * d + half + at, high, mask=live)


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
    """As the reference. joint and query are contiguous, tail is contiguous in d; nothing waits for the host."""
    n, d = joint.shape[0], form.head_dim
    h, g = form.kv_heads, form.group
    if joint.shape[1] != (h * g + 2 * h) * d or not joint.is_contiguous():
        raise ValueError(f"heads: the joint projection `{list(joint.shape)}` is not of {h} x ({g} + 2) heads of {d}")
    if query.shape != (n * h, g, d) or query.dtype != torch.float32 or not query.is_contiguous():
        raise ValueError("heads: query is not contiguous fp32 `[N H, G, d]`")
    if key is not None and not (key.shape == (n * h, d) and key.dtype == torch.float32 and key.is_contiguous()):
        raise ValueError("heads: key is not contiguous fp32 `[N H, d]`")
    if tail.shape[0] != n * h or tail.shape[2:] != (2, d) or tail.stride(-1) != 1 or tail.dtype != joint.dtype:
        raise ValueError("heads: the tail does not hold records `[N H, t, 2, d]` of the model's precision")
    _split_heads[(h * (g + 2), n)](
        joint,
        form.query_norm,
        form.key_norm,
        cos,
        sin,
        position,
        first,
        query,
        tail,
        key,
        form.eps,
        tail.stride(0),
        tail.stride(1),
        tail.stride(2),
        heads=h,
        group=g,
        half=d // 2,
        padded=triton.next_power_of_2(d // 2),
        num_warps=1,
        enable_fp_fusion=False,
    )
