"""How each built-in scanner ranks keys inside a captured step: plan and fused scan by kernels, nothing on the host.

A lane does what `plan`, the metered transfer and `score` do for a scanner, with the same results; a test compares the
two. A scanner without a lane (a plugin, an ablation) is decoded eagerly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, TypeGuard

import torch
from torch import Tensor

from leadline.graph.cursor import Cursor
from leadline.graph.scratch import Scratch
from leadline.kernels.channels import largest
from leadline.kernels.entries import entry_scan, page_scan
from leadline.kernels.gather import Staging, stage
from leadline.kernels.keyscan import key_scan
from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import fused_scan
from leadline.kernels.sequences import for_each
from leadline.kernels.slots import Slots, slots
from leadline.kernels.tail import rotate_one, rotate_query, tail_scores
from leadline.kernels.waterfill import plan
from leadline.scanners.base import Index, Scanner, State, scaled
from leadline.scanners.double_sparsity import DoubleSparsity
from leadline.scanners.fathom import Fathom
from leadline.scanners.fathom_global import FathomGlobal
from leadline.scanners.fathom_measured import FathomMeasured
from leadline.scanners.landmarks import Landmarks
from leadline.scanners.loki import Loki
from leadline.scanners.oracle import Dense, Exact, Streaming
from leadline.scanners.quest import Quest
from leadline.scanners.sparq import Sparq
from leadline.scanners.statistics import Basis
from leadline.scanners.uniform import Full4, Thumbnail


@dataclass(frozen=True)
class Bench:
    """What a lane works on: buffers, the place in the text, and the tail's records by layer `[N H, t, 2, d]`."""

    scratch: Scratch
    cursor: Cursor
    tails: Sequence[Tensor]


@dataclass(frozen=True)
class Rotation:
    """A store's basis by layer, and the tail and the query in it."""

    bench: Bench
    bases: Sequence[Basis]
    tails: Sequence[Tensor]  # fp32 [N H, t, r]
    query: Tensor  # fp32 [N H, G, r]

    @classmethod
    def of(cls, states: Sequence[State], heads: int, width: int, bench: Bench) -> Self | None:
        """None where the store is not rotated."""
        bases = []
        for state in states:
            if state.basis is None:
                return None
            mean, vectors = for_each(state.basis.mean, heads), for_each(state.basis.vectors, heads)
            bases.append(Basis(mean.contiguous(), vectors.contiguous(), state.basis.variance))
        device = bench.cursor.token.device
        tails = [torch.zeros(*tail.shape[:2], width, device=device) for tail in bench.tails]
        return cls(bench, bases, tails, torch.zeros(heads, bench.scratch.group, width, device=device))

    def begin(self, length: int, first: int) -> None:
        """Rotate what the tail holds already, all but the newest token."""
        known = length - 1 - first
        for tail, basis, rotated in zip(self.bench.tails, self.bases, self.tails, strict=True):
            rotated[:, :known] = basis.rotate_keys(tail[:, :known, 0])

    def turn(self, layer: int, query: Tensor) -> tuple[Tensor, Tensor]:
        """The query and the tail in the basis, the newest token's key with it."""
        basis, cursor, scratch = self.bases[layer], self.bench.cursor, self.bench.scratch
        rotate_one(scratch.key, basis.mean, basis.vectors, cursor.position, cursor.first, self.tails[layer])
        return rotate_query(query, basis.vectors, self.query), self.tails[layer]


@dataclass(frozen=True)
class Planned:
    """What the last step's plans read, summed over the KV heads of the store (where sequences share it, of the first):
    planes and channels of the plane store by layer (int64 `[L]`, on the device; None where it reads none), and the bits
    per token a layer reads of anything else.
    """

    planes: Tensor | None = None
    channels: Tensor | None = None
    whole: Fraction = Fraction(0)


class Lane(ABC):
    """One scanner's ranking of all keys of a layer. `scan` only enqueues; `begin` runs once at a branch point."""

    selects = True  # False: attends to every row, so there is nothing to rank

    def begin(self, length: int, first: int) -> None:  # noqa: B027  most lanes keep nothing of a branch point
        """Prepare for a branch point whose tail holds tokens first..length-2 already."""

    @abstractmethod
    def scan(self, layer: int, query: Tensor, bench: Bench, counter: Tensor | None) -> None:
        """Write the scores of all tokens and the maxima of the complete blocks for queries fp32 `[N H, G, d]`."""

    @abstractmethod
    def planned(self) -> Planned:
        """What the last step's plans read."""


class PlaneLane(Lane):
    """Scans of the plane store: the Fathom family, SparQ, Loki's codes, Double Sparsity, thumbnail and full4.

    Flat and per-layer Fathom and SparQ plan by kernels of their own. Other rules that depend on the query are enqueued
    as the scanner's own tensor operations, and a plan that is the same for every query is made once.
    """

    def __init__(
        self,
        scanner: Scanner,
        states: Sequence[State],
        indexes: Sequence[Index],
        bench: Bench,
        staging: Staging | None = None,
    ) -> None:
        self.bench, self.staging = bench, staging
        self.planes = [index.fields["planes"] for index in indexes]
        self.scales = [index.fields["scales"].squeeze(-2) for index in indexes]
        self.shared, width = self.planes[0].shape[:2]
        heads, device = bench.scratch.heads, bench.cursor.token.device
        self.rotation = Rotation.of(states, heads, width, bench)
        self.depth = torch.zeros(len(indexes), heads, width, dtype=torch.int32, device=device)
        self.active = torch.zeros(len(indexes), heads, width, device=device)
        self.slots = [Slots(_int32(heads, width, device=device), _int32(heads, 5, device=device)) for _ in indexes]
        self.scanner, self.states, self.indexes = scanner, states, indexes
        self.kv_heads = heads // bench.cursor.token.shape[0]
        self.variance: list[Tensor] = []
        self.budgets: list[int] = []
        if _water_filled(scanner):
            for state in states:
                assert state.variance is not None
                self.variance.append(for_each(state.variance, heads).contiguous())
                self.budgets.append(scanner.code_bits(width, state))
        elif not isinstance(scanner, (Sparq, *_BY_QUERY)):
            for layer, (state, index) in enumerate(zip(states, indexes, strict=True)):
                query = bench.scratch.query[: len(self.planes[layer])]
                self._fix(layer, scanner.plan(query, state, index).depth["planes"])

    def begin(self, length: int, first: int) -> None:
        if self.rotation is not None:
            self.rotation.begin(length, first)

    def scan(self, layer: int, query: Tensor, bench: Bench, counter: Tensor | None) -> None:
        scratch, cursor = bench.scratch, bench.cursor
        tail, asked = bench.tails[layer][:, :, 0], query
        if self.rotation is not None:
            query, tail = self.rotation.turn(layer, query)
        own, active = self.slots[layer], self.active[layer]
        if _water_filled(self.scanner):
            plan(query, self.variance[layer], self.budgets[layer], self.depth[layer], own, active)
        elif isinstance(self.scanner, Sparq):
            largest(query, scaled(self.scanner.r, query.shape[-1]), self.depth[layer], own, active)
        elif isinstance(self.scanner, _BY_QUERY):
            self._ask(layer, asked)
        planes, scales, rows = self.planes[layer], self.scales[layer], None
        if self.staging is not None:
            stage(planes, scales, own, self.staging, counter)
            planes, scales, rows, counter = self.staging.planes, self.staging.scales, self.staging.rows, None
        fused_scan(
            query,
            planes,
            scales,
            own,
            rows=rows,
            blocks=cursor.blocks,
            out=scratch.scores,
            maxima=scratch.maxima,
            counter=counter,
        )
        tail_scores(query, tail, active, cursor.first, cursor.length, scratch.scores)

    def planned(self) -> Planned:
        own = self.depth[:, : self.shared]
        return Planned(own.sum((1, 2), dtype=torch.int64), (own > 0).sum((1, 2), dtype=torch.int64))

    def _ask(self, layer: int, query: Tensor) -> None:
        """The scanner's own plan for queries `[N H, G, d]`, which it is shown sequence by sequence."""
        each = query.unflatten(0, (-1, self.kv_heads))
        self._record(layer, self.scanner.plan(each, self.states[layer], self.indexes[layer]).depth["planes"])

    def _fix(self, layer: int, depth: Tensor) -> None:
        self._record(layer, for_each(depth, self.depth.shape[1]))

    def _record(self, layer: int, depth: Tensor) -> None:
        own = self.depth[layer]
        own.copy_(depth.reshape(own.shape))
        self.active[layer].copy_(own > 0)
        made = slots(own)
        self.slots[layer].channel.copy_(made.channel)
        self.slots[layer].deeper.copy_(made.deeper)


class EntryLane(Lane):
    """Scans of fp16 entries that are read whole: landmarks, Quest's pages, Loki's fp16 coordinates."""

    def __init__(self, scanner: Scanner, states: Sequence[State], indexes: Sequence[Index], bench: Bench) -> None:
        self.fields = [[field.squeeze(-2) for field in index.fields.values()] for index in indexes]
        if isinstance(scanner, Quest):
            self.fields = [[index.fields[name].squeeze(-2) for name in ("minimum", "maximum")] for index in indexes]
        self.per_entry = next(iter(indexes[0].tokens_per_item.values()))
        heads, width = self.fields[0][0].shape[:2]
        self.rotation = Rotation.of(states, bench.scratch.heads, width, bench)
        self.code_bits = len(self.fields[0]) * heads * width * Fraction(16, self.per_entry)

    def begin(self, length: int, first: int) -> None:
        if self.rotation is not None:
            self.rotation.begin(length, first)

    def scan(self, layer: int, query: Tensor, bench: Bench, counter: Tensor | None) -> None:
        scratch, cursor = bench.scratch, bench.cursor
        tail = bench.tails[layer][:, :, 0]
        if self.rotation is not None:
            query, tail = self.rotation.turn(layer, query)
        read = {"blocks": cursor.blocks, "out": scratch.scores, "maxima": scratch.maxima, "counter": counter}
        fields = self.fields[layer]
        if len(fields) == 1:
            entry_scan(query, fields[0], self.per_entry, **read)
        else:
            page_scan(query, fields[0], fields[1], self.per_entry, **read)
        tail_scores(query, tail, None, cursor.first, cursor.length, scratch.scores)

    def planned(self) -> Planned:
        return Planned(whole=self.code_bits)


class ExactLane(Lane):
    """Scores of the key rows themselves: exact top-k, the reference."""

    def __init__(self, keys: Sequence[Tensor]) -> None:
        self.keys = keys
        self.code_bits = Fraction(keys[0].shape[0] * keys[0].shape[-1] * keys[0].element_size() * 8)

    def scan(self, layer: int, query: Tensor, bench: Bench, counter: Tensor | None) -> None:
        scratch, cursor = bench.scratch, bench.cursor
        key_scan(
            query,
            self.keys[layer],
            first=cursor.first,
            out=scratch.scores,
            maxima=scratch.maxima,
            counter=counter,
        )
        tail_scores(query, bench.tails[layer][:, :, 0], None, cursor.first, cursor.length, scratch.scores)

    def planned(self) -> Planned:
        return Planned(whole=self.code_bits)


class StreamingLane(Lane):
    """Scores are positions: nothing is read, and no layer writes them anew."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def begin(self, length: int, first: int) -> None:
        scores, maxima = self.bench.scratch.scores, self.bench.scratch.maxima
        scores[:] = torch.arange(scores.shape[-1], dtype=torch.float32, device=scores.device)
        maxima[:] = torch.arange(maxima.shape[-1], dtype=torch.float32, device=maxima.device) * BLOCK + (BLOCK - 1)

    def scan(self, layer: int, query: Tensor, bench: Bench, counter: Tensor | None) -> None:
        pass

    def planned(self) -> Planned:
        return Planned()


class DenseLane(StreamingLane):
    """Attends to every row."""

    selects = False

    def begin(self, length: int, first: int) -> None:
        pass


def has_lane(scanner: Scanner) -> bool:
    """Whether `lane` knows the scanner. Only the very classes named here: a subclass may rank otherwise."""
    return _lane_class(scanner) is not None


def lane(
    scanner: Scanner,
    states: Sequence[State],
    indexes: Sequence[Index],
    keys: Sequence[Tensor],
    bench: Bench,
    staging: Staging | None = None,
) -> Lane | None:
    """The lane of a scanner over its store by layer (states, indexes) and the key rows; None where it has none."""
    kind = _lane_class(scanner)
    if kind is PlaneLane:
        return PlaneLane(scanner, states, indexes, bench, staging)
    if kind is EntryLane:
        return EntryLane(scanner, states, indexes, bench)
    if kind is ExactLane:
        return ExactLane(keys)
    return None if kind is None else kind(bench)


def _lane_class(scanner: Scanner) -> Any:
    if type(scanner) is Loki and scanner.precision == "fp16":
        return EntryLane
    by_head = isinstance(scanner, Sparq) and scanner.pick == "head"  # a plan that is no plan per KV head
    return None if by_head else _LANES.get(type(scanner))


def _water_filled(scanner: Scanner) -> TypeGuard[Fathom]:
    return isinstance(scanner, Fathom) and scanner.weight == "q2var"


_BY_QUERY = (Fathom, FathomGlobal, FathomMeasured)  # Fathom: with the weights of an ablation
_LANES: dict[type[Scanner], type[Lane]] = {
    Dense: DenseLane,
    DoubleSparsity: PlaneLane,
    Exact: ExactLane,
    Fathom: PlaneLane,
    FathomGlobal: PlaneLane,
    FathomMeasured: PlaneLane,
    Full4: PlaneLane,
    Landmarks: EntryLane,
    Loki: PlaneLane,
    Quest: EntryLane,
    Sparq: PlaneLane,
    Streaming: StreamingLane,
    Thumbnail: PlaneLane,
}


def _int32(*shape: int, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32, device=device)
