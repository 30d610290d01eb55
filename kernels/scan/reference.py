"""The plane scan in PyTorch: approximate q.k of all tokens from prefix reads of channels (SPEC sections 1 and 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK, decode_every_depth, unpack_bits


def plane_scan(query: Tensor, planes: Tensor, scales: Tensor, depth: Tensor, block: int = BLOCK) -> Tensor:
    """Scores `[..., H, G, block m]` in fp32.

    query: `[..., H, G, c]`, the channels that were read, fp32. planes: `[H, c, D, m]` int64; scales: `[H, c, m]` fp16.
    depth: `[..., H, c]`, the planes each position's plan read of a channel; planes past it do not enter. Positions
    (leading dimensions) that share one plan may leave them out of `depth`.
    """
    batch = query.shape[:-3]
    maxima = scales.to(torch.float32)
    if depth.dim() == 2 or depth[..., 0, 0].numel() == 1:
        return _scan_one_plan(query, planes, maxima, depth.reshape(depth.shape[-2:]), block)
    total = query.new_zeros(*batch, *query.shape[-3:-1], planes.shape[-1] * block)
    for t, values in enumerate(decode_every_depth(planes, block), 1):  # positions differ in depth, not in planes
        here = depth == t
        if bool(here.any()):
            total += _scan(query * here.unsqueeze(-2), values, maxima, block)
    return total


def _scan_one_plan(query: Tensor, planes: Tensor, maxima: Tensor, depth: Tensor, block: int) -> Tensor:
    """All positions read alike, depth `[H, c]`: plane weights and block maxima fold into the query, bits stay bits.

    sum_j q_j a_j (sum_p 2^-p bit_p + 2^-t - 1): a product of `[positions G, c D]` by `[c D, block]` per block.
    """
    heads, channels, levels, words = planes.shape
    level = torch.arange(levels, device=planes.device)
    per_plane = torch.where(level < depth.unsqueeze(-1), torch.exp2(-level.to(torch.float32)), 0.0)  # [H, c, D]
    offset = torch.where(depth > 0, torch.exp2(-depth.to(torch.float32)) - 1, 0.0)
    rows = query.movedim(-3, 0).reshape(heads, 1, -1, channels)
    scaled = rows * maxima.transpose(-1, -2).unsqueeze(-2)  # [H, m, positions G, c]
    weights = (scaled.unsqueeze(-1) * per_plane.view(heads, 1, 1, channels, levels)).flatten(-2)
    bits = unpack_bits(planes.permute(0, 3, 1, 2).flatten(-2).unsqueeze(-1), block)  # [H, m, c D, block]
    scores = weights @ bits + scaled @ offset.view(heads, 1, channels, 1)
    scores = scores.transpose(1, 2).reshape(heads, *query.shape[:-3], query.shape[-2], words * block)
    return scores.movedim(0, -3)


def _scan(query: Tensor, values: Tensor, maxima: Tensor, block: int) -> Tensor:
    """query `[..., H, G, c]` . (values `[H, c, n]` * block maxima `[H, c, m]`)."""
    return dot(query, (values.unflatten(-1, (-1, block)) * maxima.unsqueeze(-1)).flatten(-2))


def dot(query: Tensor, entries: Tensor) -> Tensor:
    """Scores `[..., H, G, m]` of queries `[..., H, G, c]` against entries `[H, c, m]`, fp32: a product per KV head."""
    heads = query.shape[-3]
    rows = query.movedim(-3, 0).reshape(heads, -1, query.shape[-1])
    scores = torch.bmm(rows, entries.to(torch.float32))
    return scores.reshape(heads, *query.shape[:-3], query.shape[-2], -1).movedim(0, -3)
