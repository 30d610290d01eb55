"""The error of attention over a scanner's selected set, in one captured layer (SPEC section 6).

Position p sees p + 1 keys. Its store holds the blocks that were complete before it, floor(p / 64) of them, and the keys
behind those are its tail, as at a decode step of a prompt of p + 1 tokens. Because a block's scales depend on its own
64 keys alone, positions share one store and each sees a prefix of it. Scanners plan, read and score through the same
metered transfer as in a replay, every position with its own plan and selection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leadline.fidelity.choosing import candidates, choose, count
from leadline.fidelity.window import CapturedLayer
from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot
from leadline.registry import create
from leadline.scanners.base import Index, Scanner, State
from leadline.scanners.transfer import fetch
from leadline.scanning import tail_scores

_SCORES_AT_ONCE = 1 << 25  # positions are taken in groups that keep a score tensor near 128 MiB
_LEAST_MASS = 1e-30  # below it the selected share of dense weights is too small to be divided by


@dataclass(frozen=True)
class LayerFigures:
    """One scanner at one k in one layer of one window; means over positions and heads.

    error: ||o - o_dense|| / ||o_dense||, over query heads. recall: the share of exact top-k's choice (sinks and local
    window left out, which every scanner has) that the scanner chose too. bits: planned scan bits per token per KV head.
    rows: K/V rows fetched per KV head, the union of its group.
    """

    error: float
    recall: float
    bits: float
    rows: float


@dataclass(frozen=True)
class _Group:
    """Positions that see the same complete blocks: queries `[T, H, G, d]` fp32, dense weights `[T, H, G, n]` and
    outputs. The values `[H, n, d + 1]` carry a column of ones, whose output is the mass that was attended to.
    """

    query: Tensor
    visible: Tensor
    keys: Tensor
    values: Tensor
    blocks: int
    weights: Tensor
    logits: Tensor
    output: Tensor

    @property
    def tokens(self) -> int:
        """Tokens of complete blocks."""
        return self.blocks * BLOCK


class LayerMeter:
    """Measures scanners in one layer of a window, all against the same dense outputs and the same exact choice.

    Holds weights and logits of one group of at most 64 positions at a time: `measure` walks the groups once for all
    scanners given. Raises ValueError where k does not exceed sink + local or reaches the first position's tokens.
    """

    def __init__(self, layer: CapturedLayer, ks: Sequence[int], sink: int, local: int) -> None:
        for k in ks:
            if not sink + local < k <= layer.first:
                raise ValueError(f"k={k} must exceed sink + local = {sink + local} and lie below {layer.first} tokens")
        self._layer, self._ks, self._sink, self._local = layer, tuple(ks), sink, local
        self._indexes: dict[tuple[str, int], Index] = {}

    def measure(
        self, scanners: Sequence[tuple[Scanner, State]], ks: Sequence[Sequence[int]] | None = None
    ) -> list[dict[int, LayerFigures]]:
        """Figures of every scanner by k; `ks` gives each scanner its own choice of the meter's ks."""
        wanted = [tuple(own) for own in ks] if ks is not None else [self._ks] * len(scanners)
        positions = self._layer.query.shape[1]
        sums: list[dict[int, Tensor]] = [
            {k: torch.zeros(4, dtype=torch.float64, device=self._layer.query.device) for k in own} for own in wanted
        ]
        exact = create("exact")
        for group in self._groups():
            reference = self._choices(group, self._scores(group, exact, exact.calibrate(None))[0], self._ks)
            for (scanner, state), own, total in zip(scanners, wanted, sums, strict=True):
                scores, bits = self._scores(group, scanner, state)
                for k, mask in self._choices(group, scores, own).items():
                    total[k] += self._figures(group, mask, reference[k], k, bits)
        return [{k: LayerFigures(*(total / positions).tolist()) for k, total in by_k.items()} for by_k in sums]

    def _groups(self) -> Iterator[_Group]:
        layer = self._layer
        heads, n = layer.keys.shape[:2]
        query = layer.query.unflatten(0, (heads, -1)).permute(2, 0, 1, 3).to(torch.float32)
        at_once = max(1, _SCORES_AT_ONCE // (layer.query.shape[0] * n))
        position = layer.first
        while position < n:
            blocks = position // BLOCK
            end = min((blocks + 1) * BLOCK, n, position + at_once)
            visible = torch.arange(position + 1, end + 1, device=query.device)
            keys, values = layer.keys[:, :end], _with_ones(layer.values[:, :end])
            own = query[position - layer.first : end - layer.first]
            future = torch.arange(end, device=query.device) >= visible.view(-1, 1, 1, 1)
            logits = (dot(own, keys.transpose(-1, -2)) * layer.scaling).masked_fill(future, -torch.inf)
            weights = torch.softmax(logits, -1)
            yield _Group(own, visible, keys, values, blocks, weights, logits, dot(weights, values[..., :-1]))
            position = end

    def _scores(self, group: _Group, scanner: Scanner, state: State) -> tuple[Tensor, Tensor]:
        """Scores `[T, H, G, n]` of every key in sight, and planned bits per token `[T, H]` or a constant."""
        index = self._index(scanner, state, group.tokens)
        plan = scanner.plan(group.query, state, index)
        scores = scanner.score(group.query, fetch(index, plan).reads, state)
        tail = tail_scores(group.query, group.keys[:, index.tokens :], plan, index)
        bits = torch.as_tensor(plan.bits_per_token(index), dtype=torch.float64, device=scores.device)
        return torch.cat([scores.expand(*group.query.shape[:-1], -1), tail], -1), bits

    def _choices(self, group: _Group, scores: Tensor, ks: Sequence[int]) -> dict[int, Tensor]:
        ranked = candidates(scores, group.visible, sink=self._sink, local=self._local)
        return {k: choose(ranked, group.visible, k=k, sink=self._sink, local=self._local) for k in ks}

    def _figures(self, group: _Group, mask: Tensor, reference: Tensor, k: int, bits: Tensor) -> Tensor:
        """Sums over the group's positions of error, recall, bits and rows, each a mean over heads; `[4]` fp64."""
        positions = mask.shape[0]
        output = attend_masked(group.weights, group.logits, group.values, mask)
        error = (output - group.output).norm(dim=-1) / group.output.norm(dim=-1)
        forced = self._sink + self._local
        shared = count(mask & reference) - forced
        rows = count(mask.any(-2))
        return torch.stack(
            [
                error.to(torch.float64).flatten(1).mean(1).sum(),
                shared.to(torch.float64).flatten(1).mean(1).sum() / (k - forced),
                bits.mean() * positions,
                rows.to(torch.float64).mean(1).sum(),
            ]
        )

    def _index(self, scanner: Scanner, state: State, tokens: int) -> Index:
        """The scanner's store of the first `tokens` tokens. Built-in stores are block by block: one build serves all
        prefixes; whether another's is nobody knows, so each prefix is built.
        """
        everything = (self._layer.keys.shape[1] - 1) // BLOCK * BLOCK
        built_in = type(scanner).__module__.startswith("leadline.")
        built = everything if built_in else tokens
        key = scanner.store, built
        if key not in self._indexes:
            self._indexes[key] = scanner.build(self._layer.keys[:, :built], state)
        return prefix(self._indexes[key], tokens)


def prefix(index: Index, tokens: int) -> Index:
    """The store as it was when it held only its first `tokens` tokens (whole blocks)."""
    if index.tokens == tokens:
        return index
    fields = {name: field[..., : tokens // index.tokens_per_item[name]] for name, field in index.fields.items()}
    return replace(index, fields=fields, tokens=tokens)


def attend_masked(weights: Tensor, logits: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention `[T, H, G, d]` over the tokens in `mask` `[T, H, G, n]`, from dense weights (softmax of `logits`) and
    values `[H, n, d + 1]` with ones in the last column.

    Softmax over a subset is the dense softmax restricted to it and divided by its share of the mass; where that share
    is too small for fp32 the logits are taken again.
    """
    found = dot(weights * mask, values)
    if bool((found[..., -1] < _LEAST_MASS).any()):
        found = dot(torch.softmax(logits.masked_fill(~mask, -torch.inf), -1), values)
    return found[..., :-1] / found[..., -1:]


def _with_ones(values: Tensor) -> Tensor:
    wide = values.to(torch.float32)
    return torch.cat([wide, wide.new_ones(*wide.shape[:-1], 1)], -1)
