"""The water-filling plan of a query, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.slots import Slots, record_plan
from leadline.kernels.waterfill import reference


def plan(
    query: Tensor,
    variance: Tensor,
    budget: int,
    depth: Tensor | None = None,
    out: Slots | None = None,
    active: Tensor | None = None,
    totals: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """Depths int32 `[H, d]` and their list for queries `[H, G, d]` fp32 and Var(k_j) `[H, d]` fp32, both in the store's
    basis: g_j = Var(k_j) sum_h q_hj^2. `depth` and `out` are written into where they are given. active: fp32 `[H, d]`,
    receives 1 on the channels read and 0 elsewhere. totals: int64 `[2]`, the planes and the channels of all heads are
    added to it. Raises ValueError for a negative budget.
    """
    if query.is_cuda:
        from leadline.kernels.waterfill import triton

        return triton.plan(query, variance, budget, depth, out, active, totals)
    return record_plan(reference.depths(torch.square(query).sum(-2) * variance, budget), depth, out, active, totals)
