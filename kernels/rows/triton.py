"""Union of a group's selections by bitmap, and fetch of its rows from pinned host memory, in Triton (see README.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.rows.reference import Union

_WORDS = 1024  # bitmap words a program counts


@dataclass(frozen=True)
class Workspace:
    """Buffers of the union, reused by every call."""

    bitmap: Tensor  # int32 [H, G, words], one bit a token
    counts: Tensor  # int32 [H, chunks of words]
    before: Tensor  # int32 [H, words], tokens of the union in earlier words


def workspace(heads: int, group: int, capacity: int, device: torch.device) -> Workspace:
    """Buffers for positions below `capacity`: (G + 1) / 8 bytes a token and head."""
    words = triton.cdiv(capacity, 32)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    return Workspace(empty(heads, group, words), empty(heads, triton.cdiv(words, _WORDS)), empty(heads, words))


@jit
def _ones(word: tl.tensor) -> tl.tensor:
    """Number of set bits of int32 words."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@jit
def _mark(selected: tl.tensor, bitmap: tl.tensor, words: tl.tensor, k: tl.tensor, width: tl.constexpr) -> None:
    """Set the bits of one query head's selection."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * width + tl.arange(0, width)
    token = tl.load(selected + row * k + at, mask=at < k, other=-1)
    bit = tl.full([width], 1, tl.int32) << (token & 31)
    tl.atomic_or(bitmap + row * words + (token >> 5), bit, mask=token >= 0, sem="relaxed")


@jit
def _any_head(
    bitmap: tl.tensor, head: tl.tensor, word: tl.tensor, words: tl.tensor, live: tl.tensor, group: tl.constexpr
) -> tl.tensor:
    """Words of the union's bitmap."""
    joint = tl.load(bitmap + head * group * words + word, mask=live, other=0)
    for g in tl.static_range(1, group):
        joint |= tl.load(bitmap + (head * group + g) * words + word, mask=live, other=0)
    return joint


@jit
def _chunk_counts(
    bitmap: tl.tensor, counts: tl.tensor, words: tl.tensor, group: tl.constexpr, width: tl.constexpr
) -> None:
    """Tokens of the union in each chunk of words."""
    head, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    word = chunk * width + tl.arange(0, width)
    joint = _any_head(bitmap, head, word, words, word < words, group)
    tl.store(counts + head * tl.num_programs(0) + chunk, tl.sum(_ones(joint)))


@jit
def _word_places(
    bitmap: tl.tensor,
    counts: tl.tensor,
    before: tl.tensor,
    total: tl.tensor,
    words: tl.tensor,
    group: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
) -> None:
    """Tokens of the union before each word, and in all."""
    head, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    every = tl.arange(0, chunks)
    count = tl.load(counts + head * tl.num_programs(0) + every, mask=every < tl.num_programs(0), other=0)
    word = chunk * width + tl.arange(0, width)
    joint = _any_head(bitmap, head, word, words, word < words, group)
    ones = _ones(joint)
    place = tl.sum(tl.where(every < chunk, count, 0)) + tl.cumsum(ones, 0) - ones
    tl.store(before + head * words + word, place, mask=word < words)
    if chunk == 0:
        tl.store(total + head, tl.sum(count))


@jit
def _place(
    selected: tl.tensor,
    bitmap: tl.tensor,
    before: tl.tensor,
    ids: tl.tensor,
    member: tl.tensor,
    words: tl.tensor,
    k: tl.tensor,
    group: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Write each selected token to its place in the union; heads that share a token write the same there."""
    row = tl.program_id(1).to(tl.int64)
    head = row // group
    at = tl.program_id(0) * width + tl.arange(0, width)
    token = tl.load(selected + row * k + at, mask=at < k, other=-1)
    live = token >= 0
    word, bit = token >> 5, token & 31
    joint = tl.zeros([width], tl.int32)
    heads = tl.zeros([width], tl.int32)
    for g in tl.static_range(group):
        own = tl.load(bitmap + (head * group + g) * words + word, mask=live, other=0)
        joint |= own
        heads |= ((own >> bit) & 1) << g
    lower = joint & ((tl.full([width], 1, tl.int32) << bit) - 1)
    place = tl.load(before + head * words + word, mask=live, other=0) + _ones(lower)
    tl.store(ids + head * (group * k) + place, token, mask=live)
    tl.store(member + head * (group * k) + place, heads, mask=live)


def empty(heads: int, group: int, k: int, device: torch.device) -> Union:
    """A union to write into."""
    ids = torch.empty(heads, group * k, dtype=torch.int32, device=device)
    return Union(ids, torch.empty_like(ids), torch.empty(heads, dtype=torch.int32, device=device))


def union(selected: Tensor, capacity: int, space: Workspace | None = None, out: Union | None = None) -> Union:
    """As the reference: int32 `[H, G, k]`, contiguous, -1 where there is none. Past the count nothing is written."""
    heads, group, k = selected.shape
    if selected.dtype != torch.int32 or not selected.is_contiguous() or group > 31:
        raise ValueError("union: selections are not contiguous int32 `[H, G, k]` with G <= 31")
    space = workspace(heads, group, capacity, selected.device) if space is None else space
    out = empty(heads, group, k, selected.device) if out is None else out
    words = space.bitmap.shape[-1]
    if words < triton.cdiv(capacity, 32) or space.bitmap.shape[:2] != selected.shape[:2]:
        raise ValueError(f"union: the workspace is for `{list(space.bitmap.shape)}` words, not for {capacity} tokens")
    chunks = space.counts.shape[-1]
    lanes = min(512, triton.next_power_of_2(k))
    by_token, by_word = (triton.cdiv(k, lanes), heads * group), (chunks, heads)
    space.bitmap.zero_()
    _mark[by_token](selected, space.bitmap, words, k, width=lanes)
    _chunk_counts[by_word](space.bitmap, space.counts, words, group=group, width=_WORDS)
    _word_places[by_word](
        space.bitmap,
        space.counts,
        space.before,
        out.count,
        words,
        group=group,
        width=_WORDS,
        chunks=triton.next_power_of_2(chunks),
    )
    _place[by_token](selected, space.bitmap, space.before, out.ids, out.member, words, k, group=group, width=lanes)
    return out


@jit
def _fetch(
    stored: tl.tensor,
    tail: tl.tensor,
    ids: tl.tensor,
    count: tl.tensor,
    out: tl.tensor,
    counter: tl.tensor,
    first_of_tail: tl.tensor,
    stored_head: tl.tensor,
    stored_row: tl.tensor,
    tail_head: tl.tensor,
    tail_row: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    width: tl.tensor,
    d: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * many + tl.arange(0, many)
    total = tl.load(count + head)
    if tl.program_id(0) * many >= total:
        return
    live = slot < total
    token = tl.load(ids + head * width + slot, mask=live, other=0).to(tl.int64)
    column = tl.arange(0, padded)[None, :]
    old = (live & (token < first_of_tail))[:, None] & (column < d)
    new = (live & (token >= first_of_tail))[:, None] & (column < d)
    far = stored + head * stored_head + token[:, None] * stored_row + column
    near = tail + head * tail_head + (token - first_of_tail)[:, None] * tail_row + column
    moved = tl.load(far, mask=old, other=0, eviction_policy="evict_first")
    moved = tl.where(new, tl.load(near, mask=new, other=0), moved)
    tl.store(out + head * out_head + slot.to(tl.int64)[:, None] * out_row + column, moved, mask=old | new)
    if counter is not None:
        size: tl.constexpr = stored.dtype.element_ty.primitive_bitwidth // 8
        tl.atomic_add(counter, tl.sum(tl.sum(old.to(tl.int64), 1)) * size, sem="relaxed")
        tl.atomic_add(counter + 1, tl.sum(tl.sum(new.to(tl.int64), 1)) * size, sem="relaxed")


def fetch(
    rows: Union,
    stored: Tensor,
    tail: Tensor,
    first_of_tail: int,
    *,
    out: Tensor | None = None,
    counter: Tensor | None = None,
    many: int = 32,
) -> Tensor:
    """As the reference, and rows past the count are left as they are.

    stored: `[H, n, d]`, on the GPU or in pinned host memory, tail: `[H, t, d]` on the GPU, of one type, d contiguous
    (keys and values may be halves of one record). out: `[H, >= U, d]`. counter: int64 `[2]`, the bytes read of stored
    and of tail are added to it. `many` rows a program.
    """
    heads, width = rows.ids.shape
    d = stored.shape[-1]
    out = stored.new_empty(heads, width, d, device=rows.ids.device) if out is None else out
    if not (stored.dtype == tail.dtype == out.dtype and stored.stride(-1) == tail.stride(-1) == out.stride(-1) == 1):
        raise ValueError("row fetch: stored, tail and out are not of one type with contiguous channels")
    if out.shape[1] < width or tail.shape[::2] != stored.shape[::2]:
        raise ValueError(f"row fetch: out holds {out.shape[1]} rows of {width}, or the tail has another shape")
    _fetch[(triton.cdiv(width, many), heads)](
        stored,
        tail,
        rows.ids,
        rows.count,
        out,
        counter,
        first_of_tail,
        stored.stride(0),
        stored.stride(1),
        tail.stride(0),
        tail.stride(1),
        out.stride(0),
        out.stride(1),
        width,
        d=d,
        padded=triton.next_power_of_2(d),
        many=many,
        num_warps=4,
    )
    return out
