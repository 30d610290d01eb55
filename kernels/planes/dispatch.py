"""Packing, raw and rotated, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import reference
from leadline.kernels.planes.reference import BLOCK, DEPTH

_ROTATED_AT_ONCE = 1 << 16  # tokens: bounds the fp32 copy of the keys that a rotation needs


def pack(keys: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Pack complete blocks of keys `[..., n, d]` into planes `[..., d, 4, n / block]` (int64 words) and scales
    `[..., d, n / block]` (fp16). ValueError for n not a multiple of `block`, and for |k| above 65504 or not finite.
    """
    if keys.is_cuda and block == BLOCK and keys.dim() == 3 and keys.stride(-1) == 1:
        from leadline.kernels.planes import triton

        return triton.pack(keys)
    return reference.pack(keys, block)


def pack_rotated(keys: Tensor, mean: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Planes and scales of (k - mu) V in fp32, some blocks at a time: keys `[H, n, d]`, mean `[H, d]`, vectors
    `[H, d, c]`. Returns planes `[H, c, 4, m]` and scales `[H, c, m]`; raises as `pack`.
    """
    heads, n, _ = keys.shape
    m, c = n // BLOCK, vectors.shape[-1]
    if n % BLOCK:
        raise ValueError(f"keys hold {n} tokens; only complete blocks of {BLOCK} are quantized")
    planes = keys.new_empty(heads, c, DEPTH, m, dtype=torch.int64)
    scales = keys.new_empty(heads, c, m, dtype=torch.float16)
    for start in range(0, n, _ROTATED_AT_ONCE):
        some = keys[:, start : start + _ROTATED_AT_ONCE].to(torch.float32) - mean.unsqueeze(-2)
        blocks = slice(start // BLOCK, start // BLOCK + some.shape[1] // BLOCK)
        planes[..., blocks], scales[..., blocks] = pack(some @ vectors)
    return planes, scales
