"""One scanner inside the model's attention: plan, metered transfer, score, select, attend (SPEC section 3).

`ScanAttention` is what the attention hook calls for every scanned layer of a forward pass. For one token it is a decode
step; for several it is a teacher-forced pass in which every position has its own plan and selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leadline.attention import dense
from leadline.kernels.attention import attend_selected
from leadline.kernels.scan import dot
from leadline.kernels.topk import select
from leadline.scanners.base import Delivery, Index, ReadPlan, Scanner, State
from leadline.scanners.transfer import fetch

_SCORES_AT_ONCE = 1 << 25  # positions of a teacher-forced pass are taken in groups that keep score tensors near 128 MiB


@dataclass
class ByteLedger:
    """Bytes of a branch, added up call by call (one call is one layer of one decode step)."""

    calls: int = 0
    scans: int = 0  # calls that scanned: not those of dense layers, nor of n <= k
    planned: int = 0
    realised: int = 0
    sectors: int = 0
    rows: int = 0
    union: int = 0
    tail: int = 0
    scanned_tokens: int = 0
    code_bits: float = 0.0
    active_channels: float = 0.0
    layer_bytes: dict[int, int] = field(default_factory=dict)
    layer_tokens: dict[int, int] = field(default_factory=dict)

    def layer_bits(self, layers: tuple[int, ...]) -> tuple[float, ...]:
        """Mean realised bits per token per KV head of each layer."""
        return tuple(8 * self.layer_bytes.get(n, 0) / max(1, self.layer_tokens.get(n, 0)) for n in layers)


@dataclass
class ScanAttention:
    """Sparse attention under one scanner. `indexes` and `states` are by layer; layers in `dense_layers` stay dense."""

    scanner: Scanner
    indexes: Mapping[int, Index]
    states: Mapping[int, State]
    k: int
    sink: int
    local: int
    dense_layers: frozenset[int] = frozenset()
    ledger: ByteLedger | None = None

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attention output `[Hq, T, d]` of queries `[Hq, T, d]` over rows `[H, n, d]`; position i sees n - T + 1 + i
        rows.
        """
        heads, n, d = keys.shape
        positions = query.shape[1]
        if self.scanner.kind == "dense" or layer in self.dense_layers or n <= self.k:
            self._charge_dense(heads, n, d, keys.element_size())
            return dense(query, keys, values, scaling)
        grouped = query.unflatten(0, (heads, -1)).permute(2, 0, 1, 3)  # [T, H, G, d]
        visible = torch.arange(n - positions + 1, n + 1, device=keys.device)
        at_once = max(1, _SCORES_AT_ONCE // (query.shape[0] * n))
        parts = [
            self._attend(layer, grouped[i : i + at_once], keys, values, visible[i : i + at_once], scaling)
            for i in range(0, positions, at_once)
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.permute(1, 2, 0, 3).flatten(0, 1).to(query.dtype)

    def _attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scaling: float
    ) -> Tensor:
        index, state = self.indexes[layer], self.states[layer]
        wide = query.to(torch.float32)
        plan = self.scanner.plan(wide, state, index)
        delivery = fetch(index, plan)
        scores = self.scanner.score(wide, delivery.reads, state)
        scores = torch.cat(
            [scores.expand(*wide.shape[:-1], -1), tail_scores(wide, keys[:, index.tokens :], plan, index)], -1
        )
        mask = select(scores, visible, k=self.k, sink=self.sink, local=self.local)
        out, counts = attend_selected(query, keys, values, mask, scaling)
        if self.ledger is not None:
            self._charge(layer, plan, index, delivery, counts, keys)
        return out

    def _charge(
        self, layer: int, plan: ReadPlan, index: Index, delivery: Delivery, counts: Tensor, keys: Tensor
    ) -> None:
        ledger = self.ledger
        assert ledger is not None
        heads, n, d = keys.shape
        size = keys.element_size()
        levels = {name: total(depth) for name, depth in plan.depth.items()}
        bits = {name: count * float(index.bits(name) * plan.share(name, index)) for name, count in levels.items()}
        planned_bits = sum(bits.values())
        union = total(counts)
        ledger.calls += 1
        ledger.scans += 1
        ledger.planned += round(planned_bits * index.tokens / 8)
        ledger.realised += delivery.nbytes
        ledger.sectors += delivery.sector_bytes
        ledger.rows += union * 2 * d * size
        ledger.union += union
        ledger.tail += heads * (n - index.tokens) * d * size
        ledger.scanned_tokens += heads * index.tokens
        ledger.code_bits += (planned_bits - bits.get("scales", 0.0)) / heads
        ledger.active_channels += total(plan.active) / heads if plan.active is not None else 0.0
        ledger.layer_bytes[layer] = ledger.layer_bytes.get(layer, 0) + delivery.nbytes
        ledger.layer_tokens[layer] = ledger.layer_tokens.get(layer, 0) + heads * index.tokens

    def _charge_dense(self, heads: int, n: int, d: int, size: int) -> None:
        if self.ledger is not None:
            self.ledger.calls += 1
            self.ledger.rows += heads * n * 2 * d * size
            self.ledger.union += heads * n


def total(counts: Tensor) -> int:
    """The sum of an integer or bool tensor as a number."""
    return int(counts.numpy().sum()) if counts.device.type == "cpu" else int(counts.sum())


def tail_scores(query: Tensor, tail: Tensor, plan: ReadPlan, index: Index) -> Tensor:
    """Scores of the tail under the scanner's own view (SPEC section 1, "Tail").

    query: `[T, H, G, d]` fp32; tail: keys `[H, t, d]` in the model's precision. Returns `[T, H, G, t]`: on the plan's
    channels (coordinates in the index's basis when it has one), by q.k, or by position.
    """
    if plan.tail == "position":
        position = torch.arange(index.tokens, index.tokens + tail.shape[1], dtype=torch.float32, device=query.device)
        return position.expand(*query.shape[:-1], -1)
    keys = tail.to(torch.float32)
    if plan.tail == "channels":
        active = plan.active
        assert active is not None
        if index.basis is not None:
            keys, query = index.basis.rotate_keys(keys), index.basis.rotate_query(query)
        query = query * active.unsqueeze(-2)
    return dot(query, keys.transpose(-1, -2))
