"""The packed nibble scan in Triton: a thread owns 16 bytes of each channel, 32 tokens (fewer for G > 4; README.md)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes import BLOCK
from leadline.kernels.scan.triton import spread, write_scores


@jit
def _scan_nibbles(
    query: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    counter: tl.tensor,
    blocks: tl.tensor,
    capacity: tl.tensor,
    channels: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    word_head: tl.tensor,
    word_channel: tl.tensor,
    scale_head: tl.tensor,
    scale_channel: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    group: tl.constexpr,
    size: tl.constexpr,
    vector: tl.constexpr,
) -> None:
    lanes: tl.constexpr = 8 * vector
    head = tl.program_id(1).to(tl.int64)
    total = capacity * 8
    if blocks is not None:
        total = tl.minimum(total, tl.load(blocks) * 8)
    first = tl.program_id(0) * size
    if first * vector >= total:
        return
    piece = first + tl.arange(0, size)
    word = piece[:, None] * vector + tl.arange(0, vector)[None, :]
    block = piece // (64 // lanes)
    query += head * query_head
    words += head * word_head
    scales += head * scale_head
    shift = (4 * (tl.arange(0, lanes) & 7))[None, :]
    moved = tl.zeros([], tl.int64)
    scores = ()
    for _ in tl.static_range(group):
        scores += (tl.zeros([size, lanes], tl.float32),)  # type: ignore[assignment]
    next_words = tl.load(words + word, mask=word < total, other=0, eviction_policy="evict_first")
    next_scale = tl.load(scales + block, mask=block * 8 < total, other=0.0)
    for c in range(channels):
        here, scale = next_words, next_scale
        if counter is not None:
            own = tl.sum(tl.sum((word < total).to(tl.int64), 1)) * 4
            moved += own + 2 * tl.sum(((block * 8 < total) & (piece % (64 // lanes) == 0)).to(tl.int64))
        words += word_channel
        scales += scale_channel
        due = total * (c + 1 < channels).to(tl.int32)
        next_words = tl.load(words + word, mask=word < due, other=0, eviction_policy="evict_first")
        next_scale = tl.load(scales + block, mask=block * 8 < due, other=0.0)
        code = (spread(here, size, lanes, 8) >> shift) & 15
        half = ((code << 19) | 0x3F800000).to(
            tl.float32, bitcast=True
        ) - 1.46875  # half the value, as in the plane scan
        twice = 2 * scale.to(tl.float32)
        summed = ()
        for g in tl.static_range(group):
            weight = tl.load(query + g * query_group + c) * twice
            summed += (scores[g] + spread(weight, size, lanes, lanes) * half,)  # type: ignore[assignment]
        scores = summed
    for g in tl.static_range(group):
        peaks = None if maxima is None else maxima + (head * group + g) * capacity
        own_out = out + head * out_head + g * out_group
        write_scores(scores[g], own_out, peaks, first * lanes, total * 8, size, lanes)
    if counter is not None:
        tl.atomic_add(counter, moved, sem="relaxed")


def nibble_scan(
    query: Tensor,
    words: Tensor,
    scales: Tensor,
    *,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
    size: int = 128,
) -> Tensor:
    """As the reference: queries `[H, G, c]` fp32, words int32 `[H, c, 8 m]`, scales fp16 `[H, c, m]`, contiguous in
    their last dimensions, on the GPU or in pinned host memory.

    blocks: int32 `[1]`, how many of the m blocks to scan. out: `[H, G, >= 64 m]` fp32. maxima: fp32 `[H, G, m]`, each
    block's largest score, +inf for NaN. counter: int64 `[1]`, payload bytes are added. `size` threads a program.
    """
    heads, group, channels = query.shape
    m = scales.shape[-1]
    vector = 4 if group <= 4 else 2 if group <= 8 else 1
    out = query.new_empty(heads, group, BLOCK * m) if out is None else out
    if query.dtype != torch.float32 or words.dtype != torch.int32 or scales.dtype != torch.float16:
        raise ValueError("nibble scan: query, words and scales are not fp32, int32 and fp16")
    if words.shape != (heads, channels, 8 * m) or scales.shape != (heads, channels, m):
        raise ValueError(f"nibble scan: words `{list(words.shape)}` do not match scales `{list(scales.shape)}`")
    if not (query.stride(-1) == words.stride(-1) == out.stride(-1) == 1 and (m <= 1 or scales.stride(-1) == 1)):
        raise ValueError("nibble scan: a last dimension is not contiguous")
    if out.shape[-1] < BLOCK * m or (maxima is not None and maxima.shape != (heads, group, m)):
        raise ValueError(f"nibble scan: out or maxima do not hold {m} blocks")
    if m == 0:
        return out
    _scan_nibbles[(triton.cdiv(8 * m, size * vector), heads)](
        query,
        words,
        scales,
        out,
        maxima,
        counter,
        blocks,
        m,
        channels,
        query.stride(0),
        query.stride(1),
        words.stride(0),
        words.stride(1),
        scales.stride(0),
        scales.stride(1),
        out.stride(0),
        out.stride(1),
        group=group,
        size=size,
        vector=vector,
        num_warps=max(1, size // 32),
    )
    return out
