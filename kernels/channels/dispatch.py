"""The largest channels of a query, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.channels import reference
from leadline.kernels.slots import Slots, record_plan


def largest(
    query: Tensor,
    r: int,
    depth: Tensor | None = None,
    out: Slots | None = None,
    active: Tensor | None = None,
    totals: Tensor | None = None,
) -> tuple[Tensor, Slots]:
    """Depths int32 `[H, d]`, 4 on the r channels where queries `[H, G, d]` fp32 are largest and 0 elsewhere, and their
    list. `depth` and `out` are written into where they are given. active: fp32 `[H, d]`, receives 1 on the channels
    read and 0 elsewhere. totals: int64 `[2]`, the planes and the channels of all heads are added to it. Raises
    ValueError unless 0 <= r <= d.
    """
    if not 0 <= r <= query.shape[-1]:
        raise ValueError(f"largest: r = {r} of {query.shape[-1]} channels")
    if query.is_cuda:
        from leadline.kernels.channels import triton

        return triton.largest(query, r, depth, out, active, totals)
    return record_plan(reference.depths(query, r), depth, out, active, totals)
