"""Attention over a fetched union, or over every row, in Triton: splits of the rows, merged by log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.rows import Union

_AT_ONCE = 32  # rows a program attends to at a time
_MANY = 32  # splits merged at a time
_TAIL_SHARE = 64  # tail rows of a split, where there are few enough


@dataclass(frozen=True)
class Workspace:
    """What each split of the rows leaves behind, fp32: its largest logit, its mass below that, its weighted values."""

    peak: Tensor  # [H, splits, G]
    mass: Tensor  # [H, splits, G]
    sums: Tensor  # [H, splits, G, d]


def workspace(heads: int, group: int, d: int, splits: int, device: torch.device) -> Workspace:
    """Buffers for `splits` parts of the rows."""
    peak = torch.empty(heads, splits, group, dtype=torch.float32, device=device)
    return Workspace(peak, torch.empty_like(peak), peak.new_empty(heads, splits, group, d))


@jit
def _absorb(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    member: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    sums: tl.tensor,
    scaling: tl.tensor,
    query_group: tl.tensor,
    key_row: tl.tensor,
    value_row: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    queries: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
    policy: tl.constexpr,
) -> None:
    """One split of one KV head, rows begin to end - 1; `member` says whose they are, where not everyone's. A split with
    no row of a head leaves peak -inf, mass 0 and sums 0.

    Products go through tensor cores, each factor in two parts of TF32, which is close to fp32's precision.
    """
    head, column = tl.arange(0, queries), tl.arange(0, padded)
    known, inside = head < group, column < d
    asked_at = query + head[:, None] * query_group + column[None, :]
    asked = tl.load(asked_at, mask=known[:, None] & inside[None, :], other=0.0).to(tl.float32)
    peak, mass = tl.full([queries], float("-inf"), tl.float32), tl.zeros([queries], tl.float32)
    total = tl.zeros([queries, padded], tl.float32)
    for start in range(begin, end, many):
        row = start + tl.arange(0, many)
        live = row < end
        at = row.to(tl.int64)[:, None]
        read = live[:, None] & inside[None, :]
        key = tl.load(keys + at * key_row + column[None, :], mask=read, other=0.0, eviction_policy=policy)
        value = tl.load(values + at * value_row + column[None, :], mask=read, other=0.0, eviction_policy=policy)
        logit = scaling * tl.dot(asked, tl.trans(key.to(tl.float32)), input_precision="tf32x3")
        own = live[None, :]
        if member is not None:
            owners = tl.load(member + row, mask=live, other=0)
            own = ((owners[None, :] >> head[:, None]) & 1) > 0
        logit = tl.where(own & known[:, None], logit, float("-inf"))
        highest = tl.maximum(peak, tl.max(logit, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weight = tl.exp(logit - base[:, None])
        kept = tl.exp(peak - base)
        peak = highest
        mass = mass * kept + tl.sum(weight, 1)
        added = tl.dot(weight, value.to(tl.float32), input_precision="tf32x3")
        total = total * kept[:, None] + added
    tl.store(peaks + head, peak, mask=known)
    tl.store(masses + head, mass, mask=known)
    tl.store(sums + head[:, None] * d + column[None, :], total, mask=known[:, None] & inside[None, :])


@jit
def _attend_rows(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    member: tl.tensor,
    count: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    sums: tl.tensor,
    scaling: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    width: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    queries: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """One split of the fetched rows: their count is divided evenly."""
    split, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.load(count + head)
    share = (rows + tl.num_programs(0) - 1) // tl.num_programs(0)
    place = (head * tl.num_programs(0) + split) * group
    _absorb(
        query + head * query_head,
        keys + head * key_head,
        values + head * value_head,
        member + head * width,
        split * share,
        tl.minimum(rows, (split + 1) * share),
        peaks + place,
        masses + place,
        sums + place * d,
        scaling,
        query_group,
        key_row,
        value_row,
        group,
        d,
        queries,
        padded,
        many,
        "",
    )


@jit
def _attend_all(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tail_keys: tl.tensor,
    tail_values: tl.tensor,
    first: tl.tensor,
    length: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    sums: tl.tensor,
    counter: tl.tensor,
    scaling: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    tail_head: tl.tensor,
    tail_row: tl.tensor,
    splits: tl.tensor,
    tail_share: tl.tensor,
    shared: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    queries: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """One split of every row: the first `splits` programs divide the stored rows, the others the tail's."""
    split, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    place = (head * tl.num_programs(0) + split) * group
    stored = tl.load(first)
    size: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8 * d * 2
    if split < splits:
        share = ((stored + splits - 1) // splits + many - 1) // many * many
        begin = tl.minimum(stored, split * share)
        end = tl.minimum(stored, begin + share)
        _absorb(
            query + head * query_head,
            keys + head % shared * key_head,
            values + head % shared * value_head,
            None,
            begin,
            end,
            peaks + place,
            masses + place,
            sums + place * d,
            scaling,
            query_group,
            key_row,
            value_row,
            group,
            d,
            queries,
            padded,
            many,
            "evict_first",
        )
        if counter is not None:
            tl.atomic_add(counter, (end - begin).to(tl.int64) * size, mask=head < shared, sem="relaxed")
    else:
        rows = tl.load(length) - stored
        begin = tl.minimum(rows, (split - splits) * tail_share)
        end = tl.minimum(rows, begin + tail_share)
        _absorb(
            query + head * query_head,
            tail_keys + head * tail_head,
            tail_values + head * tail_head,
            None,
            begin,
            end,
            peaks + place,
            masses + place,
            sums + place * d,
            scaling,
            query_group,
            tail_row,
            tail_row,
            group,
            d,
            queries,
            padded,
            many,
            "",
        )
        if counter is not None:
            tl.atomic_add(counter + 1, (end - begin).to(tl.int64) * size, mask=head < shared, sem="relaxed")


@jit
def _attend_merge(
    peaks: tl.tensor,
    masses: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    splits: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
    every: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """Splits of one query head into its output and the log of its mass."""
    row = tl.program_id(0).to(tl.int64)
    first = row // group * splits * group + row % group
    split = tl.arange(0, every)
    peak = tl.load(peaks + first + split * group, mask=split < splits, other=float("-inf"))
    highest = tl.max(peak, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp(peak - base)
    mass = tl.sum(weight * tl.load(masses + first + split * group, mask=split < splits, other=0.0), 0)
    column = tl.arange(0, padded)
    total = tl.zeros([padded], tl.float32)
    for start in range(0, splits, many):
        some = start + tl.arange(0, many)
        part = first + some * group
        share = tl.exp(tl.load(peaks + part, mask=some < splits, other=float("-inf")) - base)
        inside = (some < splits)[:, None] & (column < d)[None, :]
        value = tl.load(sums + part[:, None] * d + column[None, :], mask=inside, other=0.0)
        total += tl.sum(share[:, None] * value, 0)
    tl.store(out + row * d + column, (total / mass).to(out.dtype.element_ty), mask=column < d)
    if lse is not None:
        tl.store(lse + row, base + tl.log(mass))


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Union,
    scaling: float,
    *,
    space: Workspace | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    splits: int = 32,
) -> Tensor:
    """Outputs `[H, G, d]` fp32: softmax over the rows that are a head's own, accumulated in fp32.

    query: `[H, G, d]`; keys, values: the fetched rows `[H, >= U, d]`, contiguous in d, of any floating type; rows:
    their union, whose membership bits say which head selected what. space: `workspace` for as many splits as wanted.
    out: contiguous, of any floating type. lse: fp32 `[H, G]`, receives log sum exp of the logits, with which outputs
    over disjoint sets of rows can be merged. Rows past the count are not read.
    """
    heads, group, d = query.shape
    width = rows.ids.shape[-1]
    _require_channels(query, keys, values)
    if keys.shape[1] < width or keys.shape != values.shape:
        raise ValueError(f"attention: {keys.shape[1]} rows of keys for a union of {width}, or values of another shape")
    space = workspace(heads, group, d, splits, query.device) if space is None else space
    _attend_rows[(space.peak.shape[1], heads)](
        query,
        keys,
        values,
        rows.member,
        rows.count,
        space.peak,
        space.mass,
        space.sums,
        scaling,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        width,
        group=group,
        d=d,
        queries=_at_least_16(group),
        padded=_at_least_16(d),
        many=_AT_ONCE,
        num_warps=4,
    )
    return _merge(query, space, out, lse)


def attend_all(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tail: Tensor,
    first: Tensor,
    length: Tensor,
    scaling: float,
    *,
    space: Workspace | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    counter: Tensor | None = None,
    splits: int = 136,
) -> Tensor:
    """Outputs `[N H, G, d]` fp32 of dense attention: softmax over all tokens 0 to length - 1, accumulated in fp32.

    query: `[N H, G, d]`, of N sequences. keys, values: `[H, n, d]`, which they share, contiguous in d, on the GPU or in
    pinned host memory (halves of records, or apart), of which tokens below `first` are meant. tail: records `[N H, t,
    2, d]` of the same type on the GPU, slot i is token first + i. first, length: int32 `[1]` on the GPU; at least one
    token, and no more than t in the tail. space: `workspace` for as many splits as wanted, the tail's among them
    (`splits` by default). counter: int64 `[2]`, the bytes read of stored and of tail are added to it. out, lse: as in
    `attend`. The result depends neither on n nor on where the rows lie. Nothing waits for the host.
    """
    heads, group, d = query.shape
    _require_channels(query, keys, values)
    wrong = keys.shape != values.shape or keys.shape[2] != d or heads % keys.shape[0]
    if wrong or tail.shape != (heads, tail.shape[1], 2, d):
        raise ValueError("attention: keys, values or the tail's records are of another shape than the queries")
    if not keys.dtype == values.dtype == tail.dtype or tail.stride(-1) != 1:
        raise ValueError("attention: keys, values and tail are not of one type with contiguous channels")
    if not first.dtype == length.dtype == torch.int32:
        raise ValueError("attention: first or length is not int32")
    space = workspace(heads, group, d, splits, query.device) if space is None else space
    splits = space.peak.shape[1]
    if splits < 2:
        raise ValueError("attention: the workspace is for one split; stored rows and tail take one each")
    in_tail = max(1, min(triton.cdiv(tail.shape[1], _TAIL_SHARE), splits // 8))
    _attend_all[(splits, heads)](
        query,
        keys,
        values,
        tail[:, :, 0],
        tail[:, :, 1],
        first,
        length,
        space.peak,
        space.mass,
        space.sums,
        counter,
        scaling,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        tail.stride(0),
        tail.stride(1),
        splits - in_tail,
        triton.cdiv(tail.shape[1], in_tail),
        keys.shape[0],
        group=group,
        d=d,
        queries=_at_least_16(group),
        padded=_at_least_16(d),
        many=_AT_ONCE,
        num_warps=4,
    )
    return _merge(query, space, out, lse)


def _merge(query: Tensor, space: Workspace, out: Tensor | None, lse: Tensor | None) -> Tensor:
    heads, group, d = query.shape
    splits = space.peak.shape[1]
    if space.sums.shape != (heads, splits, group, d):
        raise ValueError(
            f"attention: the workspace is for `{list(space.sums.shape)}`, the queries `{[heads, group, d]}`"
        )
    out = torch.empty(heads, group, d, dtype=torch.float32, device=query.device) if out is None else out
    if out.shape != query.shape or not out.is_contiguous():
        raise ValueError("attention: out is not contiguous `[H, G, d]`")
    _attend_merge[(heads * group,)](
        space.peak,
        space.mass,
        space.sums,
        out,
        lse,
        splits,
        group=group,
        d=d,
        padded=triton.next_power_of_2(d),
        every=triton.next_power_of_2(splits),
        many=_MANY,
        num_warps=1,  # faster than four, which also write the same sums to the same place at once
    )
    return out


def _at_least_16(size: int) -> int:
    """A tensor core's product has at least 16 of everything."""
    return max(16, int(triton.next_power_of_2(size)))


def _require_channels(query: Tensor, keys: Tensor, values: Tensor) -> None:
    if keys.stride(-1) != 1 or values.stride(-1) != 1 or query.stride(-1) != 1:
        raise ValueError("attention: query, keys and values are not contiguous in their last dimension")
