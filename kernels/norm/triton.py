"""The residual's addition and RMSNorm in Triton: one program a sequence, the row in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit


@jit
def _add_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    padded: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, padded)
    live = at < width
    kind: tl.constexpr = x.dtype.element_ty
    h = tl.load(x + row + at, mask=live, other=0.0).to(tl.float32)
    if residual is not None:
        h += tl.load(residual + row + at, mask=live, other=0.0).to(tl.float32)
        h = h.to(kind).to(tl.float32)
        tl.store(total + row + at, h.to(kind), mask=live)
    scaled = h * tl.rsqrt(tl.sum(h * h, 0) / width + eps)
    w = tl.load(weight + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + row + at, (w * scaled.to(kind).to(tl.float32)).to(kind), mask=live)


def add_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the reference: x and residual `[N, w]`, contiguous, of one type. Without a residual the second result is x."""
    if not (x.is_contiguous() and weight.is_contiguous()) or x.dim() != 2:
        raise ValueError("norm: x is not contiguous `[N, w]`")
    if residual is not None and (residual.shape != x.shape or not residual.is_contiguous()):
        raise ValueError("norm: the residual differs in form from x")
    rows, width = x.shape
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    warps = 4 if padded <= 2048 else 8 if padded <= 4096 else 16
    _add_norm[(rows,)](x, residual, weight, out, total, width, eps, padded=padded, num_warps=warps)
    return out, total
