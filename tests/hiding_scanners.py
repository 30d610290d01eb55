"""Scanners that keep keys elsewhere than in their index, whose bytes are what a report states, and rank by them."""

from __future__ import annotations

import gc
import types
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from cheating_scanners import Honest, caught_by
from pydantic import PrivateAttr
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners import plane_store
from leadline.scanners.base import Index, Reads, State
from leadline.scanners.statistics import Basis, LayerStatistics

KEPT: dict[bytes, Any] = {}


class KeepsByContent(Honest):
    """Keeps the keys of every head under what will be delivered of it, and ranks by them: no clause about peeking can
    tell, since scores follow the delivery, head by head. Only what is stored gives it away. `kept` says where.
    """

    @abstractmethod
    def kept(self, state: State) -> dict[bytes, Any]:
        """Where the keys are hidden."""

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
        return KEPT


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
