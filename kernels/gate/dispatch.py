"""silu(gate) * up, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.gate import reference


def gated(both: Tensor) -> Tensor:
    """silu(gate) * up of `[N, 2 w]`, gate first, `[N, w]`."""
    if both.is_cuda:
        from leadline.kernels.gate import triton

        return triton.gated(both)
    return reference.gated(both)
