"""Union and row fetch, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from leadline.kernels.rows import reference
from leadline.kernels.rows.reference import Union

if TYPE_CHECKING:
    from leadline.kernels.rows.triton import Workspace

Pair = tuple[Tensor, Tensor]  # keys, values


def union(selected: Tensor, capacity: int, space: Workspace | None = None, out: Union | None = None) -> Union:
    """The union of a group's selections: int32 `[H, G, k]`, ascending, -1 past a list's last; G k rows, the first count
    meant. `space` and `out`, on a GPU only, are buffers to use (CUDA graphs).
    """
    if selected.is_cuda:
        from leadline.kernels.rows import triton

        return triton.union(selected, capacity, space, out)
    return reference.union(selected, capacity)


def fetch(
    rows: Union,
    stored: Tensor,
    tail: Tensor,
    first_of_tail: int | Tensor,
    out: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """The union's rows `[H, U, d]`: stored `[H, n, d]` (on a GPU or in pinned host memory) below `first_of_tail`, a
    number or int32 `[1]` beside the ids, tail `[H, t, d]` from there. Rows past the count mean nothing. counter: int64
    `[2]`, the bytes read of stored and of tail are added to it.
    """
    if rows.ids.is_cuda:
        from leadline.kernels.rows import triton

        return triton.fetch(rows, stored, tail, first_of_tail, out=out, counter=counter)
    found = reference.fetch(rows, stored, tail, int(first_of_tail))
    if counter is not None:
        counter += reference.rows_read(rows, int(first_of_tail)) * stored.shape[-1] * stored.element_size()
    if out is None:
        return found
    out[:, : found.shape[1]] = found
    return out


def fetch_pairs(
    rows: Union,
    stored: Pair,
    tail: Pair,
    first_of_tail: int | Tensor,
    out: Pair | None = None,
    counter: Tensor | None = None,
) -> Pair:
    """Keys and values of the union, one launch: pairs (keys, values) of what `fetch` takes and gives, one counter."""
    if rows.ids.is_cuda:
        from leadline.kernels.rows import triton

        return triton.fetch_pairs(rows, stored, tail, first_of_tail, out=out, counter=counter)
    into = (None, None) if out is None else out
    keys, values = (
        fetch(rows, far, near, first_of_tail, at, counter) for far, near, at in zip(stored, tail, into, strict=True)
    )
    return keys, values
