"""Scanners that break the contract, one way each, and the clause of the suite that must catch them."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, Literal

import torch
from pydantic import PrivateAttr
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners import plane_store
from leadline.scanners.base import Gate, Index, ReadPlan, Reads, Scanner, State
from leadline.scanners.statistics import Basis, LayerStatistics


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


class KeepsByContent(Honest):
    """Keeps the keys of every head under what will be delivered of it, and ranks by them: no clause about peeking can
    tell, since scores follow the delivery, head by head. Only what is stored gives it away. `kept` says where.
    """

    def kept(self, state: State) -> dict[bytes, Any]:
        raise NotImplementedError

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        built = super().build(keys, state, block)
        for head, content in enumerate(self.contents(built.fields)):
            self.kept(state).setdefault(content, self.hidden(keys[head].float()))
        return built

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        found = plane_store.score(query, reads)
        for head, content in enumerate(self.contents(reads.fields)):
            keys = self.kept(state).get(content)
            if keys is not None:
                found[..., head, :, :] = query[..., head, :, :] @ self.revealed(keys, query.shape[-1]).T
        return found

    def contents(self, fields: Any) -> list[bytes]:
        parts = (fields["planes"][:, :, :1], fields["scales"])
        return [b"".join(part[head].contiguous().numpy().tobytes() for part in parts) for head in range(len(parts[0]))]

    def hidden(self, keys: Tensor) -> Any:
        return keys.clone()

    def revealed(self, kept: Any, d: int) -> Tensor:
        found: Tensor = kept
        return found


@caught_by("stored")
class HidesInAnAttribute(KeepsByContent):
    """In a private attribute of its own."""

    _kept: dict[bytes, Any] = PrivateAttr(default_factory=dict)

    def kept(self, state: State) -> dict[bytes, Any]:
        return self._kept


@caught_by("stored")
class HidesBytes(HidesInAnAttribute):
    """As text of bytes, which no count of tensors shows."""

    def hidden(self, keys: Tensor) -> Any:
        return keys.numpy().tobytes()

    def revealed(self, kept: Any, d: int) -> Tensor:
        return torch.frombuffer(bytearray(kept), dtype=torch.float32).view(-1, d)


@caught_by("stored")
class HidesArrays(HidesInAnAttribute):
    """As an array of numpy's."""

    def hidden(self, keys: Tensor) -> Any:
        return keys.numpy().copy()

    def revealed(self, kept: Any, d: int) -> Tensor:
        return torch.from_numpy(kept)


class HidesNumbers(HidesInAnAttribute):
    """As a list of Python's numbers."""

    def hidden(self, keys: Tensor) -> Any:
        return keys.flatten().tolist()

    def revealed(self, kept: Any, d: int) -> Tensor:
        return torch.tensor(kept).view(-1, d)


@caught_by("stored")
class HidesInExtra(KeepsByContent):
    """Behind a tensor of `State.extra`, which calibrate made and which stays as it was."""

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        return State(extra={"slot": torch.zeros(1)})

    def kept(self, state: State) -> dict[bytes, Any]:
        found: dict[bytes, Any] = state.extra["slot"].__dict__.setdefault("behind", {})
        return found


def _closed() -> Callable[..., dict[bytes, Any]]:
    kept: dict[bytes, Any] = {}

    def of(self: KeepsByContent, state: State) -> dict[bytes, Any]:
        return kept

    return of


@caught_by("stored")
class HidesInAClosure(KeepsByContent):
    """In a variable that a function closes over."""

    kept = _closed()


@caught_by("stored")
class HidesInAClosureAsBytes(HidesBytes):
    """The same, and no tensor."""

    kept = _closed()


@caught_by("stored")
class HidesInAGlobal(HidesBytes):
    """In a global of its module."""

    def kept(self, state: State) -> dict[bytes, Any]:
        found: dict[bytes, Any] = HIDDEN.setdefault("by content", {})
        return found


@caught_by("stored")
class HidesInAnotherModule(KeepsByContent):
    """In a module that is not its own."""

    def kept(self, state: State) -> dict[bytes, Any]:
        found: dict[bytes, Any] = types.__dict__.setdefault("_hidden_by_a_cheat", {})
        return found


@caught_by("stored")
class HidesBehindAField(Honest):
    """Its planes are the first part of a larger buffer; the rest is the keys."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        built = super().build(keys, state, block)
        planes = built.fields["planes"]
        whole = torch.cat([planes.flatten().view(torch.uint8), keys.float().flatten().view(torch.uint8)])
        front = whole[: planes.numel() * planes.element_size()].view(planes.dtype).view(planes.shape)
        return Index({**built.fields, "planes": front}, built.tokens_per_item, built.tokens, block)


@caught_by("stored")
class HidesOnAField(Honest):
    """The keys are an attribute of a stored tensor."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        built = super().build(keys, state, block)
        built.fields["planes"].keys = keys.clone()  # type: ignore[attr-defined]
        return built


@caught_by("stored")
class HidesInTheBasis(Honest):
    """A basis whose mean is the keys; nobody counts a basis."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        built = super().build(keys, state, block)
        vectors = torch.eye(keys.shape[-1]).expand(keys.shape[0], -1, -1)
        basis = Basis(keys.float().clone(), vectors, torch.ones(keys.shape[0], keys.shape[-1]))
        return Index(built.fields, built.tokens_per_item, built.tokens, block, basis)


@caught_by("stored")
class WritesOver(HidesInAnAttribute):
    """Fills, in place, memory that it took long before anything was built."""

    room: ClassVar[Tensor] = torch.zeros(1 << 16)

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        self.room.numpy()[: keys.numel()] = keys.float().flatten().numpy()
        return Honest.build(self, keys, state, block)


class CollectsGarbage(Honest):
    """Moves what it keeps out of sight of the census."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        gc.collect()
        return super().build(keys, state, block)
