"""The harness's selection, fast where it can be: the many selections of a fidelity grid seldom tie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leadline.kernels.topk import select


def choose(scores: Tensor, visible: Tensor, *, k: int, sink: int, local: int) -> Tensor:
    """What `leadline.kernels.topk.select` gives, for positions that all see more than k tokens.

    scores `[T, H, G, n]` fp32, visible `[T]`. The k - sink - local largest are those at or above the score of the last
    of them; only where another score equals it does the rule for ties matter, and `select` itself decides.
    """
    wanted = k - sink - local
    ranked = scores.clone()
    ranked[..., :sink] = -torch.inf
    for row, seen in zip(ranked, visible.tolist(), strict=True):
        row[..., seen - local :] = -torch.inf
    line = _nth_largest(ranked, wanted)
    mask = ranked >= line
    mask[..., :sink] = True
    for row, seen in zip(mask, visible.tolist(), strict=True):
        row[..., seen - local : seen] = True
    odd = (count(mask) != k).flatten().nonzero()[:, 0]  # a tie, or a score that is not a number
    if odd.numel():
        seen = visible.repeat_interleave(mask[0, ..., 0].numel())[odd]
        rows = scores.flatten(0, -2)[odd].view(-1, 1, 1, scores.shape[-1])
        mask.view(-1, mask.shape[-1])[odd] = select(rows, seen, k=k, sink=sink, local=local).flatten(0, -2)
    return mask


def count(mask: Tensor) -> Tensor:
    """True entries of the last dimension, int64."""
    if mask.device.type == "cpu":  # numpy counts bytes several times faster than a sum that widens them
        return torch.from_numpy(np.asarray(np.count_nonzero(mask.numpy(), axis=-1)))
    return mask.sum(-1)


def _nth_largest(values: Tensor, nth: int) -> Tensor:
    if values.device.type == "cpu":
        at = values.shape[-1] - nth
        return torch.from_numpy(np.partition(values.numpy(), at, axis=-1)[..., at : at + 1])
    return values.topk(nth, dim=-1, sorted=True).values[..., -1:]
