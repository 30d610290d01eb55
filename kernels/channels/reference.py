"""The largest channels of a query in PyTorch (SPEC section 2, `sparq`)."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import DEPTH


def depths(query: Tensor, r: int) -> Tensor:
    """Planes to read, int64 `[H, d]`: 4 on the r channels with the largest sum of |q_j| over the group of queries
    `[H, G, d]`, the heads added in order, ties to the smallest channel; 0 elsewhere.
    """
    size = query.new_zeros(query.shape[0], query.shape[-1])
    for g in range(query.shape[1]):
        size = size + query[:, g].abs()
    order = size.argsort(dim=-1, descending=True, stable=True)[..., :r]
    return torch.zeros_like(size, dtype=torch.int64).scatter(-1, order, DEPTH)
