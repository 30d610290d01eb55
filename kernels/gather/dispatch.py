"""The staged transfer, by the Triton kernel on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.kernels.gather import reference
from leadline.kernels.slots import Slots


@dataclass(frozen=True)
class Staging:
    """Rows by slot: planes int64 `[H, d, 4, m]`, scales fp16 `[H, d, m]`; rows int32 `[H, d]` tells the scan so."""

    planes: Tensor
    scales: Tensor
    rows: Tensor


def staging(heads: int, d: int, m: int, device: torch.device | str) -> Staging:
    """A buffer for any plan over m blocks: as large as the store it copies from."""
    return Staging(
        torch.empty(heads, d, 4, m, dtype=torch.int64, device=device),
        torch.empty(heads, d, m, dtype=torch.float16, device=device),
        torch.arange(d, dtype=torch.int32, device=device).expand(heads, d).contiguous(),
    )


def stage(planes: Tensor, scales: Tensor, slots: Slots, into: Staging, counter: Tensor | None = None) -> None:
    """Copy what a plan reads of planes `[H, c, 4, m]` and scales `[H, c, m]` (on a GPU or in pinned host memory) into
    the staging buffer. counter: int64 `[1]`, the bytes moved are added to it.
    """
    if slots.channel.is_cuda:
        from leadline.kernels.gather import triton

        triton.stage(planes, scales, slots, into.planes, into.scales, counter=counter)
    else:
        reference.stage(planes, scales, slots, into.planes, into.scales)
        if counter is not None:
            depth = slots.depth()
            counter += planes.shape[-1] * (8 * depth + 2 * (depth > 0)).sum()
