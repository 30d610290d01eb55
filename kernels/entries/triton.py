"""Scans of fp16 entries in Triton, read where they lie: GPU memory or pinned host memory (see README.md)."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.scan.triton import spread, write_scores


@jit
def _read(
    entries: tl.tensor,
    stride: tl.tensor,
    entry: tl.tensor,
    channel: tl.tensor,
    channels: tl.tensor,
    total: tl.tensor,
    ahead: tl.constexpr,
) -> tl.tensor:
    """Entries of `ahead` channels, all on their way before the first is used; zeros past the last channel."""
    loads = ()
    for u in tl.static_range(ahead):
        due = entry < total * (channel + u < channels).to(tl.int32)
        loads += (tl.load(entries + entry, mask=due, other=0.0, eviction_policy="evict_first"),)  # type: ignore[assignment]
        entries += stride
    return loads


@jit
def _scan_entries(
    query: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    counter: tl.tensor,
    blocks: tl.tensor,
    capacity: tl.tensor,
    channels: tl.tensor,
    shared: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    entry_head: tl.tensor,
    entry_channel: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    group: tl.constexpr,
    size: tl.constexpr,
    repeat: tl.constexpr,
    ahead: tl.constexpr,
    aligned: tl.constexpr,
) -> None:
    """`size` entries of one head; `low` is None where a score is a product and not a bound."""
    head = tl.program_id(1).to(tl.int64)
    per_block: tl.constexpr = 64 // repeat
    total = (capacity if blocks is None else tl.minimum(capacity, tl.load(blocks))) * per_block
    first = tl.program_id(0) * size
    if first >= total:
        return
    entry = first + tl.arange(0, size)
    query += head * query_head
    entry_head *= aligned  # by a constant, so that the compiler knows what vectors of entries the strides allow
    entry_channel *= aligned
    high += head % shared * entry_head
    if low is not None:
        low += head % shared * entry_head
    moved = tl.zeros([], tl.int64)
    scores = ()
    for _ in tl.static_range(group):
        scores += (tl.zeros([size], tl.float32),)  # type: ignore[assignment]
    for start in range(0, channels, ahead):
        tops = _read(high, entry_channel, entry, start, channels, total, ahead)
        bottoms = tops if low is None else _read(low, entry_channel, entry, start, channels, total, ahead)
        high += ahead * entry_channel
        if low is not None:
            low += ahead * entry_channel
        if counter is not None:
            read = tl.sum((entry < total).to(tl.int64)) * tl.minimum(ahead, channels - start)
            moved += read * (2 if low is None else 4)
        for u in tl.static_range(ahead):
            c = tl.minimum(start + u, channels - 1)
            summed = ()
            for g in tl.static_range(group):
                q = tl.load(query + g * query_group + c)
                if low is None:
                    summed += (scores[g] + q * tops[u].to(tl.float32),)  # type: ignore[assignment]
                else:
                    upper = scores[g] + tl.maximum(q, 0.0) * tops[u].to(tl.float32)
                    summed += (upper + tl.minimum(q, 0.0) * bottoms[u].to(tl.float32),)  # type: ignore[assignment]
            scores = summed
    for g in tl.static_range(group):
        peaks = None if maxima is None else maxima + (head * group + g) * capacity
        own = out + head * out_head + g * out_group
        write_scores(spread(scores[g], size, repeat, repeat), own, peaks, first * repeat, total * repeat, size, repeat)
    if counter is not None:
        tl.atomic_add(counter, moved, mask=head < shared, sem="relaxed")


def entry_scan(
    query: Tensor,
    high: Tensor,
    low: Tensor | None,
    tokens_per_entry: int,
    *,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
    size: int = 512,
) -> Tensor:
    """q.high where `low` is None, else sum_j max(q_j low_j, q_j high_j): fp32 `[N H, G, e tokens_per_entry]`.

    query: `[N H, G, c]` fp32, of N sequences that share the entries; high, low: `[H, c, e]` fp16 of equal strides, e
    contiguous, on the GPU or in pinned host memory; tokens_per_entry: a power of two that divides 64. blocks: int32
    `[1]`, how many 64-token blocks to scan. out, maxima (`[N H, G, tokens / 64]`) and counter as in the plane scan.
    `size` entries a program.
    """
    heads, group, channels = query.shape
    entries = high.shape[-1]
    tokens = entries * tokens_per_entry
    out = query.new_empty(heads, group, tokens) if out is None else out
    if query.dtype != torch.float32 or high.dtype != torch.float16 or (low is not None and low.dtype != torch.float16):
        raise ValueError("entry scan: query and entries are not fp32 and fp16")
    if tokens_per_entry not in (1, 2, 4, 8, 16, 32) or tokens % 64:
        raise ValueError(f"entry scan: entries of {tokens_per_entry} tokens do not fill 64-token blocks")
    if (
        heads % high.shape[0]
        or high.shape[1] != channels
        or (low is not None and (low.shape, low.stride()) != (high.shape, high.stride()))
    ):
        raise ValueError("entry scan: entries are not `[H, c, e]`, or low and high differ in form")
    if not query.stride(-1) == out.stride(-1) == 1 or (entries > 1 and high.stride(-1) != 1):
        raise ValueError("entry scan: a last dimension is not contiguous")
    if out.shape[-1] < tokens or (maxima is not None and maxima.shape != (heads, group, tokens // 64)):
        raise ValueError(f"entry scan: out or maxima do not hold {tokens} tokens")
    if entries == 0:
        return out
    aligned = math.gcd(8, high.stride(0), high.stride(1))
    _scan_entries[(triton.cdiv(entries, size), heads)](
        query,
        high,
        low,
        out,
        maxima,
        counter,
        blocks,
        tokens // 64,
        channels,
        high.shape[0],
        query.stride(0),
        query.stride(1),
        high.stride(0) // aligned,
        high.stride(1) // aligned,
        out.stride(0),
        out.stride(1),
        group=group,
        size=size,
        repeat=tokens_per_entry,
        ahead=4,
        aligned=aligned,
        num_warps=4,
    )
    return out
