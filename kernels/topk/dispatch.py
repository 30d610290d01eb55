"""The selected tokens as ascending positions, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leadline.kernels.topk import reference

if TYPE_CHECKING:
    from leadline.kernels.topk.triton import Workspace


def select_ids(
    scores: Tensor,
    lengths: Tensor,
    *,
    k: int,
    sink: int,
    local: int,
    space: Workspace | None = None,
    peaks: Tensor | None = None,
    covered: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """int32 `[R, k]` of scores `[R, capacity]`, rows of `lengths` (`[R]` or `[1]`) tokens; -1 past the last of a row.

    space, peaks and covered, which only the kernels use, and out are as there (`select_ids` in triton.py).

    Where a candidate is not a number, PyTorch raises ValueError at once; the kernels set `space.invalid`, which the
    caller reads when it next waits for the GPU anyway.
    """
    if scores.is_cuda:
        from leadline.kernels.topk import triton

        return triton.select_ids(
            scores, lengths, k=k, sink=sink, local=local, space=space, peaks=peaks, covered=covered, out=out
        )
    rows = scores.shape[0]
    scores = scores[:, : int(lengths.max())]
    capacity = scores.shape[1]
    visible = lengths.to(torch.int64).expand(rows)
    mask = reference.select(scores.view(rows, 1, 1, capacity), visible, k=k, sink=sink, local=local).view(rows, -1)
    ids = torch.full((rows, k), -1, dtype=torch.int32) if out is None else out.fill_(-1)
    row, token = torch.nonzero(mask, as_tuple=True)
    ids[row, (mask.cumsum(-1) - 1)[row, token]] = token.to(torch.int32)
    return ids
