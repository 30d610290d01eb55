"""The selected tokens as ascending positions, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leadline.kernels.topk import reference

if TYPE_CHECKING:
    from leadline.kernels.topk.triton import Workspace


def select_ids(
    scores: Tensor, lengths: Tensor, *, k: int, sink: int, local: int, space: Workspace | None = None
) -> Tensor:
    """int32 `[R, k]` of scores `[R, capacity]`, rows of `lengths` (`[R]` or `[1]`) tokens; -1 past the last of a row.

    Where a candidate is not a number, PyTorch raises ValueError at once; the kernels set `space.invalid`, which the
    caller reads when it next waits for the GPU anyway.
    """
    if scores.is_cuda:
        from leadline.kernels.topk import triton

        return triton.select_ids(scores, lengths, k=k, sink=sink, local=local, space=space)
    rows, capacity = scores.shape
    visible = lengths.to(torch.int64).expand(rows)
    mask = reference.select(scores.view(rows, 1, 1, capacity), visible, k=k, sink=sink, local=local).view(rows, -1)
    ids = torch.full((rows, k), -1, dtype=torch.int32)
    row, token = torch.nonzero(mask, as_tuple=True)
    ids[row, (mask.cumsum(-1) - 1)[row, token]] = token.to(torch.int32)
    return ids
