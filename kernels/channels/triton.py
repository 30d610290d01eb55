"""The largest channels of a query in Triton: the rank of every channel, in one small program a head (see README.md)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.slots import Slots
from leadline.kernels.slots.triton import empty, require_plan, write_plan


@jit
def _largest_plan(
    query: tl.tensor,
    depth: tl.tensor,
    channel: tl.tensor,
    deeper: tl.tensor,
    active: tl.tensor,
    totals: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    r: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    width: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    j = tl.arange(0, width)
    size = tl.zeros([width], tl.float32)
    for g in tl.static_range(group):
        size += tl.abs(tl.load(query + head * query_head + g * query_group + j, mask=j < d, other=0.0))
    key = size.to(tl.int32, bitcast=True)  # floats that are not negative order as integers, not-a-numbers above them
    key = tl.where(j < d, key, -1)
    key_i, j_i = key[:, None], j[:, None]
    before = (key_i > key[None, :]) | ((key_i == key[None, :]) & (j_i < j[None, :]))
    t = tl.where(tl.sum(before.to(tl.int32), 0) < r, 4, 0)
    write_plan(tl.where(j < d, t, -1), head, depth, channel, deeper, active, totals, d, width)


def largest(
    query: Tensor,
    r: int,
    depth: Tensor | None = None,
    out: Slots | None = None,
    active: Tensor | None = None,
    totals: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """As `dispatch.largest`; nothing waits for the host."""
    heads, group, d = query.shape
    if query.dtype != torch.float32 or query.stride(-1) != 1:
        raise ValueError("largest: query is not fp32 with contiguous channels")
    depth = torch.empty(heads, d, dtype=torch.int32, device=query.device) if depth is None else depth
    out = empty(heads, d, query.device) if out is None else out
    require_plan(heads, d, depth, out, active, totals)
    _largest_plan[(heads,)](
        query,
        depth,
        out.channel,
        out.deeper,
        active,
        totals,
        query.stride(0),
        query.stride(1),
        r,
        group=group,
        d=d,
        width=triton.next_power_of_2(d),
        num_warps=4 if d <= 128 else 8,
    )
    return depth, out
