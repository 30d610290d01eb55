"""Union of a group's selections and fetch of its rows, in PyTorch (SPEC section 3).

Every tensor has a size known beforehand, G k rows, of which the first `count` are meant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Union:
    """ids: int32 `[H, U]`, ascending, each once. member: int32 `[H, U]`, bit g set where head g selected the row.
    count: int32 `[H]`; what stands past it means nothing.
    """

    ids: Tensor
    member: Tensor
    count: Tensor


def union(selected: Tensor, capacity: int) -> Union:
    """The union of `[H, G, k]` int32 positions below `capacity`, -1 where there is none."""
    heads, group, k = selected.shape
    chosen = torch.zeros(heads, group, capacity + 1, dtype=torch.bool, device=selected.device)
    chosen.scatter_(-1, selected.long().where(selected >= 0, capacity), True)
    chosen = chosen[..., :capacity]
    bits = (chosen * (1 << torch.arange(group, device=selected.device)).unsqueeze(-1)).sum(-2)
    ids = torch.zeros(heads, group * k, dtype=torch.int32, device=selected.device)
    member = torch.zeros_like(ids)
    head, token = torch.nonzero(bits, as_tuple=True)
    slot = ((bits > 0).cumsum(-1) - 1)[head, token]
    ids[head, slot] = token.to(torch.int32)
    member[head, slot] = bits[head, token].to(torch.int32)
    return Union(ids, member, (bits > 0).sum(-1).to(torch.int32))


def fetch(rows: Union, stored: Tensor, tail: Tensor, first_of_tail: int) -> Tensor:
    """Copies `[H, U, d]` of the union's rows: stored `[H, n, d]` below `first_of_tail`, tail `[H, t, d]` from there.

    Rows past the count are zero here and untouched by the kernel.
    """
    heads, width = rows.ids.shape
    ids = rows.ids.long()
    head = torch.arange(heads, device=ids.device).unsqueeze(-1)
    in_tail = (ids >= first_of_tail).unsqueeze(-1)
    old = stored[head, ids.clamp(max=max(0, first_of_tail - 1))] if first_of_tail else stored.new_zeros(())
    new = tail[head, (ids - first_of_tail).clamp(0, max(0, tail.shape[1] - 1))] if tail.shape[1] else old
    live = (torch.arange(width, device=ids.device) < rows.count.unsqueeze(-1)).unsqueeze(-1)
    return torch.where(live, torch.where(in_tail, new, old), 0).to(stored.dtype)


def rows_read(rows: Union, first_of_tail: int) -> Tensor:
    """Rows of all heads that a fetch reads of stored and of the tail, int64 `[2]`."""
    live = torch.arange(rows.ids.shape[1], device=rows.ids.device) < rows.count.unsqueeze(-1)
    old = rows.ids < first_of_tail
    return torch.stack([(live & old).sum(), (live & ~old).sum()])
