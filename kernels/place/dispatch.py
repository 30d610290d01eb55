"""Strided copy, by the Triton kernel from a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.place import reference


def place(source: Tensor, destination: Tensor) -> None:
    """Copy source `[..., t]` into destination `[..., t]` of the same type, up to three outer dimensions, t contiguous
    in both. From a GPU the destination is on it or in pinned host memory, and the copy is ordered on the current
    stream; the host waits for nothing. ValueError for other shapes, types or strides.
    """
    if source.is_cuda:
        from leadline.kernels.place import triton

        triton.place(source, destination)
    else:
        reference.place(source, destination)
