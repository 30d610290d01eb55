"""Attention over fetched rows or over every row, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leadline.kernels.rows import Union
from leadline.kernels.sequences import for_each

if TYPE_CHECKING:
    from leadline.kernels.attention.triton import Workspace


def attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Union,
    scaling: float,
    lse: Tensor | None = None,
    *,
    space: Workspace | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Outputs `[H, G, d]` fp32 of queries `[H, G, d]` over the rows each head selected: keys, values `[H, U, d]` are
    the fetched union. lse: fp32 `[H, G]`, receives log sum exp of the logits. out: contiguous, of any floating type.
    """
    if query.is_cuda:
        from leadline.kernels.attention import triton

        return triton.attend(query, keys, values, rows, scaling, space=space, out=out, lse=lse)
    width = rows.ids.shape[-1]
    live = torch.arange(width) < rows.count.unsqueeze(-1)
    own = (rows.member.unsqueeze(-2) >> torch.arange(query.shape[1]).unsqueeze(-1)) & 1  # [H, G, U]
    allowed = (own > 0) & live.unsqueeze(-2)
    seen = values[:, :width].masked_fill(~live.unsqueeze(-1), 0.0)
    return _attend(query, keys[:, :width], seen, allowed, scaling, lse, out)


def attend_all(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tail: Tensor,
    first: Tensor,
    length: Tensor,
    scaling: float,
    *,
    space: Workspace | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    counter: Tensor | None = None,
) -> Tensor:
    """Outputs `[N H, G, d]` fp32 of dense attention over tokens 0 to length - 1: stored keys, values `[H, n, d]`, which
    N sequences share (on a GPU or in pinned host memory), below `first`, tail, records `[N H, t, 2, d]`, from there.
    first, length: int32 `[1]`. counter: int64 `[2]`, the bytes read of stored and of tail are added to it. The rest as
    in `attend_rows`.
    """
    if query.is_cuda:
        from leadline.kernels.attention import triton

        return triton.attend_all(
            query, keys, values, tail, first, length, scaling, space=space, out=out, lse=lse, counter=counter
        )
    begin, more = int(first), int(length) - int(first)
    if more > tail.shape[1] or begin > keys.shape[1]:
        raise ValueError(f"attention: {begin} stored and {more} tail rows of {keys.shape[1]} and {tail.shape[1]}")
    new = tail[:, :more]
    old = [for_each(far[:, :begin], len(query)) for far in (keys, values)]
    every = [torch.cat([far, new[:, :, side]], 1) for side, far in enumerate(old)]
    if counter is not None:
        one = keys.shape[0] * 2 * query.shape[-1] * keys.element_size()
        counter += torch.tensor([begin * one, more * one])
    return _attend(query, every[0], every[1], None, scaling, lse, out)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    allowed: Tensor | None,
    scaling: float,
    lse: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    logits = query.to(torch.float32) @ keys.to(torch.float32).transpose(-1, -2) * scaling
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    if lse is not None:
        lse.copy_(torch.logsumexp(logits, -1))
    attended = torch.softmax(logits, -1) @ values.to(torch.float32)
    return attended if out is None else out.copy_(attended)
