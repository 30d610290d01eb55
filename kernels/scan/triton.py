"""The plane scan in Triton: reads the planned planes where they lie, in GPU memory or pinned host memory, and scores.

A thread owns one word of the sequence, `lanes` tokens, and keeps their scores of all G heads in registers while the
program walks the plan's slots, deepest first: planes are read once for the group, never staged, never shared between
threads. The words of the next slot are on their way while the present one is decoded. See README.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes import BLOCK, DEPTH
from leadline.kernels.slots import Slots


@jit
def spread(word: tl.tensor, size: tl.constexpr, lanes: tl.constexpr, copies: tl.constexpr) -> tl.tensor:
    """`copies` of each element, side by side, as `[size, lanes]`. By `join`, so that they stay in their element's
    thread, where they cost nothing.
    """
    wide = word
    if copies > 1:
        wide = tl.join(wide, wide)
    if copies > 2:
        wide = tl.join(wide, wide)
    if copies > 4:
        wide = tl.join(wide, wide)
    if copies > 8:
        wide = tl.join(wide, wide)
    if copies > 16:
        wide = tl.join(wide, wide)
    return tl.reshape(wide, [size, lanes])


@jit
def write_scores(
    score: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    first: tl.tensor,
    tokens: tl.tensor,
    size: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """Store one head's scores `[size, lanes]` of tokens `first` on, and where `maxima` is given each 64-token block's
    largest, +inf where one is not a number.
    """
    token = first.to(tl.int64) + tl.arange(0, size)[:, None] * lanes + tl.arange(0, lanes)[None, :]
    tl.store(out + token, score, mask=token < tokens)
    if maxima is not None:
        blocks: tl.constexpr = size * lanes // 64
        known = tl.where(score == score, score, float("inf"))
        block = first // 64 + tl.arange(0, blocks)
        tl.store(maxima + block, tl.max(tl.reshape(known, [blocks, 64]), 1), mask=block * 64 < tokens)


@jit
def _read(
    planes: tl.tensor, plane_stride: tl.tensor, word: tl.tensor, live: tl.tensor, depth: tl.constexpr
) -> tl.tensor:
    """The words of a channel's first `depth` planes."""
    words = ()
    for _ in tl.static_range(depth):
        words += (tl.load(planes + word, mask=live, other=0, eviction_policy="evict_first"),)  # type: ignore[assignment]
        planes += plane_stride
    return words


@jit
def _value(words: tl.tensor, size: tl.constexpr, lanes: tl.constexpr, depth: tl.constexpr) -> tl.tensor:
    """Half the prefix value, exactly: the code's bits under the leading one of a float in 1..2, less the middle."""
    lane = tl.arange(0, lanes)
    bits = tl.full([size, lanes], 0x3F800000, tl.int32)
    for p in tl.static_range(depth):
        bits |= ((spread(words[p].to(tl.int32), size, lanes, lanes) >> lane[None, :]) & 1) << (22 - p)
    return bits.to(tl.float32, bitcast=True) - (1.5 - 0.5 ** (depth + 1))


@jit
def _payload(word: tl.tensor, due: tl.tensor, lanes: tl.constexpr, depth: tl.constexpr) -> tl.tensor:
    """Bytes of the store that these loads name: `depth` words each, and a scale for each first word of a block."""
    words = tl.sum(due.to(tl.int64)) * (depth * lanes // 8)
    return words + 2 * tl.sum((due & (word % (64 // lanes) == 0)).to(tl.int64))


@jit
def _scan(
    query: tl.tensor,
    planes: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    channel: tl.tensor,
    deeper: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    counter: tl.tensor,
    blocks: tl.tensor,
    capacity: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    plane_head: tl.tensor,
    plane_channel: tl.tensor,
    plane_level: tl.tensor,
    scale_head: tl.tensor,
    scale_channel: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    slots: tl.constexpr,
    group: tl.constexpr,
    size: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    per_block: tl.constexpr = 64 // lanes
    head = tl.program_id(1).to(tl.int64)
    word = tl.program_id(0) * size + tl.arange(0, size)
    words = capacity * per_block
    if blocks is not None:
        words = tl.minimum(words, tl.load(blocks) * per_block)
    if tl.program_id(0) * size >= words:
        return
    query += head * query_head
    planes += head * plane_head
    scales += head * scale_head
    row += head * slots
    channel += head * slots
    deeper += head * 5
    moved = tl.zeros([], tl.int64)
    scores = ()
    for _ in tl.static_range(group):
        scores += (tl.zeros([size, lanes], tl.float32),)  # type: ignore[assignment]
    for depth in tl.static_range(4, 0, -1):
        slot = tl.load(deeper + depth)
        last = tl.load(deeper + depth - 1)
        at = tl.load(row + tl.minimum(slot, slots - 1)).to(tl.int64)
        due = word < words * (slot < last).to(tl.int32)
        next_words = _read(planes + at * plane_channel, plane_level, word, due, depth)
        next_scale = tl.load(scales + at * scale_channel + word // per_block, mask=due, other=0.0)
        if counter is not None:
            moved += _payload(word, due, lanes, depth)
        while slot < last:
            here, scale = next_words, next_scale
            c = tl.load(channel + slot)
            at = tl.load(row + tl.minimum(slot + 1, slots - 1)).to(tl.int64)
            due = word < words * (slot + 1 < last).to(tl.int32)
            next_words = _read(planes + at * plane_channel, plane_level, word, due, depth)
            next_scale = tl.load(scales + at * scale_channel + word // per_block, mask=due, other=0.0)
            if counter is not None:
                moved += _payload(word, due, lanes, depth)
            half = _value(here, size, lanes, depth)
            twice = 2 * scale.to(tl.float32)
            summed = ()
            for g in tl.static_range(group):
                weight = tl.load(query + g * query_group + c) * twice
                summed += (scores[g] + spread(weight, size, lanes, lanes) * half,)  # type: ignore[assignment]
            scores = summed
            slot += 1
    for g in tl.static_range(group):
        peaks = None if maxima is None else maxima + (head * group + g) * capacity
        own = out + head * out_head + g * out_group
        write_scores(scores[g], own, peaks, tl.program_id(0) * size * lanes, words * lanes, size, lanes)
    if counter is not None:
        tl.atomic_add(counter, moved, sem="relaxed")


def plane_scan(
    query: Tensor,
    planes: Tensor,
    scales: Tensor,
    slots: Slots,
    *,
    rows: Tensor | None = None,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
    size: int = 128,
) -> Tensor:
    """Scores `[H, G, 64 m]` fp32 of all tokens under one plan per KV head; nothing waits for the host.

    query: `[H, G, d]` fp32. planes: `[H, c, 4, m]` int64 and scales `[H, c, m]` fp16, m contiguous, on the GPU or in
    pinned host memory. rows: int32 `[H, d]`, which of the c rows holds a slot (default: row j is channel j). blocks:
    int32 `[1]`, how many of the m blocks to scan (default all). out: `[H, G, >= 64 m]`, written in place. maxima: fp32
    `[H, G, m]`, receives each block's largest score, +inf where one is not a number. counter: int64 `[1]`, the payload
    bytes read are added to it. `size` words a program, a multiple of 32. Raises ValueError for tensors of another form.
    """
    heads, group, d = query.shape
    m = planes.shape[-1]
    lanes = 32 if group <= 4 else 16 if group <= 8 else 8
    per_block = BLOCK // lanes
    out = query.new_empty(heads, group, BLOCK * m) if out is None else out
    _require(query.dtype == torch.float32 and query.stride(-1) == 1, "query is not fp32 with contiguous channels")
    _require(planes.dtype == torch.int64 and planes.shape[2] == DEPTH, "planes are not int64 `[H, c, 4, m]`")
    _require(scales.dtype == torch.float16, "scales are not fp16")
    _require(m == 1 or planes.stride(-1) == scales.stride(-1) == 1, "the words of a plane are not contiguous")
    _require(out.stride(-1) == 1 and out.shape[-1] >= BLOCK * m, f"out does not hold {BLOCK * m} contiguous scores")
    _require(slots.channel.shape == (heads, d) and slots.channel.is_contiguous(), "slots are not `[H, d]`")
    _require(
        maxima is None or (maxima.shape == (heads, group, m) and maxima.is_contiguous()), "maxima: not `[H, G, m]`"
    )
    if m == 0:
        return out
    narrow = {32: torch.int32, 16: torch.int16}.get(lanes, torch.int8)
    words = planes.as_strided(planes.shape, (*planes.stride()[:-1], 1)).view(narrow)
    _scan[(triton.cdiv(m * per_block, size), heads)](
        query,
        words,
        scales,
        slots.channel if rows is None else rows,
        slots.channel,
        slots.deeper,
        out,
        maxima,
        counter,
        blocks,
        m,
        query.stride(0),
        query.stride(1),
        words.stride(0),
        words.stride(1),
        words.stride(2),
        scales.stride(0),
        scales.stride(1),
        out.stride(0),
        out.stride(1),
        slots=d,
        group=group,
        size=size,
        lanes=lanes,
        num_warps=max(1, size // 32),
    )
    return out


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"plane scan: {otherwise}")
