"""Union and row fetch, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from leadline.kernels.rows import reference
from leadline.kernels.rows.reference import Union

if TYPE_CHECKING:
    from leadline.kernels.rows.triton import Workspace


def union(selected: Tensor, capacity: int, space: Workspace | None = None) -> Union:
    """The union of a group's selections: int32 `[H, G, k]`, -1 where there is none; G k rows, the first count meant."""
    if selected.is_cuda:
        from leadline.kernels.rows import triton

        return triton.union(selected, capacity, space)
    return reference.union(selected, capacity)


def fetch(rows: Union, stored: Tensor, tail: Tensor, first_of_tail: int, out: Tensor | None = None) -> Tensor:
    """The union's rows `[H, U, d]`: stored `[H, n, d]` (on a GPU or in pinned host memory) below `first_of_tail`, tail
    `[H, t, d]` from there. Rows past the count mean nothing.
    """
    if rows.ids.is_cuda:
        from leadline.kernels.rows import triton

        return triton.fetch(rows, stored, tail, first_of_tail, out=out)
    found = reference.fetch(rows, stored, tail, first_of_tail)
    if out is None:
        return found
    out[:, : found.shape[1]] = found
    return out
