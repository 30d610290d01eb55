"""The residual's addition and RMSNorm in PyTorch, rounded where transformers rounds."""

from __future__ import annotations

import torch
from torch import Tensor


def add_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(weight * h / rms(h), h) with h = x + residual, `[N, w]`, both in the model's precision.

    The mean of squares and its root are fp32; what is scaled is rounded to the model's precision before the weight.
    """
    total = x if residual is None else residual + x
    wide = total.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype), total
