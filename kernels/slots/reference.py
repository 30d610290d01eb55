"""A plan as a fixed-size list: the channels of each KV head ordered by depth, in PyTorch without host synchronisation.

Depths decide sizes, so a list of only the channels read would have a size that the host must know. This one always
holds d channels, those read first, and says in `deeper` where each depth ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.kernels.planes import DEPTH


@dataclass(frozen=True)
class Slots:
    """channel: int32 `[H, d]`, a permutation: deepest first, ties by channel. deeper: int32 `[H, 5]`, deeper[t] is the
    number of channels read deeper than t planes, so depth t fills slots deeper[t] to deeper[t-1] and deeper[0] is the
    number of channels read.
    """

    channel: Tensor
    deeper: Tensor

    def depth(self) -> Tensor:
        """Planes read of every channel, int64 `[H, d]`: the plan this list was made from."""
        slot = torch.arange(self.channel.shape[-1], device=self.channel.device)
        by_slot = (slot.unsqueeze(-1) < self.deeper.unsqueeze(-2)).sum(-1)  # [H, d], deeper[4] = 0 adds nothing
        return torch.zeros_like(by_slot).scatter(-1, self.channel.long(), by_slot)


def slots(depth: Tensor) -> Slots:
    """The list of a plan: depth `[H, d]`, planes 0..4 of each channel."""
    order = depth.argsort(dim=-1, descending=True, stable=True)
    level = torch.arange(DEPTH + 1, device=depth.device)
    deeper = (depth.unsqueeze(-2) > level.unsqueeze(-1)).sum(-1)
    return Slots(order.to(torch.int32), deeper.to(torch.int32))


def record_plan(
    t: Tensor,
    depth: Tensor | None = None,
    out: Slots | None = None,
    active: Tensor | None = None,
    totals: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """A plan t `[H, d]` in every form: depths int32 `[H, d]` and their list, written into `depth` and `out` where these
    are given. active: fp32 `[H, d]`, receives 1 on the channels read and 0 elsewhere. totals: int64 `[2]`, the planes
    and the channels of all heads are added to it.
    """
    made = slots(t)
    if out is None:
        out = made
    else:
        out.channel.copy_(made.channel)
        out.deeper.copy_(made.deeper)
    if active is not None:
        active.copy_(t > 0)
    if totals is not None:
        totals += torch.stack([t.sum(), (t > 0).sum()])
    return t.to(torch.int32) if depth is None else depth.copy_(t), out
