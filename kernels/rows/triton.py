"""Union of a group's selections and fetch of its rows from pinned host memory, in Triton (see README.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.rows.reference import Union

_PART = 128  # entries of a list that one program looks at


@dataclass(frozen=True)
class Workspace:
    """The buffers of the union, reused by every call."""

    first_seen: Tensor  # int32 [H, G, k + 1], tokens of a part before an entry that are in no earlier head's list
    seen: Tensor  # int32 [H, G, parts], such tokens of the whole part


def workspace(heads: int, group: int, k: int, device: torch.device) -> Workspace:
    """The buffers for selections of up to k tokens a head."""
    first_seen = torch.empty(heads, group, k + 1, dtype=torch.int32, device=device)
    return Workspace(first_seen, first_seen.new_empty(heads, group, triton.cdiv(k, _PART)))


@jit
def _search(
    lists: tl.tensor, token: tl.tensor, k: tl.tensor, some: tl.tensor, steps: tl.constexpr, heads: tl.constexpr
) -> tl.tensor:
    """Where tokens `[width]` stand, or would, in each of the first `some` lists of a group, `[heads, width]`, and
    whether they are there.

    Ids are compared without sign, so that the -1 behind a list's last is larger than all.
    """
    head = tl.arange(0, heads)[:, None]
    known = head < some
    wanted = token.to(tl.uint32, bitcast=True)[None, :]
    low = tl.zeros([heads, token.shape[0]], tl.int32)
    high = low + k
    for _ in tl.static_range(steps):
        middle = (low + high) // 2
        here = tl.load(lists + head * k + middle, mask=known & (low < high), other=-1).to(tl.uint32, bitcast=True)
        below = (here < wanted) & (low < high)
        high = tl.where(below, high, middle)
        low = tl.where(below, middle + 1, low)
    found = tl.load(lists + head * k + low, mask=known & (low < k), other=-1)
    return low, (found == token[None, :]) & known & (token >= 0)[None, :]


@jit
def _union_first_seen(
    selected: tl.tensor,
    first_seen: tl.tensor,
    seen: tl.tensor,
    k: tl.tensor,
    room: tl.tensor,
    parts: tl.tensor,
    group: tl.constexpr,
    steps: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """For one part of one head's list: how many of its tokens before each entry, and in all, no earlier head has."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    own = (row % group).to(tl.int32)
    lists = selected + (row - own) * k
    at = part * width + tl.arange(0, width)
    token = tl.load(lists + own * k + at, mask=at < k, other=-1)
    _, there = _search(lists, token, k, own, steps, heads)
    fresh = ((token >= 0) & (tl.max(there.to(tl.int32), 0) == 0)).to(tl.int32)
    # At k stands what a token past the list's end finds before it in the part that k lies in: nothing, in a new one.
    tl.store(first_seen + row * room + at, tl.cumsum(fresh, 0) - fresh, mask=at <= k)
    if (part + 1) * width == k:
        tl.store(first_seen + row * room + k, 0)
    tl.store(seen + row * parts + part, tl.sum(fresh))


@jit
def _union_place(
    selected: tl.tensor,
    first_seen: tl.tensor,
    seen: tl.tensor,
    ids: tl.tensor,
    member: tl.tensor,
    count: tl.tensor,
    k: tl.tensor,
    room: tl.tensor,
    parts: tl.tensor,
    group: tl.constexpr,
    steps: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    every: tl.constexpr,
) -> None:
    """Write each selected token to its place in the union; heads that share a token write the same there."""
    row = tl.program_id(1).to(tl.int64)
    own = row % group
    kv = row // group
    lists = selected + kv * group * k
    at = tl.program_id(0) * width + tl.arange(0, width)
    token = tl.load(lists + own * k + at, mask=at < k, other=-1)
    where, there = _search(lists, token, k, group, steps, heads)
    head, part = tl.arange(0, heads)[:, None], tl.arange(0, every)[None, :]
    known = (head < group) & (part < (k + width - 1) // width)
    totals = seen + kv * group * parts + head * parts
    in_part = tl.load(totals + part, mask=known, other=0)
    counts = first_seen + kv * group * room
    before = tl.load(counts + head * room + where, mask=(head < group) & (token >= 0)[None, :], other=0)
    for earlier in range((k - 1) // width):
        before += tl.where(where // width > earlier, tl.load(totals + earlier, mask=head < group, other=0), 0)
    place = kv * (group * k) + tl.sum(before, 0)
    tl.store(ids + place, token, mask=token >= 0)
    tl.store(member + place, tl.sum(there.to(tl.int32) << head, 0), mask=token >= 0)
    if (tl.program_id(0) == 0) & (own == 0):
        tl.store(count + kv, tl.sum(in_part))


def empty(heads: int, group: int, k: int, device: torch.device) -> Union:
    """A union to write into."""
    ids = torch.empty(heads, group * k, dtype=torch.int32, device=device)
    return Union(ids, torch.empty_like(ids), torch.empty(heads, dtype=torch.int32, device=device))


def union(selected: Tensor, capacity: int, space: Workspace | None = None, out: Union | None = None) -> Union:
    """As the reference, of lists that are ascending: int32 `[H, G, k]`, contiguous, each token once, -1 past a list's
    last. Past the count nothing is written. `capacity` bounds the positions and costs nothing here.
    """
    heads, group, k = selected.shape
    if selected.dtype != torch.int32 or not selected.is_contiguous() or group > 31:
        raise ValueError("union: selections are not contiguous int32 `[H, G, k]` with G <= 31")
    space = workspace(heads, group, k, selected.device) if space is None else space
    out = empty(heads, group, k, selected.device) if out is None else out
    room, parts = space.first_seen.shape[-1], space.seen.shape[-1]
    if room <= k or space.first_seen.shape[:2] != selected.shape[:2]:
        raise ValueError(f"union: the workspace is `{list(space.first_seen.shape)}`, for `{[heads, group, k + 1]}`")
    shape = {"group": group, "steps": k.bit_length(), "heads": triton.next_power_of_2(group), "width": _PART}
    used = triton.cdiv(k, _PART)
    grid, sizes = (used, heads * group), (k, room, parts)
    _union_first_seen[grid](selected, space.first_seen, space.seen, *sizes, **shape, num_warps=4)
    _union_place[grid](
        selected,
        space.first_seen,
        space.seen,
        out.ids,
        out.member,
        out.count,
        *sizes,
        **shape,
        every=triton.next_power_of_2(used + 1),  # and the part that k lies in where a last one is full
        num_warps=4,
    )
    return out


@jit
def _copy(
    stored: tl.tensor,
    tail: tl.tensor,
    token: tl.tensor,
    begin: tl.tensor,
    stored_row: tl.tensor,
    tail_row: tl.tensor,
    live: tl.tensor,
    d: tl.constexpr,
    padded: tl.constexpr,
) -> tl.tensor:
    """Rows of tokens, from the store below `begin` and from the tail from there on."""
    column = tl.arange(0, padded)[None, :]
    old = (live & (token < begin))[:, None] & (column < d)
    new = (live & (token >= begin))[:, None] & (column < d)
    moved = tl.load(stored + token[:, None] * stored_row + column, mask=old, other=0, eviction_policy="evict_first")
    return tl.where(new, tl.load(tail + (token - begin)[:, None] * tail_row + column, mask=new, other=0), moved)


@jit
def _fetch_rows(
    stored_keys: tl.tensor,
    stored_values: tl.tensor,
    tail_keys: tl.tensor,
    tail_values: tl.tensor,
    ids: tl.tensor,
    count: tl.tensor,
    out_keys: tl.tensor,
    out_values: tl.tensor,
    counter: tl.tensor,
    first_of_tail: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    tail_key_head: tl.tensor,
    tail_key_row: tl.tensor,
    tail_value_head: tl.tensor,
    tail_value_row: tl.tensor,
    out_key_head: tl.tensor,
    out_key_row: tl.tensor,
    out_value_head: tl.tensor,
    out_value_row: tl.tensor,
    width: tl.tensor,
    shared: tl.tensor,
    told: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * many + tl.arange(0, many)
    total = tl.load(count + head)
    if tl.program_id(0) * many >= total:
        return
    begin = tl.zeros([], tl.int64) + (tl.load(first_of_tail) if told else first_of_tail)
    live = slot < total
    token = tl.load(ids + head * width + slot, mask=live, other=0).to(tl.int64)
    inside = live[:, None] & (tl.arange(0, padded) < d)[None, :]
    to = slot.to(tl.int64)[:, None]
    column = tl.arange(0, padded)[None, :]
    key = _copy(
        stored_keys + head % shared * key_head,
        tail_keys + head * tail_key_head,
        token,
        begin,
        key_row,
        tail_key_row,
        live,
        d,
        padded,
    )
    if stored_values is not None:  # asked for before the keys are written, so that both are on their way
        value = _copy(
            stored_values + head % shared * value_head,
            tail_values + head * tail_value_head,
            token,
            begin,
            value_row,
            tail_value_row,
            live,
            d,
            padded,
        )
        tl.store(out_values + head * out_value_head + to * out_value_row + column, value, mask=inside)
    tl.store(out_keys + head * out_key_head + to * out_key_row + column, key, mask=inside)
    if counter is not None:
        size: tl.constexpr = stored_keys.dtype.element_ty.primitive_bitwidth // 8 * d
        sides: tl.constexpr = 1 if stored_values is None else 2
        counts = head < shared
        old = tl.sum((live & (token < begin)).to(tl.int64)) * (size * sides)
        new = tl.sum((live & (token >= begin)).to(tl.int64)) * (size * sides)
        tl.atomic_add(counter, old, mask=counts, sem="relaxed")
        tl.atomic_add(counter + 1, new, mask=counts, sem="relaxed")


def fetch(
    rows: Union,
    stored: Tensor,
    tail: Tensor,
    first_of_tail: int | Tensor,
    *,
    out: Tensor | None = None,
    counter: Tensor | None = None,
    many: int = 32,
) -> Tensor:
    """As the reference, and rows past the count are left as they are.

    stored: `[H, n, d]`, on the GPU or in pinned host memory, tail: `[N H, t, d]` on the GPU, of one type, d contiguous
    (keys and values may be halves of one record). first_of_tail: a number, or int32 `[1]` on the GPU. out: `[H, >= U,
    d]`. counter: int64 `[2]`, the bytes read of stored and of tail are added to it. `many` rows a program.
    """
    out = stored.new_empty(*rows.ids.shape, stored.shape[-1], device=rows.ids.device) if out is None else out
    _run(rows, (stored, None), (tail, None), first_of_tail, (out, None), counter, many)
    return out


def fetch_records(
    rows: Union,
    keys: Tensor,
    values: Tensor,
    tail: Tensor,
    first_of_tail: int | Tensor,
    *,
    out: Tensor | None = None,
    counter: Tensor | None = None,
    many: int = 32,
) -> Tensor:
    """Keys and values of the union in one launch, as records `[N H, U, 2, d]`, K beside V.

    keys, values: `[H, n, d]`, as `stored` of `fetch`, of a record each or apart. tail: records `[N H, t, 2, d]`. out:
    `[N H, >= U, 2, d]`. The rest as in `fetch`.
    """
    out = keys.new_empty(*rows.ids.shape, 2, keys.shape[-1], device=rows.ids.device) if out is None else out
    near, into = (tail[:, :, 0], tail[:, :, 1]), (out[:, :, 0], out[:, :, 1])
    _run(rows, (keys, values), near, first_of_tail, into, counter, many)
    return out


def _run(
    rows: Union,
    stored: tuple[Tensor, Tensor | None],
    tail: tuple[Tensor, Tensor | None],
    first_of_tail: int | Tensor,
    out: tuple[Tensor, Tensor | None],
    counter: Tensor | None,
    many: int,
) -> None:
    heads, width = rows.ids.shape
    d = stored[0].shape[-1]
    for far, near, into in zip(stored, tail, out, strict=True):
        if far is None or near is None or into is None:
            continue
        one_type = far.dtype == near.dtype == into.dtype == stored[0].dtype
        if not (one_type and far.stride(-1) == near.stride(-1) == into.stride(-1) == 1):
            raise ValueError("row fetch: stored, tail and out are not of one type with contiguous channels")
        another = far.shape[::2] != stored[0].shape[::2] or heads % far.shape[0]
        if into.shape[1] < width or near.shape[::2] != (heads, d) or another:
            raise ValueError(f"row fetch: out holds {into.shape[1]} rows of {width}, or the tail has another shape")
    flat = [side.stride(i) if side is not None else 0 for pair in (stored, tail, out) for side in pair for i in (0, 1)]
    _fetch_rows[(triton.cdiv(width, many), heads)](
        *stored,
        *tail,
        rows.ids,
        rows.count,
        *out,
        counter,
        first_of_tail,
        *flat,
        width,
        stored[0].shape[0],
        told=isinstance(first_of_tail, Tensor),
        d=d,
        padded=triton.next_power_of_2(d),
        many=many,
        num_warps=4,
    )
