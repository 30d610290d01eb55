"""A strided copy in Triton: every program writes some rows directly to where they belong, in pinned memory too."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.jit import jit
from leadline.kernels.place.reference import check

_ITEMS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TILE = 2048  # items a program copies


@jit
def _place(
    source: tl.tensor,
    destination: tl.tensor,
    rows: tl.tensor,
    t: tl.tensor,
    middle: tl.tensor,
    inner: tl.tensor,
    from_outer: tl.tensor,
    from_middle: tl.tensor,
    from_inner: tl.tensor,
    to_outer: tl.tensor,
    to_middle: tl.tensor,
    to_inner: tl.tensor,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """`height` of the rows numbered over `[outer, middle, inner]`, `width` items of each."""
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)
    item = tl.program_id(1) * width + tl.arange(0, width)
    k = row % inner
    j = (row // inner) % middle
    i = row // (inner * middle)
    live = (row < rows)[:, None] & (item < t)[None, :]
    read = source + (i * from_outer + j * from_middle + k * from_inner)[:, None] + item[None, :]
    write = destination + (i * to_outer + j * to_middle + k * to_inner)[:, None] + item[None, :]
    tl.store(write, tl.load(read, mask=live, other=0), mask=live)


def place(source: Tensor, destination: Tensor) -> None:
    """As the reference, for up to three outer dimensions and contiguous t; items of 1, 2, 4 or 8 bytes."""
    check(source, destination)
    size = source.element_size()
    if source.dim() not in (1, 2, 3, 4) or size not in _ITEMS:
        raise ValueError(f"place: up to three outer dimensions of items of 1 to 8 bytes, not {list(source.shape)}")
    if source.shape[-1] > 1 and not source.stride(-1) == destination.stride(-1) == 1:
        raise ValueError("place: the items of a row are not contiguous")
    if source.numel() == 0:
        return
    t = source.shape[-1]
    # A row of one item may have any stride: it is not used.
    strides = [tensor.stride()[:-1] for tensor in (source, destination)]
    wide = _widest(source, destination, strides)
    factor = wide // size
    missing = 4 - source.dim()
    outer = (*(1,) * missing, *source.shape[:-1])
    steps = [(*(0,) * missing, *(step // factor for step in some)) for some in strides]
    views = [_items(tensor, wide) for tensor in (source, destination)]
    t //= factor
    width = min(_TILE, triton.next_power_of_2(t))
    height = _TILE // width
    rows = outer[0] * outer[1] * outer[2]
    _place[(triton.cdiv(rows, height), triton.cdiv(t, width))](
        *views, rows, t, *outer[1:], *steps[0], *steps[1], height=height, width=width, num_warps=4
    )


def _widest(source: Tensor, destination: Tensor, strides: list[tuple[int, ...]]) -> int:
    """Bytes of the largest item that rows can be cut into: wider items make wider stores."""
    size = source.element_size()
    places = [source.data_ptr(), destination.data_ptr(), source.shape[-1] * size]
    places += [step * size for some in strides for step, length in zip(some, source.shape, strict=False) if length > 1]
    wide = 8
    while any(place % wide for place in places):
        wide //= 2
    return max(wide, size)


def _items(tensor: Tensor, wide: int) -> Tensor:
    """A tensor at the same address whose items have `wide` bytes; the kernel goes by address and strides alone."""
    return tensor.as_strided((wide // tensor.element_size(),), (1,)).view(_ITEMS[wide])
