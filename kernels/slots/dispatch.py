"""The list of a plan, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.slots import reference
from leadline.kernels.slots.reference import Slots


def slots(depth: Tensor, out: Slots | None = None) -> Slots:
    """The list of a plan: depth `[H, d]`. `out` is a list to write into."""
    if depth.is_cuda:
        from leadline.kernels.slots import triton

        return triton.slots(depth, out)
    return reference.record_plan(depth, out=out)[1]
