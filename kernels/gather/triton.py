"""The staged transfer in Triton: planned runs from pinned host memory into a buffer on the GPU (see README.md)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.slots import Slots


@jit
def _stage(
    planes: tl.tensor,
    scales: tl.tensor,
    channel: tl.tensor,
    deeper: tl.tensor,
    staged_planes: tl.tensor,
    staged_scales: tl.tensor,
    counter: tl.tensor,
    blocks: tl.tensor,
    slots: tl.tensor,
    plane_head: tl.tensor,
    plane_channel: tl.tensor,
    plane_level: tl.tensor,
    scale_head: tl.tensor,
    scale_channel: tl.tensor,
    to_plane_head: tl.tensor,
    to_plane_slot: tl.tensor,
    to_plane_level: tl.tensor,
    to_scale_head: tl.tensor,
    to_scale_slot: tl.tensor,
    width: tl.constexpr,
) -> None:
    slot = tl.program_id(1)
    head = tl.program_id(2).to(tl.int64)
    if slot >= tl.load(deeper + head * 5):
        return
    c = tl.load(channel + head * slots + slot).to(tl.int64)
    s = slot.to(tl.int64)
    depth = 0
    for t in tl.static_range(4):
        depth += (slot < tl.load(deeper + head * 5 + t)).to(tl.int32)
    word = tl.program_id(0) * width + tl.arange(0, width)
    planes += head * plane_head + c * plane_channel
    moved = ()
    for p in tl.static_range(4):
        due = word < blocks * (p < depth).to(tl.int32)
        moved += (tl.load(planes + word, mask=due, other=0, eviction_policy="evict_first"),)  # type: ignore[assignment]
        planes += plane_level
    scale = tl.load(scales + head * scale_head + c * scale_channel + word, mask=word < blocks, other=0.0)
    staged_planes += head * to_plane_head + s * to_plane_slot
    for p in tl.static_range(4):
        tl.store(staged_planes + word, moved[p], mask=word < blocks * (p < depth).to(tl.int32))
        staged_planes += to_plane_level
    tl.store(staged_scales + head * to_scale_head + s * to_scale_slot + word, scale, mask=word < blocks)
    if counter is not None:
        tl.atomic_add(counter, tl.sum((word < blocks).to(tl.int64)) * (8 * depth + 2), sem="relaxed")


def stage(
    planes: Tensor,
    scales: Tensor,
    slots: Slots,
    staged_planes: Tensor,
    staged_scales: Tensor,
    *,
    counter: Tensor | None = None,
    width: int = 512,
) -> None:
    """As the reference: planes int64 `[H, c, 4, m]` and scales fp16 `[H, c, m]` into `[H, d, 4, >= m]` and
    `[H, d, >= m]`, all contiguous in their last dimension. counter: int64 `[1]`, payload bytes are added.
    """
    heads, d = slots.channel.shape
    m = planes.shape[-1]
    last = (planes, scales, staged_planes, staged_scales)
    if planes.dtype != torch.int64 or staged_planes.dtype != torch.int64 or scales.dtype != staged_scales.dtype:
        raise ValueError("staging: planes are not int64, or scales differ in type")
    if m > 1 and any(t.stride(-1) != 1 for t in last):
        raise ValueError("staging: the words of a plane are not contiguous")
    if staged_planes.shape[:3] != (heads, d, planes.shape[2]) or staged_planes.shape[-1] < m:
        raise ValueError(f"staging: the buffer `{list(staged_planes.shape)}` does not hold {d} slots of {m} blocks")
    if len(planes) != heads or len(scales) != heads:
        raise ValueError(
            f"staging: {len(planes)} KV heads of planes for {heads} of slots; a staged store is not shared"
        )
    if m == 0:
        return
    _stage[(triton.cdiv(m, width), d, heads)](
        planes,
        scales,
        slots.channel,
        slots.deeper,
        staged_planes,
        staged_scales,
        counter,
        m,
        d,
        *planes.stride()[:3],
        *scales.stride()[:2],
        *staged_planes.stride()[:3],
        *staged_scales.stride()[:2],
        width=width,
        num_warps=4,
    )
