"""Attention over the union of a group's selected rows, in PyTorch (SPEC section 3).

Rows are fetched once per KV head for the union of its query heads' sets; each head then attends to its own set. Softmax
and accumulation are fp32, rows stay in the model's precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.scan import dot


def union_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Union over the group: mask `[T, H, G, n]` -> ascending indices `[T, H, U]`, 0-padded, and counts `[T, H]`."""
    union = mask.any(-2)
    counts = union.sum(-1)
    width = int(counts.max()) if counts.numel() else 0
    indices = torch.zeros(*counts.shape, width, dtype=torch.int64, device=mask.device)
    t, h, token = torch.nonzero(union, as_tuple=True)
    slot = (union.cumsum(-1) - 1)[t, h, token]
    indices[t, h, slot] = token
    return indices, counts


def attend_selected(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attention of each query head over its selected rows.

    query: `[T, H, G, d]`; keys, values: `[H, n, d]`; mask: bool `[T, H, G, n]`. Returns outputs `[T, H, G, d]` fp32 and
    the number of rows fetched `[T, H]`.
    """
    positions, n = query.shape[0], keys.shape[1]
    counts = mask.any(-2).sum(-1)
    if positions * int(counts.max()) > n:  # cheaper to read every row once than each position's union by itself
        logits = torch.where(mask, dot(query.to(torch.float32), keys.transpose(-1, -2)) * scaling, -torch.inf)
        return dot(torch.softmax(logits, dim=-1), values), counts
    chosen = mask.sum(-1)
    if positions == 1 and bool((chosen == chosen.flatten()[0]).all()):  # each head its own rows: no union to mask
        head, index = torch.arange(keys.shape[0], device=keys.device).view(-1, 1, 1), mask.nonzero()[:, -1]
        index = index.view(*mask.shape[1:3], -1)
        own_keys, own_values = (rows[head, index].to(torch.float32) for rows in (keys, values))
        logits = (query[0].to(torch.float32).unsqueeze(-2) @ own_keys.transpose(-1, -2)) * scaling  # [H, G, 1, k]
        return (torch.softmax(logits, dim=-1) @ own_values).transpose(0, 2).transpose(1, 2), counts
    indices, counts = union_rows(mask)
    head = torch.arange(keys.shape[0], device=keys.device).view(1, -1, 1)
    some_keys = keys[head, indices].to(torch.float32)
    some_values = values[head, indices].to(torch.float32)
    logits = (query.to(torch.float32) @ some_keys.transpose(-1, -2)) * scaling  # [T, H, G, U]
    live = torch.arange(indices.shape[-1], device=keys.device) < counts.unsqueeze(-1)
    allowed = mask.gather(-1, indices.unsqueeze(-2).expand(*mask.shape[:-1], -1)) & live.unsqueeze(-2)
    weights = torch.softmax(logits.masked_fill(~allowed, -torch.inf), dim=-1)
    return weights @ some_values, counts
