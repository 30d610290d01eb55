"""The residual's addition and RMSNorm, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.norm import reference


def add_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(weight * h / rms(h), h) with h = x + residual, `[N, w]`, in the model's precision."""
    if x.is_cuda:
        from leadline.kernels.norm import triton

        return triton.add_norm(x, weight, eps, residual)
    return reference.add_norm(x, weight, eps, residual)
