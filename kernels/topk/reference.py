"""Exact top-k selection in PyTorch, ties to the smallest index (SPEC section 3)."""

from __future__ import annotations

import torch
from torch import Tensor


def select(scores: Tensor, visible: Tensor, *, k: int, sink: int, local: int) -> Tensor:
    """The selected set of every query head as a mask.

    scores: `[T, H, G, n]` fp32, one score per token; visible: `[T]`, position i sees the first visible[i] tokens. Returns bool
    `[T, H, G, n]`: the first `sink`, the last `local` and the best k - sink - local of the rest; everything visible where
    visible <= k. Ties break to the smallest index. Raises ValueError when a score is not a number.
    """
    n = scores.shape[-1]
    position = torch.arange(n, device=scores.device)
    seen = visible.view(-1, 1, 1, 1)
    in_sight = position < seen
    forced = (position < sink) | (position >= seen - local)
    everything = seen <= k
    candidate = in_sight & ~forced & ~everything
    wanted = k - sink - local
    if wanted <= 0 or n <= k:
        return (in_sight & (forced | everything)).expand(scores.shape).clone()
    ranked = torch.where(candidate, scores, -torch.inf)
    line = ranked.topk(min(wanted, n), dim=-1).values[..., -1:]
    above = candidate & (ranked > line)
    equal = candidate & (ranked == line)
    room = wanted - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    mask = (in_sight & (forced | everything)) | chosen
    if bool((mask.sum(-1) != torch.minimum(visible, torch.full_like(visible, k)).view(-1, 1, 1)).any()):
        raise ValueError("scores hold values that are not numbers (NaN): a selection of k tokens does not exist")
    return mask
