"""Scores of the tail, and rotation into a store's basis, in PyTorch (SPEC section 1, "Tail")."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.scan.reference import dot


def tail_scores(query: Tensor, keys: Tensor, active: Tensor | None) -> Tensor:
    """Scores `[H, G, t]` fp32 of the tail's keys `[H, t, d]` for queries `[H, G, d]` fp32 on the channels where active
    `[H, d]` fp32 is 1 (None: on all).
    """
    wide = query if active is None else query * active.unsqueeze(-2)
    return dot(wide, keys.float().transpose(-1, -2))


def rotate(rows: Tensor, mean: Tensor | None, vectors: Tensor) -> Tensor:
    """(x - mu) V of rows x `[H, n, d]` in fp32: mean `[H, d]` or None for 0, vectors `[H, d, r]`."""
    centred = rows.float() if mean is None else rows.float() - mean.unsqueeze(-2)
    return centred @ vectors
