"""The staged transfer in PyTorch: slot s of a plan lands in row s of the staging buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.kernels.slots import Slots


def stage(planes: Tensor, scales: Tensor, slots: Slots, staged_planes: Tensor, staged_scales: Tensor) -> None:
    """Copy planned planes `[H, c, 4, m]` and scales `[H, c, m]` into rows `[H, d, ...]`; nothing else is written."""
    order = slots.channel.long()
    head = torch.arange(order.shape[0], device=order.device).unsqueeze(-1)
    depth = slots.depth().gather(-1, order)  # [H, d], by slot
    level = torch.arange(planes.shape[2], device=order.device)
    m = planes.shape[-1]
    planned = (level < depth.unsqueeze(-1)).unsqueeze(-1)
    staged_planes[..., :m] = torch.where(planned, planes[head, order], staged_planes[..., :m])
    staged_scales[..., :m] = torch.where((depth > 0).unsqueeze(-1), scales[head, order], staged_scales[..., :m])
