"""What a scanner is: a frozen configuration that ranks keys by reading part of its own store.
 The harness does everything else. It hands `build` the keys of complete blocks once; at every decode step it asks
`plan` what to read for a query, moves exactly that (`fetch`, metered), and gives `score` what was moved, never the
keys. Sinks, the local window, the tail, top-k and the rows are the harness's, the same for every scanner (SPEC section
3).

Shapes: H KV heads, G query heads per KV head, d head_dim, n tokens of complete blocks; `...` are query positions.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners.statistics import Basis, LayerStatistics

TailView = Literal["channels", "keys", "position"]


@dataclass(frozen=True)
class Index:
    """A scanner's store for one layer: named fields `[H, d, D, m]`, contiguous runs of m items per (channel, level).

    A field's D levels are read as a prefix (the planes of a channel; D = 1 where there is nothing to choose);
    `tokens_per_item` says how many tokens one item covers. `basis` is set where the channels are coordinates of (k -
    mu) V.
    """

    fields: Mapping[str, Tensor]
    tokens_per_item: Mapping[str, int]
    tokens: int
    block: int = BLOCK
    basis: Basis | None = None

    def bits(self, name: str) -> Fraction:
        """Bits per token of one level of one channel of a field."""
        return Fraction(self.fields[name].element_size() * 8, self.tokens_per_item[name])

    @property
    def nbytes(self) -> int:
        """Bytes the store holds."""
        return sum(f.numel() * f.element_size() for f in self.fields.values())


@dataclass(frozen=True)
class Gate:
    """A second stage of a plan: `fields` are read only in the `items` items of each KV head that `propose` ranks first.

    `propose` gets what the transfer delivered of the fields outside the gate, and nothing else, and returns a priority
    for every item, `[..., H, m]`; ties go to the smallest item. How many items are read is fixed before anything is.
    """

    fields: tuple[str, ...]
    items: int
    propose: Callable[[Reads], Tensor]


@dataclass(frozen=True)
class ReadPlan:
    """What to read for a query: levels of every channel per field, int64 `[..., H, d]`.

    Leading dimensions are query positions; a plan that does not depend on the query leaves them out. `tail` says how
    the harness lets tail tokens compete with the scores (SPEC section 1): on the plan's channels, by q.k, or by
    position. A `gate` narrows fields to some of their items.
    """

    depth: Mapping[str, Tensor]
    tail: TailView = "channels"
    gate: Gate | None = None

    @cached_property
    def active(self) -> Tensor | None:
        """Channels any field touches, bool `[..., H, d]`; None for a plan without fields."""
        masks = [levels > 0 for levels in self.depth.values()]
        return functools.reduce(torch.logical_or, masks) if masks else None

    def bits_per_token(self, index: Index) -> Tensor | float:
        """Planned scan bits per token per KV head, `[..., H]` in fp64: the one formula for all scanners (SPEC section
        4).
        """
        return sum(
            (
                levels.sum(-1).to(torch.float64) * float(index.bits(name) * self.share(name, index))
                for name, levels in self.depth.items()
            ),
            0.0,
        )

    def share(self, name: str, index: Index) -> Fraction:
        """The part of a field's items that a position reads: 1 without a gate."""
        items = index.fields[name].shape[-1]
        if self.gate is None or name not in self.gate.fields or not items:
            return Fraction(1)
        return Fraction(self.gate.items, items)


@dataclass(frozen=True)
class Reads:
    """What the metered transfer delivered: the planned channels in slots `[H, c]`, fields `[H, c, D, m]`.

    Slots past a head's count repeat channel 0 with depth 0. Where several positions were planned at once, the slots are
    the union of their plans and `depth` says, `[..., H, c]`, what each position's own plan reads of a slot. Of fields
    behind a gate, `items` says, bool `[..., H, m]`, which items each position reads; the others arrive as zeros.
    """

    channel: Tensor
    fields: Mapping[str, Tensor]
    depth: Mapping[str, Tensor]
    tokens: int
    block: int = BLOCK
    items: Tensor | None = None

    def query(self, query: Tensor) -> Tensor:
        """The query's entries of the delivered channels: `[..., H, G, d]` -> `[..., H, G, c]`."""
        if self.channel.shape[-1] == query.shape[-1]:
            return query
        return query.gather(-1, self.channel.unsqueeze(-2).expand(*query.shape[:-1], -1))


@dataclass(frozen=True)
class Delivery:
    """Reads and their price: payload bytes counted from what was handed over, contiguous runs, bytes in 32-byte
    sectors.
    """

    reads: Reads
    nbytes: int
    sector_bytes: int = 0
    runs: int = 0


@dataclass(frozen=True)
class State:
    """What `calibrate` derived for one layer; scanners that need nothing share the empty one."""

    variance: Tensor | None = None
    basis: Basis | None = None
    channels: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class Scanner(BaseModel, ABC):
    """A way to rank all keys cheaply. Subclasses are frozen: their fields are the options of `--scanner
    name:key=value`.

    Budgets are given per 128 channels and scale with d / 128 (`scaled`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    version: ClassVar[int] = 1
    kind: ClassVar[Literal["scanner", "dense"]] = "scanner"
    headline: ClassVar[tuple[str, ...]] = ()  # options that `label` always shows
    shares_budget: ClassVar[bool] = False  # the KV heads of a layer share a budget: a head's plan depends on the others
    reads_rows: ClassVar[bool] = False  # the oracle: its store is the K rows themselves

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        """Where `calibrate` gets its statistics: nowhere, a calibration text, or the session's own prompt."""
        return "nothing"

    @property
    def store(self) -> str:
        """Scanners whose `store` strings are equal build equal indexes, which the harness then builds once."""
        return f"{self.name}:{self.model_dump_json()}"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        """Derive the layer's state. `statistics` is None exactly when `needs` is "nothing"."""
        return State()

    @abstractmethod
    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        """Build the layer's store from the keys of complete blocks, `[H, n, d]` in the model's precision."""

    @abstractmethod
    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        """Decide what to read for queries `[..., H, G, d]` (fp32)."""

    @abstractmethod
    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        """Scores `[..., H, G, n]` in fp32 for queries `[..., H, G, d]`, from what was delivered and nothing else."""

    @property
    def label(self) -> str:
        """The name in tables: `name`, or `name:key=value,...` with the headline options and those not at their
        defaults.
        """
        changed = self.model_dump(exclude_defaults=True)
        shown = {key: value for key, value in self.model_dump().items() if key in self.headline or key in changed}
        options = ",".join(f"{key}={value}" for key, value in shown.items())
        return f"{self.name}:{options}" if options else self.name

    def options(self) -> dict[str, Any]:
        """All options, for the record."""
        return self.model_dump(mode="json")


def scaled(per_128: int, head_dim: int) -> int:
    """A budget, r or c given per 128 channels, at this head_dim (SPEC section 2); at least 1."""
    return max(1, per_128 * head_dim // 128)


def to_fp16(entries: Tensor, what: str) -> Tensor:
    """Store entries as fp16. ValueError where one does not fit, as for the plane store's scales."""
    largest = entries.abs().amax() if entries.numel() else torch.zeros(())
    if not bool(largest <= torch.finfo(torch.float16).max):
        raise ValueError(f"{what} hold {float(largest)}, which fp16 cannot; the store has no other precision")
    return entries.to(torch.float16)
