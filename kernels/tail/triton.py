"""Scores of the tail and rotation of what is new, in Triton: one small launch each (see README.md)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit

_ROWS = 32  # of the tail a program scores
_COLUMNS = 32  # coordinates a program rotates into


@jit
def _tail_scores(
    query: tl.tensor,
    keys: tl.tensor,
    active: tl.tensor,
    first: tl.tensor,
    length: tl.tensor,
    out: tl.tensor,
    counter: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    out_head: tl.tensor,
    out_group: tl.tensor,
    rows: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    padded: tl.constexpr,
    many: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(first)
    there = tl.minimum(tl.load(length) - start, rows)
    if tl.program_id(0) * many >= there:
        return
    row = tl.program_id(0) * many + tl.arange(0, many)
    live = row < there
    column = tl.arange(0, padded)
    inside = column < d
    at = keys + head * key_head + row.to(tl.int64)[:, None] * key_row + column[None, :]
    key = tl.load(at, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
    for g in tl.static_range(group):
        q = tl.load(query + head * query_head + g * query_group + column, mask=inside, other=0.0)
        if active is not None:
            q *= tl.load(active + head * d + column, mask=inside, other=0.0)
        token = start.to(tl.int64) + row
        tl.store(out + head * out_head + g * out_group + token, tl.sum(key * q[None, :], 1), mask=live)
    if counter is not None:
        size: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8 * d
        tl.atomic_add(counter, tl.sum(live.to(tl.int64)) * size, sem="relaxed")


def tail_scores(
    query: Tensor,
    keys: Tensor,
    active: Tensor | None,
    first: Tensor,
    length: Tensor,
    out: Tensor,
    counter: Tensor | None = None,
) -> Tensor:
    """As `dispatch.tail_scores`. Rows past the tail's last are left out, without a word. Nothing waits for the host."""
    heads, group, d = query.shape
    rows = keys.shape[1]
    _require(query.dtype == out.dtype == torch.float32, "query or out is not fp32")
    _require(query.stride(-1) == keys.stride(-1) == out.stride(-1) == 1, "channels or scores are not contiguous")
    _require(keys.shape == (heads, rows, d) and out.shape[:2] == (heads, group), "keys or out have another shape")
    _require(
        active is None or (active.shape == (heads, d) and active.is_contiguous() and active.dtype == torch.float32),
        "active is not contiguous fp32 `[H, d]`",
    )
    _require(first.dtype == length.dtype == torch.int32, "first or length is not int32")
    if rows == 0:
        return out
    _tail_scores[(triton.cdiv(rows, _ROWS), heads)](
        query,
        keys,
        active,
        first,
        length,
        out,
        counter,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        out.stride(0),
        out.stride(1),
        rows,
        group=group,
        d=d,
        padded=triton.next_power_of_2(d),
        many=_ROWS,
        num_warps=4,
    )
    return out


@jit
def _rotate(
    rows: tl.tensor,
    mean: tl.tensor,
    vectors: tl.tensor,
    out: tl.tensor,
    position: tl.tensor,
    first: tl.tensor,
    slots: tl.tensor,
    row_head: tl.tensor,
    row_stride: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    many: tl.constexpr,
    d: tl.constexpr,
    coordinates: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """(x - mean) V of `many` rows of a head, `width` coordinates a program, from row position - first of out on."""
    head = tl.program_id(1).to(tl.int64)
    slot = tl.zeros([], tl.int64)
    if position is not None:
        slot += tl.load(position) - tl.load(first)
    if (slot < 0) | (slot + many > slots):
        return
    channel = tl.arange(0, padded)
    column = tl.program_id(0) * width + tl.arange(0, width)
    live, wanted = channel < d, column < coordinates
    at = vectors + head * (d * coordinates) + channel[:, None] * coordinates + column[None, :]
    basis = tl.load(at, mask=live[:, None] & wanted[None, :], other=0.0)
    for r in tl.static_range(many):
        x = tl.load(rows + head * row_head + r * row_stride + channel, mask=live, other=0.0).to(tl.float32)
        if mean is not None:
            x -= tl.load(mean + head * d + channel, mask=live, other=0.0)
        tl.store(out + head * out_head + (slot + r) * out_row + column, tl.sum(x[:, None] * basis, 0), mask=wanted)


def rotate_one(key: Tensor, mean: Tensor, vectors: Tensor, position: Tensor, first: Tensor, out: Tensor) -> Tensor:
    """As `dispatch.rotate_one`. Nothing waits for the host."""
    _require(position.dtype == first.dtype == torch.int32, "position or first is not int32")
    _require(mean.shape == key.shape and mean.is_contiguous(), "mean is not contiguous fp32 `[H, d]`")
    _require(mean.dtype == torch.float32, "mean is not contiguous fp32 `[H, d]`")
    return _turn(key.unsqueeze(-2), mean, vectors, position, first, out)


def rotate_query(query: Tensor, vectors: Tensor, out: Tensor | None = None) -> Tensor:
    """As `dispatch.rotate_query`."""
    shape = (*query.shape[:2], vectors.shape[-1])
    out = torch.empty(shape, dtype=torch.float32, device=query.device) if out is None else out
    _require(out.shape == shape, f"out is not `{list(shape)}`")
    return _turn(query, None, vectors, None, None, out)


def _turn(
    rows: Tensor, mean: Tensor | None, vectors: Tensor, position: Tensor | None, first: Tensor | None, out: Tensor
) -> Tensor:
    heads, many, d = rows.shape
    coordinates = vectors.shape[-1]
    _require(vectors.shape[:2] == (heads, d) and vectors.is_contiguous(), "vectors are not contiguous `[H, d, r]`")
    _require(vectors.dtype == out.dtype == torch.float32, "vectors or out are not fp32")
    _require(rows.stride(-1) == out.stride(-1) == 1, "channels are not contiguous")
    _require(out.shape[0] == heads and out.shape[2] == coordinates, "out has other heads or coordinates")
    _rotate[(triton.cdiv(coordinates, _COLUMNS), heads)](
        rows,
        mean,
        vectors,
        out,
        position,
        first,
        out.shape[1],
        rows.stride(0),
        rows.stride(1),
        out.stride(0),
        out.stride(1),
        many=many,
        d=d,
        coordinates=coordinates,
        padded=triton.next_power_of_2(d),
        width=_COLUMNS,
        num_warps=4,
    )
    return out


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"tail: {otherwise}")
