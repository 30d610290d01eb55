"""silu(gate) * up in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit

_WIDTH = 1024


@jit
def _gated(both: tl.tensor, out: tl.tensor, width: tl.tensor, size: tl.constexpr) -> None:
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * size + tl.arange(0, size)
    live = at < width
    kind: tl.constexpr = both.dtype.element_ty
    gate = tl.load(both + row * 2 * width + at, mask=live, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + at, mask=live, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * width + at, (silu * up).to(kind), mask=live)


def gated(both: Tensor) -> Tensor:
    """As the reference: `[N, 2 w]`, contiguous, to `[N, w]`."""
    if not both.is_contiguous() or both.dim() != 2 or both.shape[1] % 2:
        raise ValueError("gate: not contiguous `[N, 2 w]`")
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    _gated[(triton.cdiv(width, _WIDTH), rows)](both, out, width, size=_WIDTH, num_warps=4)
    return out
