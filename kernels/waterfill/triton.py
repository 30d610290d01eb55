"""Reverse water-filling in Triton: importance, water line, depths and the list of slots in one small program a head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.slots import Slots
from leadline.kernels.slots.triton import empty, require_plan, write_plan


@jit
def _waterfill_plan(
    query: tl.tensor,
    variance: tl.tensor,
    depth: tl.tensor,
    channel: tl.tensor,
    deeper: tl.tensor,
    active: tl.tensor,
    totals: tl.tensor,
    query_head: tl.tensor,
    query_group: tl.tensor,
    budget: tl.tensor,
    group: tl.constexpr,
    d: tl.constexpr,
    width: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    j = tl.arange(0, width)
    live = j < d
    g_j = tl.zeros([width], tl.float32)
    for g in tl.static_range(group):
        q = tl.load(query + head * query_head + g * query_group + j, mask=live, other=0.0)
        g_j += q * q
    if variance is not None:
        g_j *= tl.load(variance + head * d + j, mask=live, other=0.0)
    else:
        g_j = tl.load(query + head * query_head + j, mask=live, other=0.0)
    plane = tl.arange(0, 4)
    power = ((126 - 2 * plane) << 23).to(tl.float32, bitcast=True)  # 2^-(2 m + 1), exactly
    worth = g_j[None, :] * power[:, None]
    key = tl.where(worth > 0, worth, 0.0).to(tl.int32, bitcast=True)  # floats that are not negative order as integers
    key = tl.where(live[None, :], key, -1)
    low = 0
    high = tl.max(tl.max(key, 1), 0)
    if budget >= 4 * d:
        high = 0
    while low < high:
        middle = low + (high - low + 1) // 2
        enough = tl.sum(tl.sum((key >= middle).to(tl.int32), 1), 0) > budget
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    t = tl.where(live, tl.sum((key > low).to(tl.int32), 0), -1)
    write_plan(t, head, depth, channel, deeper, active, totals, d, width)


def plan(
    query: Tensor,
    variance: Tensor,
    budget: int,
    depth: Tensor | None = None,
    out: Slots | None = None,
    active: Tensor | None = None,
    totals: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """As `dispatch.plan`: the heads added in order and each operation rounded by itself, as PyTorch does on a CPU."""
    _check(query, budget)
    if variance.shape != query.shape[::2] or variance.dtype != torch.float32 or not variance.is_contiguous():
        raise ValueError("plan: variance is not contiguous fp32 `[H, d]`")
    return _run(query, variance, budget, depth, out, active, totals)


def depths(
    importance: Tensor, budget: int, depth: Tensor | None = None, out: Slots | None = None
) -> tuple[Tensor, Slots]:
    """As the reference, of importance g `[H, d]` fp32: depths int32 `[H, d]`, and their list."""
    _check(importance.unsqueeze(-2), budget)
    return _run(importance.unsqueeze(-2), None, budget, depth, out, None, None)


def _check(query: Tensor, budget: int) -> None:
    if budget < 0:
        raise ValueError(f"budget is {budget}; a bit budget is not negative")
    if query.dtype != torch.float32 or query.dim() != 3 or query.stride(-1) != 1:
        raise ValueError("plan: query or importance is not fp32 with one position and contiguous channels")


def _run(
    query: Tensor,
    variance: Tensor | None,
    budget: int,
    depth: Tensor | None,
    out: Slots | None,
    active: Tensor | None,
    totals: Tensor | None,
) -> tuple[Tensor, Slots]:
    heads, group, d = query.shape
    depth = torch.empty(heads, d, dtype=torch.int32, device=query.device) if depth is None else depth
    out = empty(heads, d, query.device) if out is None else out
    require_plan(heads, d, depth, out, active, totals)
    _waterfill_plan[(heads,)](
        query,
        variance,
        depth,
        out.channel,
        out.deeper,
        active,
        totals,
        query.stride(0),
        query.stride(1),
        budget,
        group=group,
        d=d,
        width=triton.next_power_of_2(d),
        enable_fp_fusion=False,
    )
    return depth, out
