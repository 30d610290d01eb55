"""Bit planes of a 4-bit symmetric mid-rise code, in PyTorch (Fathom section 3.2, SPEC section 1).
 Per block of 64 tokens and per channel: a = max|k| stored as fp16, cell a/8, code = clip(floor(k / cell), -8, 7) + 8.
Plane p (0 = most significant) of a block's 64 codes is one 64-bit word, bit i belonging to token i. The words of one
(channel, plane) are contiguous over the sequence and a channel's planes are adjacent. The first t planes of a channel
are exactly the t-bit mid-rise quantizer of [-a, a).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

BLOCK = 64
DEPTH = 4
_LARGEST_SCALE = 65504.0  # fp16


def codes(keys: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """4-bit codes of complete blocks.

    keys: `[..., n, d]`, n a multiple of `block`. Returns codes `[..., n, d]` (uint8, 0..15) and block maxima `[..., n /
    block, d]` (fp16, round to nearest even). Codes use the *stored* maximum and IEEE division. A channel that is zero,
    or whose keys lie below fp32's normal range, gets code 8. Raises ValueError for n not a multiple of `block`, and for
    |k| above 65504 or not finite.
    """
    n = keys.shape[-2]
    if n % block:
        raise ValueError(f"keys hold {n} tokens; only complete blocks of {block} are quantized")
    blocks = keys.to(torch.float32).unflatten(-2, (n // block, block))
    largest = blocks.abs().amax(-2)
    if largest.numel() and not bool((largest <= _LARGEST_SCALE).all()):
        raise ValueError(f"a key is {largest.max().item()}; the store's fp16 scale holds at most {_LARGEST_SCALE}")
    scales = largest.to(torch.float16)
    cell = scales.to(torch.float32) / 8
    tiny = torch.finfo(torch.float32).tiny
    live = (cell > 0) & (largest >= tiny)
    ratio = torch.floor(blocks / torch.where(live, cell, 1.0).unsqueeze(-2))
    code = torch.where(live.unsqueeze(-2), ratio.clamp(-8, 7), 0.0) + 8
    return code.to(torch.uint8).flatten(-3, -2), scales


def pack(keys: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Pack complete blocks of keys `[..., n, d]` into planes and scales; `block` is at most 64.

    Returns planes `[..., d, 4, n / block]` (int64 words) and scales `[..., d, n / block]` (fp16). Raises as `codes`.
    """
    code, scales = codes(keys, block)
    by_block = code.unflatten(-2, (-1, block)).movedim(-1, -3)  # [..., d, m, block]
    shifts = torch.arange(block, device=keys.device, dtype=torch.int64)
    planes = [
        (((by_block >> (DEPTH - 1 - p)) & 1).to(torch.int64) << shifts).sum(-1)  # distinct bits: the sum is their OR
        for p in range(DEPTH)
    ]
    return torch.stack(planes, -2).contiguous(), scales.movedim(-1, -2).contiguous()


@functools.cache
def _byte_table(device: torch.device) -> Tensor:
    values = torch.arange(256, device=device)
    return ((values[:, None] >> torch.arange(8, device=device)) & 1).to(torch.float32)


def unpack_bits(words: Tensor, block: int = BLOCK) -> Tensor:
    """Bits of int64 words `[..., m]` as fp32 0/1, `[..., block m]`, token i of a block from bit i."""
    # Little endian: byte b of a word holds its bits 8b .. 8b+7. A fresh copy: views of bytes need dense words.
    as_bytes = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if words.device.type == "cpu":
        bits = torch.from_numpy(np.unpackbits(as_bytes.numpy(), axis=-1, bitorder="little")).to(torch.float32)
    else:
        bits = torch.nn.functional.embedding(as_bytes.to(torch.int32), _byte_table(words.device)).flatten(-2)
    return bits if block == BLOCK else bits.unflatten(-1, (-1, BLOCK))[..., :block].flatten(-2)


def decode(planes: Tensor, depth: Tensor, block: int = BLOCK) -> Tensor:
    """Values of a prefix read in units of the block maximum a: exact dyadic fp32 numbers in (-1, 1).

    planes: `[..., c, D, m]` int64; depth: `[..., c]`, 0..D planes read. Returns `[..., c, block m]`:
    (c_t + 0.5 - 2^(t-1)) / 2^(t-1) with c_t the t-bit code, 0 where t = 0. Planes at or past the depth do not matter.
    """
    bits = unpack_bits(planes, block)  # [..., c, D, n]
    level = torch.arange(planes.shape[-2], device=planes.device)
    weight = torch.where(level < depth.unsqueeze(-1), torch.exp2(-level.to(torch.float32)), 0.0)
    offset = torch.where(depth > 0, torch.exp2(-depth.to(torch.float32)) - 1, 0.0)
    return (weight.unsqueeze(-2) @ bits).squeeze(-2) + offset.unsqueeze(-1)


def decode_every_depth(planes: Tensor, block: int = BLOCK) -> Iterator[Tensor]:
    """`decode` at depth 1, 2, ... D of every channel, unpacking each plane once: D tensors `[..., c, block m]`."""
    whole = torch.zeros((), device=planes.device)
    for t in range(1, planes.shape[-2] + 1):
        whole = whole + unpack_bits(planes[..., t - 1, :], block) * 2.0 ** (1 - t)
        yield whole + (2.0**-t - 1)
