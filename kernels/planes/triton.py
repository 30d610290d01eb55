"""Packing keys into bit planes in Triton: block maxima, IEEE division, codes and words in one pass over the keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.planes.reference import BLOCK, DEPTH


@jit
def _pack(
    keys: tl.tensor,
    planes: tl.tensor,
    scales: tl.tensor,
    invalid: tl.tensor,
    blocks: tl.tensor,
    d: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    plane_head: tl.tensor,
    plane_channel: tl.tensor,
    plane_level: tl.tensor,
    scale_head: tl.tensor,
    scale_channel: tl.tensor,
    many: tl.constexpr,
    channels: tl.constexpr,
) -> None:
    """`many` blocks of `channels` channels of one head. A plane word of 64 tokens is written as its two halves."""
    head = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * many
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    row = first.to(tl.int64) * 64 + tl.arange(0, many * 64)
    live = (row < blocks * 64)[:, None] & (channel < d)[None, :]
    key = tl.load(keys + head * key_head + row[:, None] * key_row + channel[None, :], mask=live, other=0.0)
    key = tl.reshape(key.to(tl.float32), [many, 64, channels])
    size = tl.abs(key)
    if tl.max(tl.reshape((size <= 65504.0).to(tl.int32) ^ 1, [many * 64 * channels]), 0) > 0:
        tl.atomic_max(invalid, 1, sem="relaxed")
    largest = tl.max(size, 1)
    scale = largest.to(tl.float16)
    cell = scale.to(tl.float32) * 0.125
    coded = (cell > 0) & (largest >= 1.1754943508222875e-38)
    ratio = tl.math.div_rn(key, tl.broadcast_to(tl.where(coded, cell, 1.0)[:, None, :], [many, 64, channels]))
    code = tl.minimum(tl.maximum(tl.floor(ratio), -8.0), 7.0)
    code = tl.where(coded[:, None, :], code, 0.0).to(tl.int32) + 8
    lane = tl.arange(0, 64) & 31
    half = first * 2 + tl.arange(0, many * 2)
    at = channel.to(tl.int64)[None, :]
    written = (half < blocks * 2)[:, None] & (channel < d)[None, :]
    place = planes + head * plane_head + at * plane_channel
    for p in tl.static_range(4):
        bit = ((code >> (3 - p)) & 1) << lane[None, :, None]
        word = tl.sum(tl.reshape(bit, [many * 2, 32, channels]), 1)  # distinct bits: the sum is their OR
        tl.store(place + half[:, None], word, mask=written)
        place += plane_level
    block = first + tl.arange(0, many)
    place = scales + head * scale_head + at * scale_channel + block[:, None]
    tl.store(place, scale, mask=(block < blocks)[:, None] & (channel < d)[None, :])


def pack(
    keys: Tensor,
    planes: Tensor | None = None,
    scales: Tensor | None = None,
    invalid: Tensor | None = None,
    *,
    many: int = 8,
    channels: int = 16,
) -> tuple[Tensor, Tensor]:
    """As the reference, of keys `[H, n, d]` with contiguous channels: planes `[H, d, 4, m]` and scales `[H, d, m]`.

    planes, scales: where to write, of which m is contiguous: a part of a larger store, say. invalid: int32 `[1]`,
    becomes 1 where a key is above 65504 or not finite; without it that raises ValueError, for which the host waits.
    """
    heads, n, d = keys.shape
    if n % BLOCK:
        raise ValueError(f"keys hold {n} tokens; only complete blocks of {BLOCK} are quantized")
    m = n // BLOCK
    planes = keys.new_empty(heads, d, DEPTH, m, dtype=torch.int64) if planes is None else planes
    scales = keys.new_empty(heads, d, m, dtype=torch.float16) if scales is None else scales
    if planes.shape != (heads, d, DEPTH, m) or scales.shape != (heads, d, m):
        raise ValueError(f"pack: planes and scales are not of the shape of {m} blocks of `[{heads}, {d}]` channels")
    if not (keys.stride(-1) == 1 and (m <= 1 or planes.stride(-1) == scales.stride(-1) == 1)):
        raise ValueError("pack: the channels of keys, or the blocks of planes and scales, are not contiguous")
    told = torch.zeros(1, dtype=torch.int32, device=keys.device) if invalid is None else invalid
    if m:
        halves = planes.as_strided(planes.shape, (*planes.stride()[:-1], 1)).view(torch.int32)
        _pack[(triton.cdiv(m, many), triton.cdiv(d, channels), heads)](
            keys,
            halves,
            scales,
            told,
            m,
            d,
            keys.stride(0),
            keys.stride(1),
            halves.stride(0),
            halves.stride(1),
            halves.stride(2),
            scales.stride(0),
            scales.stride(1),
            many=many,
            channels=channels,
            num_warps=8,
        )
    if invalid is None and int(told):
        largest = float(keys.abs().amax())
        raise ValueError(f"a key is {largest}; the store's fp16 scale holds at most 65504.0")
    return planes, scales
