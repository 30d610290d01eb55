"""A plan as a fixed-size list in Triton: the slot of a channel is the number of channels before it in the order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.slots.reference import Slots


@jit
def write_slots(
    t: tl.tensor, head: tl.tensor, channel: tl.tensor, deeper: tl.tensor, d: tl.constexpr, width: tl.constexpr
) -> None:
    """Store the list of one head's depths t `[width]`, which are -1 past d."""
    j = tl.arange(0, width)
    t_i, j_i = t[:, None], j[:, None]
    before = (t_i > t[None, :]) | ((t_i == t[None, :]) & (j_i < j[None, :]))
    slot = tl.sum(before.to(tl.int32), 0)
    tl.store(channel + head * d + slot, j, mask=j < d)
    for level in tl.static_range(5):
        tl.store(deeper + head * 5 + level, tl.sum((t > level).to(tl.int32), 0))


@jit
def write_plan(
    t: tl.tensor,
    head: tl.tensor,
    depth: tl.tensor,
    channel: tl.tensor,
    deeper: tl.tensor,
    active: tl.tensor,
    totals: tl.tensor,
    d: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Store one head's plan in every form: depths t `[width]` (-1 past d), their list, and where they are given the
    mask of channels read, 1 or 0, and the sums of planes and of channels over all heads and calls.
    """
    j = tl.arange(0, width)
    tl.store(depth + head * d + j, t, mask=j < d)
    write_slots(t, head, channel, deeper, d, width)
    if active is not None:
        tl.store(active + head * d + j, (t > 0).to(tl.float32), mask=j < d)
    if totals is not None:
        tl.atomic_add(totals, tl.sum(tl.maximum(t, 0).to(tl.int64), 0), sem="relaxed")
        tl.atomic_add(totals + 1, tl.sum((t > 0).to(tl.int64), 0), sem="relaxed")


@jit
def _slots_of(depth: tl.tensor, channel: tl.tensor, deeper: tl.tensor, d: tl.constexpr, width: tl.constexpr) -> None:
    head = tl.program_id(0)
    j = tl.arange(0, width)
    t = tl.load(depth + head * d + j, mask=j < d, other=-1).to(tl.int32)
    write_slots(t, head, channel, deeper, d, width)


def empty(heads: int, d: int, device: torch.device) -> Slots:
    """A list to write into, `[H, d]`."""
    return Slots(
        torch.empty(heads, d, dtype=torch.int32, device=device), torch.empty(heads, 5, dtype=torch.int32, device=device)
    )


def require_plan(heads: int, d: int, depth: Tensor, out: Slots, active: Tensor | None, totals: Tensor | None) -> None:
    """ValueError unless these are buffers that `write_plan` can write a plan of `[H, d]` into."""
    if depth.shape != (heads, d) or depth.dtype != torch.int32 or not depth.is_contiguous():
        raise ValueError("plan: depth is not contiguous int32 `[H, d]`")
    if out.channel.shape != (heads, d) or not (out.channel.is_contiguous() and out.deeper.is_contiguous()):
        raise ValueError("plan: the list to write into is not contiguous `[H, d]`")
    if active is not None and (active.shape != (heads, d) or active.dtype != torch.float32):
        raise ValueError("plan: active is not fp32 `[H, d]`")
    if active is not None and not active.is_contiguous():
        raise ValueError("plan: active is not contiguous")
    if totals is not None and (totals.shape != (2,) or totals.dtype != torch.int64):
        raise ValueError("plan: totals is not int64 `[2]`")


def slots(depth: Tensor, out: Slots | None = None) -> Slots:
    """As the reference: depth int `[H, d]`, contiguous. `out` is a list to write into."""
    heads, d = depth.shape
    out = empty(heads, d, depth.device) if out is None else out
    _slots_of[(heads,)](depth.contiguous(), out.channel, out.deeper, d, triton.next_power_of_2(d))
    return out
