"""The plane scan in Triton: reads the planned planes where they lie, in GPU memory or pinned host memory, and scores.

A thread owns `lanes` tokens of the sequence and keeps their scores of all G heads in registers while the program walks
the plan's slots, deepest first: planes are read once for the group, and those of the next slots are on their way into
shared memory while the present one's are decoded. See README.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes import BLOCK, DEPTH
from leadline.kernels.slots import Slots

_AHEAD = 3  # stages of the pipeline: two slots on their way, one in work
_ONE = 0x3F800000  # 1.0 in fp32
_QUARTER = 0x3E800000


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
def _interleave(a: tl.tensor, b: tl.tensor, step: tl.constexpr, low: tl.constexpr) -> tl.tensor:
    """Two words of fields of `step` bits into two of fields twice as wide, a's field above b's: those of the even
    fields, and those of the odd. `low` has the low half of each wide field set.
    """
    return ((a << step) & ~low) | (b & low), (a & ~low) | ((b >> step) & low)


@jit
def _half_value(
    words: tl.tensor, one: tl.tensor, quarter: tl.tensor, size: tl.constexpr, lanes: tl.constexpr, depth: tl.constexpr
) -> tl.tensor:
    """Half the prefix value `[size, lanes]`, exactly, from `depth` words `[size]` whose low `lanes` bits are tokens.

    Past one plane: the code's bits under the leading one of a float in 1..2, less the middle of that range. `one` and
    `quarter` are no constants because an instruction takes only one of these, and the mask is that one.
    """
    lane = tl.arange(0, lanes)[None, :]
    if depth == 1:  # +-1/4: the plane is the sign
        sign = (spread(~words[0], size, lanes, lanes) << (31 - lane)) & -0x80000000
        half = (sign | quarter).to(tl.float32, bitcast=True)
    else:
        even, odd = _interleave(words[0], words[1], 1, 0x55555555)
        if depth == 2:
            few: tl.constexpr = lanes // 2
            field = tl.reshape(tl.join(spread(even, size, few, few), spread(odd, size, few, few)), [size, lanes])
            code = ((field >> (lane & -2)) & 3) << 21
        else:
            fourth = words[3] if depth == 4 else tl.zeros_like(words[2])
            low_even, low_odd = _interleave(words[2], fourth, 1, 0x55555555)
            f0, f2 = _interleave(even, low_even, 2, 0x33333333)
            f1, f3 = _interleave(odd, low_odd, 2, 0x33333333)
            fewer: tl.constexpr = lanes // 4
            left = tl.join(spread(f0, size, fewer, fewer), spread(f2, size, fewer, fewer))
            right = tl.join(spread(f1, size, fewer, fewer), spread(f3, size, fewer, fewer))
            field = tl.reshape(tl.join(left, right), [size, lanes])
            code = ((field >> (lane & -4)) & 15) << 19
        half = (code | one).to(tl.float32, bitcast=True) - (1.5 - 0.5 ** (depth + 1))
    return half


@jit
def _fp16(word: tl.tensor) -> tl.tensor:
    """The fp16 number in the low half of a word, in fp32."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


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
    slots: tl.tensor,
    shared: tl.tensor,
    one: tl.tensor,
    quarter: tl.tensor,
    odd: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    plane_head: tl.tensor,
    plane_channel: tl.tensor,
    plane_level: tl.tensor,
    scale_head: tl.tensor,
    scale_channel: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    paired: tl.constexpr,
    group: tl.constexpr,
    size: tl.constexpr,
    lanes: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    shares: tl.constexpr = 32 // lanes  # threads that share a word
    per_block: tl.constexpr = 64 // lanes
    width: tl.constexpr = size // per_block
    head = tl.program_id(1).to(tl.int64)
    stored = head % shared  # whose planes it reads
    total = capacity
    if blocks is not None:
        total = tl.minimum(total, tl.load(blocks))
    part = tl.program_id(0) * size + tl.arange(0, size)
    due = part < total * per_block
    block = tl.program_id(0) * width + tl.arange(0, width)
    pair = tl.program_id(0) * (width // 2) + tl.arange(0, width // 2)
    if tl.program_id(0) * width >= total:
        return
    query += head * query_head
    planes += stored * plane_head + part // shares
    halves = (scales - odd).to(tl.pointer_type(tl.int32), bitcast=True)
    row += head * slots
    channel += head * slots
    deeper += head * 5
    here = tl.sum((block < total).to(tl.int64))
    moved = tl.zeros([], tl.int64)
    scores = ()
    for _ in tl.static_range(group):
        scores += (tl.zeros([size, lanes], tl.float32),)  # type: ignore[assignment]
    for depth in tl.static_range(4, 0, -1):
        for slot in tl.range(tl.load(deeper + depth), tl.load(deeper + depth - 1), num_stages=stages):
            at = tl.load(row + slot).to(tl.int64)
            source = planes + at * plane_channel
            words = ()
            for _ in tl.static_range(depth):
                words += (tl.load(source, mask=due, other=0) >> (part % shares * lanes),)  # type: ignore[assignment]
                source += plane_level
            first = odd + stored * scale_head + at * scale_channel
            if paired:
                two = tl.load(halves + (first >> 1) + pair, mask=pair * 2 < total, other=0)
                scale = tl.reshape(tl.join(_fp16(two), _fp16(two >> 16)), [width])
            else:
                element = first + block
                two = tl.load(halves + (element >> 1), mask=block < total, other=0)
                scale = _fp16(two >> ((element & 1) * 16).to(tl.int32))
            if counter is not None:
                moved += here * (8 * depth + 2)
            half = _half_value(words, one, quarter, size, lanes, depth)
            twice = 2 * tl.reshape(spread(scale, width, per_block, per_block), [size])
            c = tl.load(channel + slot)
            summed = ()
            for g in tl.static_range(group):
                weight = tl.load(query + g * query_group + c) * twice
                summed += (scores[g] + spread(weight, size, lanes, lanes) * half,)  # type: ignore[assignment]
            scores = summed
    for g in tl.static_range(group):
        peaks = None if maxima is None else maxima + (head * group + g) * capacity
        own = out + head * out_head + g * out_group
        write_scores(scores[g], own, peaks, tl.program_id(0) * size * lanes, total * 64, size, lanes)
    if counter is not None:
        tl.atomic_add(counter, moved, mask=head < shared, sem="relaxed")


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
    """Scores `[N H, G, 64 m]` fp32 of all tokens under one plan per row; nothing waits for the host.

    query: `[N H, G, d]` fp32, of N sequences that share the store (`kernels.sequences`) and have slots of their own.
    planes: `[H, c, 4, m]` int64 and scales `[H, c, m]` fp16, m contiguous, on the GPU or in pinned host memory; where
    the rows of scales begin at multiples of 4 bytes they are read in half the requests. rows: int32 `[N H, d]`, which
    of the c rows holds a slot (default: row j is channel j). blocks: int32 `[1]`, how many of the m blocks to scan
    (default all). out: `[N H, G, >= 64 m]`, written in place. maxima: fp32 `[N H, G, m]`, receives each block's largest
    score, +inf where one is not a number. counter: int64 `[1]`, the payload bytes read are added to it.
    `size` threads a program, a power of two from 32 on. Raises ValueError for tensors of another form.
    """
    heads, group, d = query.shape
    m = planes.shape[-1]
    lanes = 32 if group <= 4 else 16 if group <= 8 else 8
    out = query.new_empty(heads, group, BLOCK * m) if out is None else out
    _require(query.dtype == torch.float32 and query.stride(-1) == 1, "query is not fp32 with contiguous channels")
    _require(planes.dtype == torch.int64 and planes.shape[2] == DEPTH, "planes are not int64 `[H, c, 4, m]`")
    _require(scales.dtype == torch.float16, "scales are not fp16")
    _require(heads % planes.shape[0] == 0 and len(scales) == len(planes), "a store of other KV heads than the queries")
    _require(m == 1 or planes.stride(-1) == scales.stride(-1) == 1, "the words of a plane are not contiguous")
    _require(out.stride(-1) == 1 and out.shape[-1] >= BLOCK * m, f"out does not hold {BLOCK * m} contiguous scores")
    _require(slots.channel.shape == (heads, d) and slots.channel.is_contiguous(), "slots are not `[H, d]`")
    _require(
        maxima is None or (maxima.shape == (heads, group, m) and maxima.is_contiguous()), "maxima: not `[H, G, m]`"
    )
    if m == 0:
        return out
    words = planes.as_strided(planes.shape, (*planes.stride()[:-1], 1)).view(torch.int32)
    odd = scales.data_ptr() // scales.element_size() % 2
    _scan[(triton.cdiv(m * BLOCK, size * lanes), heads)](
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
        d,
        planes.shape[0],
        _ONE,
        _QUARTER,
        odd,
        query.stride(0),
        query.stride(1),
        words.stride(0),
        words.stride(1),
        words.stride(2),
        scales.stride(0),
        scales.stride(1),
        out.stride(0),
        out.stride(1),
        paired=odd == scales.stride(0) % 2 == scales.stride(1) % 2 == 0,
        group=group,
        size=size,
        lanes=lanes,
        stages=_AHEAD,
        num_warps=max(1, size // 32),
    )
    return out


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"plane scan: {otherwise}")
