"""The key scan in Triton: a block of 64 tokens a program, its keys read once for the group (see README.md)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes import BLOCK


@jit
def _key_scan(
    query: tl.tensor,
    keys: tl.tensor,
    first: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    counter: tl.tensor,
    tokens: tl.tensor,
    shared: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    peak_head: tl.tensor,
    peak_group: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
) -> None:
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if first is not None:
        tokens = tl.minimum(tokens, tl.load(first))
    if tl.program_id(0) >= tokens // 64:
        return
    token = block * 64 + tl.arange(0, 64)
    column = tl.arange(0, padded)
    inside = column < d
    at = keys + head % shared * key_head + token[:, None] * key_row + column[None, :]
    key = tl.load(at, mask=inside[None, :], other=0.0, eviction_policy="evict_first").to(tl.float32)
    for g in tl.static_range(group):
        q = tl.load(query + head * query_head + g * query_group + column, mask=inside, other=0.0)
        score = tl.sum(key * q[None, :], 1)
        tl.store(out + head * out_head + g * out_group + token, score)
        if maxima is not None:
            known = tl.where(score == score, score, float("inf"))
            tl.store(maxima + head * peak_head + g * peak_group + block, tl.max(known, 0))
    if counter is not None:
        size: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
        tl.atomic_add(counter, tl.sum(token * 0 + d * size), mask=head < shared, sem="relaxed")


def key_scan(
    query: Tensor,
    keys: Tensor,
    *,
    first: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """As `dispatch.key_scan`; nothing waits for the host. Raises ValueError for tensors of another form."""
    heads, group, d = query.shape
    n = keys.shape[1]
    out = torch.empty(heads, group, n, dtype=torch.float32, device=query.device) if out is None else out
    _require(query.dtype == out.dtype == torch.float32, "query or out is not fp32")
    _require(query.stride(-1) == keys.stride(-1) == out.stride(-1) == 1, "channels or scores are not contiguous")
    _require(keys.shape[2] == d and heads % keys.shape[0] == 0, "keys are not `[H, n, d]` of the queries' KV heads")
    _require(first is not None or n % BLOCK == 0, f"{n} tokens are not a multiple of {BLOCK}")
    n = n // BLOCK * BLOCK  # room for part of a block is room for no block
    _require(out.shape[:2] == (heads, group) and out.shape[2] >= n, f"out does not hold {n} scores a head")
    _require(first is None or first.dtype == torch.int32, "first is not int32")
    if maxima is not None:
        _require(maxima.dtype == torch.float32 and maxima.stride(-1) == 1, "maxima are not contiguous fp32")
        _require(maxima.shape[:2] == (heads, group) and maxima.shape[2] >= n // BLOCK, "maxima: not `[H, G, n / 64]`")
    if n == 0:
        return out
    padded = triton.next_power_of_2(d)
    _key_scan[(n // BLOCK, heads)](
        query,
        keys,
        first,
        out,
        maxima,
        counter,
        n,
        keys.shape[0],
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        out.stride(0),
        out.stride(1),
        0 if maxima is None else maxima.stride(0),
        0 if maxima is None else maxima.stride(1),
        group=group,
        d=d,
        padded=padded,
        num_warps=4 if padded <= 128 else 8,
    )
    return out


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"key scan: {otherwise}")
