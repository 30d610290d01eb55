"""Exact top-k selection in PyTorch, ties to the smallest index (SPEC section 3)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def select(scores: Tensor, visible: Tensor, *, k: int, sink: int, local: int) -> Tensor:
    """The selected set of every query head as a mask.

    scores: `[T, H, G, n]` fp32, one score per token; visible: `[T]`, position i sees the first visible[i] tokens.
    Returns bool `[T, H, G, n]`: the first `sink`, the last `local` and the best k - sink - local of the rest;
    everything visible where visible <= k. Ties break to the smallest index. Raises ValueError when the score of a
    candidate is not a number, and when k does not hold what it counts, sink + local.
    """
    if k < sink + local:
        raise ValueError(f"k={k} counts sink={sink} and local={local} tokens and must be at least their sum")
    n = scores.shape[-1]
    position = torch.arange(n, device=scores.device)
    seen = visible.view(-1, 1, 1, 1)
    in_sight = position < seen
    kept = in_sight & ((position < sink) | (position >= seen - local) | (seen <= k))
    wanted = k - sink - local
    if wanted == 0 or n <= k:
        return kept.expand(scores.shape).clone()
    candidate = in_sight & ~kept
    ranked = torch.where(candidate, scores, -torch.inf)
    if bool(torch.isnan(ranked).any()):
        raise ValueError("scores hold values that are not numbers (NaN): a selection of k tokens does not exist")
    line = _nth_largest(ranked, wanted)
    at_least = candidate & (ranked >= line)
    mask = at_least | kept
    count = torch.minimum(visible, torch.full_like(visible, k)).view(-1, 1, 1)
    if bool((mask.sum(-1) == count).all()):  # no score ties with the last one chosen
        return mask
    above = candidate & (ranked > line)
    room = wanted - above.sum(-1, keepdim=True)
    equal = at_least & ~above
    return kept | above | (equal & (equal.cumsum(-1) <= room))


def _nth_largest(values: Tensor, nth: int) -> Tensor:
    """The nth largest of the last dimension, `[..., 1]`."""
    if values.device.type == "cpu":  # numpy's introselect is several times faster than a top-k there
        at = values.shape[-1] - nth
        return torch.from_numpy(np.partition(values.numpy(), at, axis=-1)[..., at : at + 1])
    return values.topk(nth, dim=-1, sorted=True).values[..., -1:]
