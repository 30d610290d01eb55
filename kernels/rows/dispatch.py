"""Union and row fetch, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from leadline.kernels.rows import reference
from leadline.kernels.rows.reference import Union
from leadline.kernels.sequences import for_each

if TYPE_CHECKING:
    from leadline.kernels.rows.triton import Workspace


def union(selected: Tensor, capacity: int, space: Workspace | None = None, out: Union | None = None) -> Union:
    """The union of a group's selections: int32 `[H, G, k]`, ascending, -1 past a list's last; G k rows, the first count
    meant. `space` (on a GPU only) and `out` are buffers to use.
    """
    if selected.is_cuda:
        from leadline.kernels.rows import triton

        return triton.union(selected, capacity, space, out)
    found = reference.union(selected, capacity)
    if out is None:
        return found
    for into, made in zip((out.ids, out.member, out.count), (found.ids, found.member, found.count), strict=True):
        into.copy_(made)
    return out


def fetch(
    rows: Union,
    stored: Tensor,
    tail: Tensor,
    first_of_tail: int | Tensor,
    out: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """The union's rows `[N H, U, d]`: stored `[H, n, d]`, which N sequences share (on a GPU or in pinned host memory),
    below `first_of_tail`, a number or int32 `[1]` beside the ids, tail `[N H, t, d]` from there. Rows past the count
    mean nothing. counter: int64 `[2]`, the bytes read of stored and of tail are added to it.
    """
    if rows.ids.is_cuda:
        from leadline.kernels.rows import triton

        return triton.fetch(rows, stored, tail, first_of_tail, out=out, counter=counter)
    shared = len(stored)
    found = reference.fetch(rows, for_each(stored, len(rows.ids)), tail, int(first_of_tail))
    if counter is not None:
        own = Union(rows.ids[:shared], rows.member[:shared], rows.count[:shared])
        counter += reference.rows_read(own, int(first_of_tail)) * stored.shape[-1] * stored.element_size()
    if out is None:
        return found
    out[:, : found.shape[1]] = found
    return out


def fetch_records(
    rows: Union,
    keys: Tensor,
    values: Tensor,
    tail: Tensor,
    first_of_tail: int | Tensor,
    out: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """Keys and values of the union as records `[N H, U, 2, d]`, K beside V, in one launch: keys, values `[H, n, d]`
    below `first_of_tail`, tail, records `[N H, t, 2, d]`, from there. The rest as in `fetch`.
    """
    if rows.ids.is_cuda:
        from leadline.kernels.rows import triton

        return triton.fetch_records(rows, keys, values, tail, first_of_tail, out=out, counter=counter)
    if out is None:
        out = keys.new_empty(*rows.ids.shape, 2, keys.shape[-1])
    for side, stored in enumerate((keys, values)):
        fetch(rows, stored, tail[:, :, side], first_of_tail, out[:, :, side], counter)
    return out
