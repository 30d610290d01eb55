"""The harness's selection, made for many selections of the same positions: what is forced is set aside once, and ties
are settled only where they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leadline.kernels.topk import select


def candidates(scores: Tensor, visible: Tensor, *, sink: int, local: int) -> Tensor:
    """The scores `[T, H, G, n]`, in place, with -inf for sinks, local window and everything past `visible` `[T]`.

    Raises ValueError where the score of a candidate is not a number.
    """
    scores[..., :sink] = -torch.inf
    for row, seen in zip(scores, visible.tolist(), strict=True):
        row[..., seen - local :] = -torch.inf
    if bool(torch.isnan(scores.amax())):
        raise ValueError("scores hold values that are not numbers (NaN): a selection of k tokens does not exist")
    return scores


def choose(ranked: Tensor, visible: Tensor, *, k: int, sink: int, local: int) -> Tensor:
    """What `leadline.kernels.topk.select` gives, for positions that all see more than k tokens.

    ranked: scores as `candidates` leaves them, fp32. The k - sink - local best are those at or above the score of the
    last of them; where others equal it, those of the smallest index stay.
    """
    wanted = k - sink - local
    line = _nth_largest(ranked, wanted)
    mask = ranked >= line
    found = count(mask).flatten()
    level = (line.flatten() == -torch.inf).nonzero()[:, 0]  # candidates tie with what is no candidate
    crowded = (found > wanted).nonzero()[:, 0]
    rows = mask.view(-1, mask.shape[-1])
    if crowded.numel():
        rows[crowded] = _without_ties(rows[crowded], ranked.flatten(0, -2)[crowded], line.flatten()[crowded], wanted)
    mask[..., :sink] = True
    for row, seen in zip(mask, visible.tolist(), strict=True):
        row[..., seen - local : seen] = True
    if level.numel():
        seen = visible.repeat_interleave(mask[0, ..., 0].numel())[level]
        scores = ranked.flatten(0, -2)[level].view(-1, 1, 1, ranked.shape[-1])
        rows[level] = select(scores, seen, k=k, sink=sink, local=local).flatten(0, -2)
    return mask


def count(mask: Tensor) -> Tensor:
    """True entries of the last dimension, int64."""
    if mask.device.type == "cpu":  # numpy counts bytes several times faster than a sum that widens them
        return torch.from_numpy(np.asarray(np.count_nonzero(mask.numpy(), axis=-1)))
    return mask.sum(-1)


def _without_ties(mask: Tensor, ranked: Tensor, line: Tensor, wanted: int) -> Tensor:
    """`mask` `[R, n]` without the last of the entries that equal `line` `[R]`, so that `wanted` stay in every row."""
    row, token = (ranked == line.unsqueeze(-1)).nonzero(as_tuple=True)
    equal = torch.bincount(row, minlength=mask.shape[0])
    place = torch.arange(row.numel(), device=row.device) - (equal.cumsum(0) - equal)[row]
    drop = place >= (equal - (count(mask) - wanted))[row]
    mask[row[drop], token[drop]] = False
    return mask


def _nth_largest(values: Tensor, nth: int) -> Tensor:
    if values.device.type == "cpu":
        at = values.shape[-1] - nth
        return torch.from_numpy(np.partition(values.numpy(), at, axis=-1)[..., at : at + 1])
    return values.topk(nth, dim=-1, sorted=True).values[..., -1:]
