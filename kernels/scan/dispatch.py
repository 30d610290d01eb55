"""The fused plane scan: transfer and score in one, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import reference
from leadline.kernels.slots import Slots


def fused_scan(
    query: Tensor,
    planes: Tensor,
    scales: Tensor,
    slots: Slots,
    *,
    blocks: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
) -> Tensor:
    """Scores `[H, G, 64 m]` fp32 of queries `[H, G, d]` under one plan per KV head, from a store that may lie in pinned
    host memory: planes `[H, d, 4, m]`, scales `[H, d, m]`. `blocks`, `out` and `maxima` as in the kernel (`plane_scan`
    in triton.py).
    """
    if query.is_cuda:
        from leadline.kernels.scan import triton

        return triton.plane_scan(query, planes, scales, slots, blocks=blocks, out=out, maxima=maxima)
    m = planes.shape[-1] if blocks is None else min(planes.shape[-1], int(blocks))
    scores = reference.plane_scan(query, planes[..., :m], scales[..., :m], slots.depth())
    if maxima is not None:
        maxima[..., :m] = scores.nan_to_num(nan=float("inf"), posinf=float("inf")).unflatten(-1, (-1, BLOCK)).amax(-1)
    if out is None:
        return scores
    out[..., : m * BLOCK] = scores
    return out
