"""The fused plane scan: transfer and score in one, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import reference
from leadline.kernels.sequences import for_each
from leadline.kernels.slots import Slots


def fused_scan(
    query: Tensor,
    planes: Tensor,
    scales: Tensor,
    slots: Slots,
    *,
    rows: Tensor | None = None,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """Scores `[N H, G, 64 m]` fp32 of queries `[N H, G, d]` under one plan per KV head, from a store that may lie in
    pinned host memory and that the N sequences share: planes `[H, d, 4, m]`, scales `[H, d, m]`. `rows`, `blocks`,
    `out`, `maxima` and `counter` as in the kernel (`plane_scan` in triton.py).
    """
    if query.is_cuda:
        from leadline.kernels.scan import triton

        return triton.plane_scan(
            query, planes, scales, slots, rows=rows, blocks=blocks, out=out, maxima=maxima, counter=counter
        )
    m = planes.shape[-1] if blocks is None else min(planes.shape[-1], int(blocks))
    shared, depth = len(planes), slots.depth()
    planes, scales = (for_each(stored[..., :m], len(query)) for stored in (planes, scales))
    if rows is not None:  # row s holds what slot s of the list names
        head = torch.arange(len(rows)).unsqueeze(-1)
        place = torch.empty_like(slots.channel, dtype=torch.int64)
        place.scatter_(-1, slots.channel.long(), rows.long())
        planes, scales = planes[head, place], scales[head, place]
    scales = scales.masked_fill((depth == 0).unsqueeze(-1), 0)  # what the plan leaves out may hold anything
    scores = reference.plane_scan(query, planes, scales, depth)
    if counter is not None:
        own = depth[:shared]
        counter += m * (8 * int(own.sum()) + 2 * int((own > 0).sum()))
    if maxima is not None:
        known = scores.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf"))
        maxima[..., :m] = known.unflatten(-1, (-1, BLOCK)).amax(-1)
    if out is None:
        return scores
    out[..., : m * BLOCK] = scores
    return out
