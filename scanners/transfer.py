"""The metered transfer: moves what a plan names out of an index and counts the bytes it hands over (SPEC section 4)."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from leadline.scanners.base import Delivery, Gate, Index, ReadPlan, Reads

SECTOR = 32


def fetch(index: Index, plan: ReadPlan) -> Delivery:
    """Deliver the planned channels and levels of every field.

    Levels a plan does not name arrive as zeros: `score` cannot see them. For one query position (or a plan shared by
    all) the byte count is that of the delivery; where several positions with plans of their own are read together, the
    union is delivered and counted.

    A plan with a gate takes two transfers: the fields outside it first, which decide the items of the fields behind it.
    """
    if plan.gate is not None:
        return _through_gate(index, plan, plan.gate)
    if not plan.depth:
        heads = 1
        empty = torch.empty(heads, 0, dtype=torch.int64)
        return Delivery(Reads(empty, {}, {}, index.tokens, index.block), 0)
    union = {name: _over_positions(levels) for name, levels in plan.depth.items()}
    touched = functools.reduce(torch.logical_or, (levels > 0 for levels in union.values()))  # [H, d]
    channel, whole = _slots(touched)
    head = torch.arange(channel.shape[0], device=channel.device).unsqueeze(-1)
    fields: dict[str, Tensor] = {}
    depth: dict[str, Tensor] = {}
    nbytes = sectors = runs = 0
    for name, levels in plan.depth.items():
        source = index.fields[name]
        wanted = union[name]
        deepest = max(1, int(wanted.max()))  # a plan that reads nothing still delivers one level, of zeros
        if whole:
            slots, own, moved = wanted, levels, source[:, :, :deepest]
        else:
            live = torch.arange(channel.shape[-1], device=channel.device) < touched.sum(-1, keepdim=True)
            slots = wanted.gather(-1, channel) * live
            own = levels.gather(-1, channel.expand(*levels.shape[:-1], -1)) * live
            moved = source[head, channel, :deepest]
        read = torch.arange(deepest, device=channel.device) < slots.unsqueeze(-1)
        count = int(read.sum())
        if count < read.numel():
            moved = moved.masked_fill(~read.unsqueeze(-1), 0)
        run_bytes = source.shape[-1] * source.element_size()
        nbytes += count * run_bytes
        sectors += count * (-(-run_bytes // SECTOR) * SECTOR)
        runs += count
        fields[name], depth[name] = moved, own
    return Delivery(Reads(channel, fields, depth, index.tokens, index.block), nbytes, sectors, runs)


def _through_gate(index: Index, plan: ReadPlan, gate: Gate) -> Delivery:
    """Both stages of a gated plan, delivered and priced as one."""
    behind = {name: levels for name, levels in plan.depth.items() if name in gate.fields}
    ahead = {name: levels for name, levels in plan.depth.items() if name not in gate.fields}
    first = fetch(index, ReadPlan(ahead, plan.tail))
    priority = gate.propose(first.reads)
    order = priority.argsort(dim=-1, descending=True, stable=True)[..., : gate.items]
    items = torch.zeros_like(priority, dtype=torch.bool).scatter(-1, order, True)
    union = _any_position(items)  # [H, m]
    whole = fetch(index, ReadPlan(plan.depth, plan.tail))
    fields, nbytes, sectors, runs = dict(whole.reads.fields), first.nbytes, first.sector_bytes, first.runs
    for name, levels in behind.items():
        fields[name] = fields[name].masked_fill(~union[:, None, None, :], 0)
        size = index.fields[name].element_size()
        read = _over_positions(levels).sum(-1)  # [H], levels of all channels
        nbytes += int((read * union.sum(-1)).sum()) * size
        sectors += int((read * _sectors(union, size)).sum()) * SECTOR
        runs += int((read * _runs(union)).sum())
    return Delivery(dataclasses.replace(whole.reads, fields=fields, items=items), nbytes, sectors, runs)


def _any_position(items: Tensor) -> Tensor:
    """The items any position reads: bool `[..., H, m]` -> `[H, m]`."""
    return items if items.dim() == 2 else items.flatten(0, -3).any(0)


def _runs(items: Tensor) -> Tensor:
    """Contiguous runs of items, `[H, m]` -> `[H]`."""
    begins = items.clone()
    begins[:, 1:] &= ~items[:, :-1]
    return begins.sum(-1)


def _sectors(items: Tensor, size: int) -> Tensor:
    """32-byte sectors that hold the chosen items of `size` bytes, a row starting at a sector: `[H, m]` -> `[H]`."""
    per_sector = max(1, SECTOR // size)
    short = -items.shape[-1] % per_sector
    whole = torch.cat([items, items.new_zeros(items.shape[0], short)], -1)
    return whole.view(items.shape[0], -1, per_sector).any(-1).sum(-1)


def _over_positions(levels: Tensor) -> Tensor:
    """The deepest level any position reads: `[..., H, d]` -> `[H, d]`."""
    return levels if levels.dim() == 2 else levels.flatten(0, -3).amax(0)


def _slots(touched: Tensor) -> tuple[Tensor, bool]:
    """Touched channels of each head in ascending order, padded with channel 0; True when every channel is touched."""
    heads, d = touched.shape
    counts = touched.sum(-1)
    width = max(1, int(counts.max()))
    if width == d:
        return torch.arange(d, device=touched.device).expand(heads, d), True
    channel = torch.zeros(heads, width, dtype=torch.int64, device=touched.device)
    head, which = torch.nonzero(touched, as_tuple=True)
    channel[head, (touched.cumsum(-1) - 1)[head, which]] = which
    return channel, False
