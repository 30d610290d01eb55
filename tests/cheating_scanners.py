"""Scanners that break the contract, one way each, and the clause of the suite that must catch them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners import plane_store
from leadline.scanners.base import Gate, Index, ReadPlan, Reads, Scanner, State
from leadline.scanners.statistics import LayerStatistics


class Honest(Scanner):
    """Reads one plane of every channel; the cheats below start from it."""

    name: ClassVar[str] = "honest"

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, None, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return plane_store.read(torch.ones(index.fields["planes"].shape[:2], dtype=torch.int64))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query, reads)


CHEATS: list[tuple[type[Scanner], str]] = []


def caught_by(clause: str) -> Callable[[type[Scanner]], type[Scanner]]:
    def register(cls: type[Scanner]) -> type[Scanner]:
        CHEATS.append((cls, clause))
        return cls

    return register


HIDDEN: dict[str, Any] = {}


@caught_by("poison-keys")
class KeepsKeys(Honest):
    """Keeps a reference to the keys at build and scores with them: exact top-k at the price of one plane."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        HIDDEN["keys"] = keys
        return super().build(keys, state, block)

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return query @ HIDDEN["keys"].float().transpose(-1, -2)


@caught_by("only-reads")
class CopiesKeys(KeepsKeys):
    """The same with a private copy, which overwriting the keys does not reach."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return super().build(keys.clone(), state, block)


@caught_by("only-reads")
class CopiesFirstKeys(Honest):
    """Copies only the first keys it ever sees of a shape, so that later builds do not give it away."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        HIDDEN.setdefault(f"first {tuple(keys.shape)} {keys.dtype}", keys.clone())
        return super().build(keys, state, block)

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        heads, d = query.shape[-3], query.shape[-1]
        keys = next(k for name, k in HIDDEN.items() if name.startswith(f"first ({heads}, {reads.tokens}, {d})"))
        return query @ keys.float().transpose(-1, -2)


@caught_by("poison-index")
class HoldsIndex(Honest):
    """Holds the whole index in plan and reads all four planes of it in score."""

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        HIDDEN["index"] = index
        return super().plan(query, state, index)

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        fields = HIDDEN["index"].fields
        deep = torch.full(fields["planes"].shape[:2], 4)
        every = Reads(reads.channel, fields, {"planes": deep, "scales": deep}, reads.tokens, reads.block)
        return plane_store.score(query, every)


@caught_by("poison-index")
class LooksBehindReads(Honest):
    """Reads the storage behind a delivered view: the planes that were not delivered."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        whole = reads.fields["planes"]._base
        hidden = 0.0 if whole is None else float(whole.to(torch.float64).abs().sum()) * 1e-20
        return plane_store.score(query, reads) + hidden


@caught_by("plan-blind")
class PlansFromIndex(Honest):
    """Decides what to read from stored scales that nobody counts."""

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        scales = index.fields["scales"].float().nan_to_num(0).amax((-2, -1))
        return plane_store.read((scales >= scales.median(-1, keepdim=True).values).to(torch.int64))


class Gated(Honest):
    """Scales first, then one plane in half of the blocks, chosen by their scales."""

    def gate(self, index: Index) -> Gate:
        words = index.fields["planes"].shape[-1]
        return Gate(("planes",), -(-words // 2), lambda reads: reads.fields["scales"].float().sum((-3, -2)))

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return ReadPlan(super().plan(query, state, index).depth, gate=self.gate(index))


@caught_by("poison-index")
class ProposesFromIndex(Gated):
    """Proposes blocks by planes that stand behind the gate and were never read."""

    def gate(self, index: Index) -> Gate:
        hidden = index.fields["planes"]
        return Gate(("planes",), super().gate(index).items, lambda reads: hidden.double().sum((1, 2)))


@caught_by("plan")
class OpensTheGateWider(Gated):
    """Lets more blocks through than there are, and so reports more than all of them; half is what it pays elsewhere."""

    def gate(self, index: Index) -> Gate:
        whole = super().gate(index)
        return Gate(whole.fields, 2 * index.fields["planes"].shape[-1], whole.propose)


class _Turnstile(Gate):
    pass


@caught_by("plan")
class GateOfItsOwn(Gated):
    """A gate of a class of its own, whose count could change between the price and the read."""

    def gate(self, index: Index) -> Gate:
        return _Turnstile(**vars(super().gate(index)))


@caught_by("heads")
class SharesScores(Honest):
    """Says that heads share a budget, which excuses plans, and lets scores depend on other heads' queries."""

    shares_budget: ClassVar[bool] = True

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query + query.mean(-3, keepdim=True), reads)


class _Cheap(ReadPlan):
    def bits_per_token(self, index: Index) -> Tensor | float:
        return super().bits_per_token(index) / 2


@caught_by("bytes")
class ReportsHalf(Honest):
    """Reads one plane and reports half of it."""

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return _Cheap(super().plan(query, state, index).depth)


class _Tiny(Index):
    def bits(self, name: str) -> Fraction:
        return super().bits(name) / 4


@caught_by("bytes")
class UnderstatesIndex(Honest):
    """An index that says its planes are a quarter of their size."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return _Tiny(**vars(super().build(keys, state, block)))


@caught_by("plan")
class NegativeDepth(Honest):
    """Reads a channel less than not at all, to pay for another."""

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        depth = torch.ones(index.fields["planes"].shape[:2], dtype=torch.int64)
        depth[:, 0], depth[:, 1] = -1, 2
        return plane_store.read(depth)


@caught_by("heads")
class MixesHeads(Honest):
    """Scores of a head borrow from its neighbour."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        own = plane_store.score(query, reads)
        return own + own.roll(1, dims=-3)


@caught_by("untouched")
class EatsIndex(Honest):
    """Sorts delivered words in place; the next query finds another index."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        found = plane_store.score(query, reads)
        reads.fields["planes"].zero_()
        return found


@caught_by("untouched")
class SmugglesState(Honest):
    """Puts the keys into the state at build, which score receives."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        state.extra["keys"] = keys.clone()  # type: ignore[index]
        return super().build(keys, state, block)


@caught_by("deterministic")
class Random(Honest):
    """Breaks ties with a random number."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        found = plane_store.score(query, reads)
        return found + torch.rand_like(found)


@caught_by("positions")
class AveragesPositions(Honest):
    """Scores with the mean query of the batch."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query.mean(0, keepdim=True).expand_as(query), reads)


@caught_by("scores")
class HalfPrecision(Honest):
    """Returns fp16 scores."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(query, reads).half()


@caught_by("scores")
class NotANumber(Honest):
    """Divides by a norm that can be zero."""

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        found = plane_store.score(query, reads)
        return found / found.norm(dim=-1, keepdim=True)


@caught_by("index")
class MiscountsTokens(Honest):
    """Says that an item covers twice the tokens it does."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        built = super().build(keys, state, block)
        return Index(built.fields, {"planes": 2 * block, "scales": block}, built.tokens, block)


@caught_by("calibrate")
class NeedsSecretly(Honest):
    """Says it needs nothing and uses statistics."""

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None, "needs statistics"
        return State(variance=statistics.variance)


@caught_by("config")
class Thawed(Honest):
    """Options that can be changed after construction."""

    model_config: ClassVar[Any] = {"frozen": False, "extra": "forbid"}
    planes: int = 1


@caught_by("config")
class CommaLabel(Honest):
    """An option whose value cannot be written in a spec."""

    weights: tuple[int, ...] = (1, 2)
    headline: ClassVar[tuple[str, ...]] = ("weights",)


@caught_by("reference")
class FalseOracle(Honest):
    """Claims to read rows, which exempts a scanner from poisoning, and does not."""

    reads_rows: ClassVar[bool] = True


@caught_by("config")
class UnknownNeed(Honest):
    """Wants statistics from nowhere the harness knows."""

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "future"  # type: ignore[return-value]
