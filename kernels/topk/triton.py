"""Exact top-k in Triton: several programs a row, no sort, no buffer that a crowded row could overflow (see README.md).

Scores are compared as int32 keys in the order of the floats. The k-th largest of the maxima of blocks of tokens is a
lower bound of the k-th largest score, and so is any line that k maxima reach; only blocks that reach it are read again.
What is above it in them, and the first k that equal it, are collected in index order, and one program a row finds the
exact k-th largest among that by narrowing the range of its key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes import BLOCK
from leadline.kernels.topk.narrowing import key_of, narrowed, quarters, reaching

_WIDEST = 16384  # block maxima that one program holds
_CHUNK = 4096  # scores that a program reads at a time
_PROGRAMS = 32  # a row, at most
_FINEST = 8  # tokens of a block, at least
_MAXIMA = 4  # blocks for each selected token, where they can be made so small


@dataclass(frozen=True)
class Workspace:
    """Buffers of one size, reused by every call: rows R, capacity tokens, in blocks of `unit` tokens whose maxima are
    taken and spans of whole blocks that are looked into. `invalid` becomes 1 where a candidate that was looked at is
    not a number (such a candidate ranks above +inf); nothing resets it.
    """

    capacity: int
    unit: int
    span: int
    peaks: Tensor  # fp32 [R, units]
    blocks: Tensor  # int32 [R, spans], those that reach the bound
    bound: Tensor  # int32 [R, 2]: the bound, the number of spans that reach it
    counts: Tensor  # int32 [R, 2, chunks], candidates above the bound and equal to it
    keys: Tensor  # int32 [R, capacity]
    index: Tensor  # int32 [R, capacity]
    invalid: Tensor  # int32 [1]


def workspace(rows: int, capacity: int, device: torch.device, k: int = 0) -> Workspace:
    """Buffers for `rows` rows of up to `capacity` scores: about 8 bytes a score. k: how many will be selected, which
    makes blocks smaller than the store's where a row has few blocks for so many; selections do not depend on it.
    """
    unit = BLOCK
    while unit > _FINEST and capacity < _MAXIMA * unit * k:
        unit //= 2
    span = unit
    while triton.cdiv(capacity, span) > _WIDEST:
        span *= 2

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    spans = triton.cdiv(capacity, span)
    return Workspace(
        capacity=capacity,
        unit=unit,
        span=span,
        peaks=empty(rows, triton.cdiv(capacity, unit), dtype=torch.float32),
        blocks=empty(rows, spans),
        bound=empty(rows, 2),
        counts=empty(rows, 2, triton.cdiv(spans * span, _CHUNK)),
        keys=empty(rows, spans * span),
        index=empty(rows, spans * span),
        invalid=torch.zeros(1, dtype=torch.int32, device=device),
    )


@jit
def _topk_peaks(
    scores: tl.tensor,
    lengths: tl.tensor,
    peaks: tl.tensor,
    row_stride: tl.tensor,
    length_stride: tl.tensor,
    blocks: tl.tensor,
    unit: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """The largest score of each block of `unit` tokens of a row, +inf where one is not a number."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + row * length_stride)
    first = tl.program_id(0) * many
    if first * unit >= n:
        return
    block = first + tl.arange(0, many)
    token = block[:, None] * unit + tl.arange(0, unit)[None, :]
    score = tl.load(scores + row * row_stride + token, mask=token < n, other=float("-inf"))
    score = tl.where(score == score, score, float("inf"))
    tl.store(peaks + row * blocks + block, tl.max(score, 1), mask=block < blocks)


@jit
def _topk_bound(
    peaks: tl.tensor,
    covered: tl.tensor,
    lengths: tl.tensor,
    bound: tl.tensor,
    blocks: tl.tensor,
    peak_stride: tl.tensor,
    length_stride: tl.tensor,
    block_stride: tl.tensor,
    known: tl.tensor,
    wanted: tl.tensor,
    k: tl.tensor,
    sink: tl.tensor,
    local: tl.tensor,
    unit: tl.constexpr,
    fold: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """A line that at least `wanted` of the maxima reach of spans that hold candidates only, and not many more, and the
    list of spans to look into.
    """
    span: tl.constexpr = unit * fold
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + row * length_stride)
    if covered is not None:
        known = tl.minimum(known, tl.load(covered))
    block = tl.arange(0, width)
    sure = (block * span >= sink) & (block * span + span <= n - local) & (block * fold + fold <= known)
    part = block[:, None] * fold + tl.arange(0, fold)[None, :]
    peak = tl.load(peaks + row * peak_stride + part, mask=sure[:, None], other=float("-inf"))
    key = tl.where(sure, tl.max(key_of(peak), 1), -2147483648)
    low = tl.min(tl.where(sure, key, 2147483647)).to(tl.int64)
    high = tl.max(key).to(tl.int64)
    if tl.sum(sure.to(tl.int32)) < wanted:
        low = high * 0 - 2147483648
        high = low
    enough = wanted + wanted // 8
    while low < high:
        first, second, third = quarters(low, high)
        counts = reaching(key, first, second, third)
        low, high = narrowed(low, high, (first, second, third), counts, wanted, enough)
    spans = tl.where(n > k, (n + span - 1) // span, 0)
    reach = ((key >= low.to(tl.int32)) | (sure == 0)) & (block < spans)
    place = tl.cumsum(reach.to(tl.int32), 0) - 1
    tl.store(blocks + row * block_stride + place, block, mask=reach)
    tl.store(bound + row * 2, low.to(tl.int32))
    tl.store(bound + row * 2 + 1, tl.sum(reach.to(tl.int32)))


@jit
def _look(
    scores: tl.tensor,
    blocks: tl.tensor,
    chunk: tl.tensor,
    reaching: tl.tensor,
    n: tl.tensor,
    sink: tl.tensor,
    local: tl.tensor,
    span: tl.constexpr,
    width: tl.constexpr,
) -> tl.tensor:
    """A chunk of the listed spans: positions, scores, and which of them are candidates."""
    element = tl.arange(0, width)
    listed = chunk * (width // span) + element // span
    token = tl.load(blocks + listed, mask=listed < reaching, other=0) * span + element % span
    candidate = (listed < reaching) & (token >= sink) & (token < n - local)
    return token, tl.load(scores + token, mask=candidate, other=0.0), candidate


@jit
def _topk_count(
    scores: tl.tensor,
    lengths: tl.tensor,
    bound: tl.tensor,
    blocks: tl.tensor,
    counts: tl.tensor,
    invalid: tl.tensor,
    row_stride: tl.tensor,
    length_stride: tl.tensor,
    block_stride: tl.tensor,
    count_stride: tl.tensor,
    sink: tl.tensor,
    local: tl.tensor,
    span: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """How many candidates of each chunk are above the bound, and how many equal it."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + row * length_stride)
    least, reaching = tl.load(bound + row * 2), tl.load(bound + row * 2 + 1)
    chunk = tl.program_id(0)
    while chunk * (width // span) < reaching:
        _, score, candidate = _look(
            scores + row * row_stride, blocks + row * block_stride, chunk, reaching, n, sink, local, span, width
        )
        key = key_of(score)
        own = counts + row * count_stride + chunk
        tl.store(own, tl.sum((candidate & (key > least)).to(tl.int32)))
        tl.store(own + count_stride // 2, tl.sum((candidate & (key == least)).to(tl.int32)))
        if tl.max((candidate & (score != score)).to(tl.int32)) > 0:
            tl.atomic_max(invalid, 1, sem="relaxed")
        chunk += tl.num_programs(0)


@jit
def _topk_collect(
    scores: tl.tensor,
    lengths: tl.tensor,
    bound: tl.tensor,
    blocks: tl.tensor,
    counts: tl.tensor,
    keys: tl.tensor,
    index: tl.tensor,
    row_stride: tl.tensor,
    length_stride: tl.tensor,
    block_stride: tl.tensor,
    count_stride: tl.tensor,
    key_stride: tl.tensor,
    wanted: tl.tensor,
    sink: tl.tensor,
    local: tl.tensor,
    span: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
) -> None:
    """The candidates above the bound and the first `wanted` that equal it, their keys and positions, in the order of
    their positions.
    """
    row = tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + row * length_stride)
    least, reaching = tl.load(bound + row * 2), tl.load(bound + row * 2 + 1)
    every = tl.arange(0, chunks)
    chunk = tl.program_id(0)
    while chunk * (width // span) < reaching:
        own = counts + row * count_stride
        above = tl.sum(tl.load(own + every, mask=every < chunk, other=0))
        equal = tl.sum(tl.load(own + count_stride // 2 + every, mask=every < chunk, other=0))
        if (equal < wanted) | (tl.load(own + chunk) > 0):
            token, score, candidate = _look(
                scores + row * row_stride, blocks + row * block_stride, chunk, reaching, n, sink, local, span, width
            )
            key = key_of(score)
            higher = candidate & (key > least)
            level = candidate & (key == least)
            nth = equal + tl.cumsum(level.to(tl.int32), 0)
            place = above + tl.cumsum(higher.to(tl.int32), 0) + tl.minimum(nth, wanted) - 1
            kept = higher | (level & (nth <= wanted))
            tl.store(keys + row * key_stride + place, key, mask=kept)
            tl.store(index + row * key_stride + place, token, mask=kept)
        chunk += tl.num_programs(0)


@jit
def _topk_choose(
    lengths: tl.tensor,
    bound: tl.tensor,
    counts: tl.tensor,
    keys: tl.tensor,
    index: tl.tensor,
    ids: tl.tensor,
    length_stride: tl.tensor,
    count_stride: tl.tensor,
    key_stride: tl.tensor,
    wanted: tl.tensor,
    k: tl.tensor,
    sink: tl.tensor,
    local: tl.tensor,
    span: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    chunk: tl.constexpr,
) -> None:
    """Sinks, the `wanted` best of what was collected (ties to the smallest position) and the local window, ascending;
    every token and then -1 where there are no more than k.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + row * length_stride)
    keys += row * key_stride
    index += row * key_stride
    ids += row * k
    lane = tl.arange(0, width)
    chosen = n > k
    for start in range(0, k, width):  # what is in whatever its score
        at = start + lane
        forced = tl.where(at < sink, at, n - k + at)
        every = tl.where(at < n, at, -1)
        open_to_scores = (at >= sink) & (at < sink + tl.where(chosen, wanted, 0))
        tl.store(ids + at, tl.where(chosen, forced, every), mask=(at < k) & (open_to_scores == 0))
    if chosen & (wanted > 0):
        every = tl.arange(0, chunks)
        used = (tl.load(bound + row * 2 + 1) * span + chunk - 1) // chunk
        own = counts + row * count_stride + every
        level = tl.sum(tl.load(own + count_stride // 2, mask=every < used, other=0))
        collected = tl.sum(tl.load(own, mask=every < used, other=0)) + tl.minimum(level, wanted)
        low = tl.load(bound + row * 2).to(tl.int64)
        high = low
        begin = tl.load(keys + lane, mask=lane < collected, other=-2147483648)  # most rows hold no more
        if collected > wanted:
            high = tl.maximum(high, tl.max(begin).to(tl.int64))
            for start in range(width, collected, width):
                key = tl.load(keys + start + lane, mask=start + lane < collected, other=-2147483648)
                high = tl.maximum(high, tl.max(key).to(tl.int64))
        while low < high:
            first, second, third = quarters(low, high)
            one, two, three = reaching(begin, first, second, third)
            for start in range(width, collected, width):
                key = tl.load(keys + start + lane, mask=start + lane < collected, other=-2147483648)
                more = reaching(key, first, second, third)
                one, two, three = one + more[0], two + more[1], three + more[2]
            low, high = narrowed(low, high, (first, second, third), (one, two, three), wanted, wanted)
        line = low.to(tl.int32)
        room = wanted
        for start in range(0, collected, width):
            live = start + lane < collected
            key = tl.load(keys + start + lane, mask=live, other=-2147483648)
            room -= tl.sum((live & (key > line)).to(tl.int32))
        written = sink
        for start in range(0, collected, width):
            live = start + lane < collected
            key = tl.load(keys + start + lane, mask=live, other=-2147483648)
            equal = (live & (key == line)).to(tl.int32)
            take = (live & (key > line)) | ((equal > 0) & (tl.cumsum(equal, 0) <= room))
            place = written + tl.cumsum(take.to(tl.int32), 0) - 1
            tl.store(ids + place, tl.load(index + start + lane, mask=take, other=0), mask=take)
            room -= tl.sum(equal)
            written += tl.sum(take.to(tl.int32))


def select_ids(
    scores: Tensor,
    lengths: Tensor,
    *,
    k: int,
    sink: int,
    local: int,
    space: Workspace | None = None,
    peaks: Tensor | None = None,
    covered: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The selected tokens of every row, ascending: int32 `[R, k]`; -1 past the last where a row has fewer than k.

    scores: fp32 `[R, capacity]`, contiguous in the last dimension. lengths: int32 `[R]` (or `[1]`), the tokens a row
    has; what lies past them is not read. Selection is that of the reference: the first `sink`, the last `local`, the
    best of the rest, ties to the smallest position; everything where a row has no more than k. peaks: fp32 `[R, b]`,
    the maxima of the first b 64-token blocks (+inf for NaN) where the scan has written them, used where the workspace
    has no smaller blocks; covered: int32 `[1]`, how many of them hold. Candidates that are NaN set `space.invalid`.
    Nothing waits for the host.
    """
    if k < sink + local:
        raise ValueError(f"k={k} counts sink={sink} and local={local} tokens and must be at least their sum")
    if scores.dtype != torch.float32 or scores.stride(-1) != 1:
        raise ValueError("top-k: scores are not fp32 with contiguous rows")
    rows, capacity = scores.shape
    space = workspace(rows, capacity, scores.device) if space is None else space
    if space.capacity < capacity or space.bound.shape[0] < rows:
        raise ValueError(f"top-k: the workspace holds {space.capacity} scores a row, the rows have {capacity}")
    out = torch.empty(rows, k, dtype=torch.int32, device=scores.device) if out is None else out
    step = 0 if lengths.numel() == 1 else 1
    wanted = k - sink - local
    unit, span, chunks = space.unit, space.span, triton.next_power_of_2(space.counts.shape[2])
    programs = min(_PROGRAMS, space.counts.shape[2])
    window = (sink, local)
    if wanted and k < capacity:
        if peaks is None or unit < BLOCK:
            peaks, covered = space.peaks, None
            many = _CHUNK // unit
            grid = (triton.cdiv(peaks.shape[1], many), rows)
            _topk_peaks[grid](scores, lengths, peaks, scores.stride(0), step, peaks.shape[1], unit, many, num_warps=4)
        width = triton.next_power_of_2(space.blocks.shape[1])
        _topk_bound[(rows,)](
            peaks,
            covered,
            lengths,
            space.bound,
            space.blocks,
            peaks.stride(0),
            step,
            space.blocks.stride(0),
            peaks.shape[1],
            wanted,
            k,
            *window,
            unit=unit,
            fold=span // unit,
            width=width,
            num_warps=16 if width > 4096 else 4,
        )
        strides = (scores.stride(0), step, space.blocks.stride(0), space.counts.stride(0))
        read = (scores, lengths, space.bound, space.blocks, space.counts)
        _topk_count[(programs, rows)](*read, space.invalid, *strides, *window, span=span, width=_CHUNK, num_warps=8)
        _topk_collect[(programs, rows)](
            *read,
            space.keys,
            space.index,
            *strides,
            space.keys.stride(0),
            wanted,
            *window,
            span=span,
            width=_CHUNK,
            chunks=chunks,
            num_warps=8,
        )
    _topk_choose[(rows,)](
        lengths,
        space.bound,
        space.counts,
        space.keys,
        space.index,
        out,
        step,
        space.counts.stride(0),
        space.keys.stride(0),
        wanted,
        k,
        *window,
        span=span,
        width=_CHUNK,
        chunks=chunks,
        chunk=_CHUNK,
        num_warps=8,
    )
    return out
