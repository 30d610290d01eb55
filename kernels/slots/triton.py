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
def _slots(depth: tl.tensor, channel: tl.tensor, deeper: tl.tensor, d: tl.constexpr, width: tl.constexpr) -> None:
    head = tl.program_id(0)
    j = tl.arange(0, width)
    t = tl.load(depth + head * d + j, mask=j < d, other=-1).to(tl.int32)
    write_slots(t, head, channel, deeper, d, width)


def empty(heads: int, d: int, device: torch.device) -> Slots:
    """A list to write into, `[H, d]`."""
    return Slots(
        torch.empty(heads, d, dtype=torch.int32, device=device), torch.empty(heads, 5, dtype=torch.int32, device=device)
    )


def slots(depth: Tensor, out: Slots | None = None) -> Slots:
    """As the reference: depth int `[H, d]`, contiguous. `out` is a list to write into."""
    heads, d = depth.shape
    out = empty(heads, d, depth.device) if out is None else out
    _slots[(heads,)](depth.contiguous(), out.channel, out.deeper, d, triton.next_power_of_2(d))
    return out
