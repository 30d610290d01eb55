"""Packed nibbles in PyTorch: the same codes and block scales as the plane store, eight codes to a 32-bit word."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK, codes
from leadline.kernels.scan import dot


def pack_nibbles(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Words int32 `[H, c, n / 8]`, token i of eight in bits 4 i to 4 i + 3, and scales fp16 `[H, c, n / 64]` of keys
    `[H, n, c]`. Raises as `planes.codes`.
    """
    code, scales = codes(keys)
    eights = code.transpose(-1, -2).unflatten(-1, (-1, 8)).to(torch.int64)
    words = (eights << (4 * torch.arange(8, device=keys.device))).sum(-1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).contiguous(), scales.transpose(-1, -2).contiguous()


def nibble_scan(query: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """Scores `[H, G, n]` fp32 of queries `[H, G, c]`: sum_j q_j (code - 7.5) a_j / 8."""
    code = (words.unsqueeze(-1) >> (4 * torch.arange(8, device=words.device))) & 15
    values = (code.flatten(-2).to(torch.float32) - 7.5) / 8
    return dot(query, values * scales.to(torch.float32).repeat_interleave(BLOCK, -1))
