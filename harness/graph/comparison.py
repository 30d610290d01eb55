"""How often the kernels select another token than the references do, on the same queries and keys.

Sums in another order move scores in their last bits, and with them tokens at the edge of a selection. A flip whose
score lies further from the k-th than the tolerance is none of those: it is an error, and counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.graph.step import DecodeStep
from leadline.kernels.topk import select
from leadline.scanners.base import Index, Scanner, State
from leadline.scanners.transfer import fetch
from leadline.scanning import tail_scores

TOLERANCE = 1e-5  # of a query head's largest |score|


@dataclass(frozen=True)
class Flips:
    """Tokens that the references selected, those of them that the kernels did not, and of these the unexplained."""

    selected: int
    flipped: int
    unexplained: int


@torch.no_grad()
def compare(
    step: DecodeStep,
    scanner: Scanner,
    states: Mapping[int, State],
    indexes: Mapping[int, Index],
    length: int,
) -> Flips:
    """The selections that `step` (made with `keep`) just took over `length` tokens against the references'.

    indexes: by layer, over the blocks in use, on the device that computes.
    """
    if step.chosen is None or step.asked is None:
        raise ValueError("only a step that keeps its selections can be compared")
    totals = [0, 0, 0]
    for layer, index in indexes.items():
        if not step.scans(layer):
            continue
        tail = step.bench.tails[layer][: len(step.rows[layer].keys), : length - index.tokens, 0]
        found = _layer(step, layer, scanner, states[layer], index, tail, length)
        totals = [a + b for a, b in zip(totals, found, strict=True)]
    return Flips(*totals)


def _layer(
    step: DecodeStep, layer: int, scanner: Scanner, state: State, index: Index, tail: Tensor, length: int
) -> Sequence[int]:
    assert step.chosen is not None
    assert step.asked is not None
    selection, own = step.selection, slice(len(step.rows[layer].keys))  # the first sequence
    query = step.asked[layer][own].unsqueeze(0)
    plan = scanner.plan(query, state, index)
    scores = scanner.score(query, fetch(index, plan).reads, state).expand(1, *query.shape[1:-1], -1)
    scores = torch.cat([scores, tail_scores(query, tail, plan, index)], -1)
    visible = torch.tensor([length], device=query.device)
    mask = select(scores, visible, k=selection.k, sink=selection.sink, local=selection.local)[0]
    chosen = step.chosen[layer][own].long()
    taken = torch.zeros_like(mask).scatter_(-1, chosen.clamp(min=0), True)
    flipped = mask & ~taken
    line = (
        scores[0].masked_fill(~_open(mask, length, selection.sink, selection.local), torch.inf).amin(-1, keepdim=True)
    )
    allowed = TOLERANCE * scores[0].abs().amax(-1, keepdim=True)
    unexplained = (mask ^ taken) & ((scores[0] - line).abs() > allowed)
    return int(mask.sum()), int(flipped.sum()), int(unexplained.sum())


def _open(mask: Tensor, length: int, sink: int, local: int) -> Tensor:
    """The selected tokens that their score selected."""
    position = torch.arange(length, device=mask.device)
    return mask & (position >= sink) & (position < length - local)
