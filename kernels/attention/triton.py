"""Attention of each head over its own rows of a fetched union, in Triton: splits of the rows, merged by log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.rows import Union


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
def _part(
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
    share: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """One split: rows share * split and on. A split with no row of a head leaves peak -inf and mass 0."""
    split, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, padded)
    inside = column < d
    last = tl.minimum(tl.load(count + head), (split + 1) * share)
    peak, mass, total, wide = (), (), (), ()
    for g in tl.static_range(group):
        wide += (tl.load(query + head * query_head + g * query_group + column, mask=inside, other=0.0).to(tl.float32),)  # type: ignore[assignment]
        peak += (tl.zeros([], tl.float32) - float("inf"),)  # type: ignore[assignment]
        mass += (tl.zeros([], tl.float32),)  # type: ignore[assignment]
        total += (tl.zeros([padded], tl.float32),)  # type: ignore[assignment]
    for start in range(split * share, last, many):
        row = start + tl.arange(0, many)
        live = row < last
        at = row.to(tl.int64)[:, None]
        read = live[:, None] & inside[None, :]
        key = tl.load(keys + head * key_head + at * key_row + column[None, :], mask=read, other=0.0).to(tl.float32)
        value = tl.load(values + head * value_head + at * value_row + column[None, :], mask=read, other=0.0)
        value = value.to(tl.float32)
        owners = tl.load(member + head * width + row, mask=live, other=0)
        new_peak, new_mass, new_total = (), (), ()
        for g in tl.static_range(group):
            logit = tl.sum(key * wide[g][None, :], 1) * scaling
            logit = tl.where(((owners >> g) & 1) > 0, logit, float("-inf"))
            highest = tl.maximum(peak[g], tl.max(logit, 0))
            base = tl.where(highest == float("-inf"), 0.0, highest)
            weight = tl.exp(logit - base)
            kept = tl.exp(peak[g] - base)
            new_peak += (highest,)  # type: ignore[assignment]
            new_mass += (mass[g] * kept + tl.sum(weight, 0),)  # type: ignore[assignment]
            new_total += (total[g] * kept + tl.sum(weight[:, None] * value, 0),)  # type: ignore[assignment]
        peak, mass, total = new_peak, new_mass, new_total
    place = (head * tl.num_programs(0) + split) * group
    for g in tl.static_range(group):
        tl.store(peaks + place + g, peak[g])
        tl.store(masses + place + g, mass[g])
        tl.store(sums + (place + g) * d + column, total[g], mask=inside)


@jit
def _merge(
    peaks: tl.tensor,
    masses: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    splits: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    """Splits of one query head into its output and the log of its mass."""
    row = tl.program_id(0)
    split = tl.arange(0, many)
    live = split < splits
    part = (row // group * splits + split) * group + row % group
    peak = tl.load(peaks + part, mask=live, other=float("-inf"))
    highest = tl.max(peak, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp(peak - base)
    mass = tl.sum(weight * tl.load(masses + part, mask=live, other=0.0), 0)
    column = tl.arange(0, padded)
    inside = live[:, None] & (column < d)[None, :]
    total = tl.sum(weight[:, None] * tl.load(sums + part[:, None] * d + column[None, :], mask=inside, other=0.0), 0)
    tl.store(out + row * d + column, total / mass, mask=column < d)
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
    splits: int = 16,
) -> Tensor:
    """Outputs `[H, G, d]` fp32: softmax over the rows that are a head's own, accumulated in fp32.

    query: `[H, G, d]`; keys, values: the fetched rows `[H, >= U, d]`, contiguous in d, of any floating type; rows:
    their union, whose membership bits say which head selected what. lse: fp32 `[H, G]`, receives log sum exp of the
    logits, with which outputs over disjoint sets of rows can be merged. Rows past the count are not read.
    """
    heads, group, d = query.shape
    width = rows.ids.shape[-1]
    if keys.stride(-1) != 1 or values.stride(-1) != 1 or query.stride(-1) != 1:
        raise ValueError("attention: query, keys and values are not contiguous in their last dimension")
    if keys.shape[1] < width or keys.shape != values.shape:
        raise ValueError(f"attention: {keys.shape[1]} rows of keys for a union of {width}, or values of another shape")
    space = workspace(heads, group, d, splits, query.device) if space is None else space
    splits = space.peak.shape[1]
    out = torch.empty(heads, group, d, dtype=torch.float32, device=query.device) if out is None else out
    padded = triton.next_power_of_2(d)
    _part[(splits, heads)](
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
        triton.cdiv(width, splits),
        group=group,
        d=d,
        padded=padded,
        many=32,
        num_warps=4,
    )
    _merge[(heads * group,)](
        space.peak,
        space.mass,
        space.sums,
        out,
        lse,
        splits,
        group=group,
        d=d,
        padded=padded,
        many=triton.next_power_of_2(splits),
        num_warps=2,
    )
    return out
