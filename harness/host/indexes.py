"""The indexes of all layers of one scanner: what every store offers, and the store that is built in one go."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Index, Scanner, State


class Clock:
    """Seconds spent building: of the GPU's stream where there is one, else of the wall."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        if self._device.type == "cuda":
            cuda: Any = torch.cuda  # its events carry no types
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            begun = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begun

    @property
    def seconds(self) -> float:
        """The sum so far; on a GPU this waits for what was counted last."""
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds


class LayerIndexes(ABC):
    """A scanner's indexes of all scanned layers over the first blocks of a session."""

    def __init__(self, scanner: Scanner, states: Mapping[int, State], device: torch.device) -> None:
        self.scanner, self.states = scanner, states
        self.clock = Clock(device)

    @property
    @abstractmethod
    def blocks(self) -> int:
        """Complete blocks the store holds in every layer."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the items in use: what a record calls the stored size. 0 where the K rows are the store."""

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes taken, padding and room to grow included."""

    @abstractmethod
    def index(self, layer: int, blocks: int | None = None) -> Index:
        """The index of a layer over its first `blocks` blocks (all it holds): views, valid until `truncate`."""

    @abstractmethod
    def truncate(self, blocks: int) -> None:
        """Forget every block from `blocks` on."""

    def verify(self) -> None:  # noqa: B027  most stores have nothing left to say
        """Raise what building found wrong and could not say without waiting for the GPU."""

    def room(self) -> dict[int, Index]:
        """The index of every layer over all the room there is, at addresses that do not change as blocks come: what a
        captured step reads, told how many blocks are in use.
        """
        return self.indexes()

    def indexes(self, blocks: int | None = None) -> dict[int, Index]:
        """`index` of every layer."""
        return {layer: self.index(layer, blocks) for layer in self.states}

    @property
    def build_seconds(self) -> float:
        """Seconds spent building so far."""
        return self.clock.seconds


class WholeStore(LayerIndexes):
    """Indexes built in one go from the keys of all complete blocks: of plugins, whose stores may not be block-local,
    and of the oracle, whose store is the rows themselves.
    """

    def __init__(self, scanner: Scanner, states: Mapping[int, State], device: torch.device) -> None:
        super().__init__(scanner, states, device)
        self._built: dict[int, Index] = {}
        self._blocks = 0

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def nbytes(self) -> int:
        return 0 if self.scanner.reads_rows else sum(index.nbytes for index in self._built.values())

    @property
    def allocated_bytes(self) -> int:
        return self.nbytes

    def build(self, blocks: int, keys_of: Callable[[int], Tensor]) -> None:
        """Build every layer over the first `blocks` blocks, unless that is what there is.

        `keys_of` gives a layer's keys `[H, n, d]`. It is not kept: whoever gives them keeps this store.
        """
        if not self._built or blocks != self._blocks:
            with self.clock.running():
                self._built = {
                    layer: self.scanner.build(keys_of(layer)[:, : blocks * BLOCK], state)
                    for layer, state in self.states.items()
                }
            self._blocks = blocks

    def index(self, layer: int, blocks: int | None = None) -> Index:
        if blocks not in (None, self._blocks):
            raise ValueError(f"the store of {self.scanner.label} was built over {self._blocks} blocks, not {blocks}")
        return self._built[layer]

    def truncate(self, blocks: int) -> None:
        if blocks < self._blocks:
            self._built, self._blocks = {}, 0
