"""Rows and indexes of all layers, filled once with synthetic contents at the longest context and read at every one.

Where memory does not hold all layers, some are stored and the others read those again: the same bytes cross the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from leadline.bench.contents import Contents
from leadline.errors import MachineError, explain
from leadline.host.memory import available_bytes
from leadline.host.placement import Placement
from leadline.host.stores import IndexStore, RowStore
from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Index, Scanner, State

MOST_ROWS = 8  # layers of rows stored unless asked for: more would take longer to pin and read no differently
_RESERVE = 6 << 30  # left to weights' buffers, scores, copies and the rest of the machine
_GIB = 1 << 30


@dataclass(frozen=True)
class Distinct:
    """Layers stored: layer l reads rows l % rows and index l % index, and both hold the same keys."""

    rows: int
    index: int


def choose_distinct(
    layers: int, asked: int | None, row_bytes: int, index_bytes: int, row_room: int, index_room: int, *, shared: bool
) -> Distinct:
    """How many layers to store: every index and some rows where they fit, else as many as do.

    row_bytes, index_bytes: of one layer; *_room: bytes of memory for each, one and the same where `shared`. Raises
    MachineError where what was asked for, or one layer, does not fit.
    """

    def fits(rows: int, index: int) -> bool:
        if shared:
            return rows * row_bytes + index * index_bytes <= row_room
        return rows * row_bytes <= row_room and index * index_bytes <= index_room

    tried = range(layers, 0, -1) if asked is None else [min(asked, layers)]
    for index in tried:
        most = min(index, MOST_ROWS) if asked is None else index
        for rows in range(most, 0 if asked is None else most - 1, -1):
            if fits(rows, index) and (index == layers or index % rows == 0):
                return Distinct(rows, index)
    least = asked or 1
    raise MachineError(
        explain(
            f"{least} of {layers} layers do not fit in memory",
            found=f"{row_room / _GIB:.1f} GiB for rows, {index_room / _GIB:.1f} GiB for indexes"
            + (", the same memory" if shared else ""),
            expected=f"{least} times {row_bytes / _GIB:.2f} GiB of rows and {index_bytes / _GIB:.2f} GiB of indexes",
            do="shorten --context, lower --batch or --distinct, or put parts elsewhere with --placement",
        )
    )


def room_for(placement: Placement, device: torch.device) -> dict[str, int]:
    """Bytes of memory for "rows" and "index" where they are placed."""
    found = {"host": available_bytes() if "host" in (placement.rows, placement.index) else 0}
    found["device"] = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    where = {"rows": placement.rows, "index": placement.index}
    return {part: max(0, found[place] - _RESERVE) for part, place in where.items()}


def stored_scanners(scanners: Sequence[Scanner], contents: Contents) -> dict[str, tuple[Scanner, list[State]]]:
    """The scanners that bring a store of their own, one for each different store, with their states by layer."""
    found = {}
    for scanner in scanners:
        if not scanner.reads_rows and scanner.store not in found:
            states = contents.states(scanner)
            if _probe(scanner, states[0], contents).fields:
                found[scanner.store] = (scanner, states)
    return found


def layer_bytes(stored: Mapping[str, tuple[Scanner, list[State]]], contents: Contents, capacity: int) -> int:
    """Bytes of all these stores in one layer, at a capacity in tokens."""
    blocks = capacity // BLOCK
    return sum(_probe(scanner, states[0], contents).nbytes * blocks for scanner, states in stored.values())


def _probe(scanner: Scanner, state: State, contents: Contents) -> Index:
    shape = (contents.heads, BLOCK, contents.shape.head_dim)
    return scanner.build(torch.zeros(shape, device=contents.device, dtype=contents.dtype), state)


@dataclass(frozen=True)
class Filled:
    """What was filled: rows, and indexes by the scanners' `store` names."""

    contents: Contents
    distinct: Distinct
    capacity: int
    rows: RowStore
    stores: Mapping[str, IndexStore]

    def row_layer(self, layer: int) -> int:
        """Where the rows of a layer lie."""
        return layer % self.distinct.rows

    def index(self, scanner: Scanner, layer: int, blocks: int) -> Index:
        """A scanner's index of a layer over the first `blocks` blocks; for the oracle, the key rows as they lie."""
        tokens = blocks * BLOCK
        if scanner.reads_rows:
            return scanner.build(self.rows.keys(self.row_layer(layer))[:, :tokens], State())
        store = self.stores.get(scanner.store)
        return Index({}, {}, tokens) if store is None else store.index(layer % self.distinct.index, blocks)

    def index_bytes(self, scanner: Scanner, blocks: int) -> int:
        """Bytes that the scanner's indexes of all layers hold; 0 where it brings none."""
        if scanner.store not in self.stores:
            return 0
        return self.contents.shape.layers * self.index(scanner, 0, blocks).nbytes


def fill(
    contents: Contents,
    distinct: Distinct,
    stored: Mapping[str, tuple[Scanner, list[State]]],
    capacity: int,
    placement: Placement,
) -> Filled:
    """Make and fill the memory: `contents.distinct` must be `distinct.rows`. MachineError where it is not there."""
    form = (contents.heads, contents.shape.head_dim, capacity)
    on = {"device": contents.device, "dtype": contents.dtype}
    rows = RowStore(range(distinct.rows), *form, where=placement.rows, **on)  # type: ignore[arg-type]
    stores = {
        name: IndexStore(scanner, dict(enumerate(states[: distinct.index])), *form, where=placement.index, **on)  # type: ignore[arg-type]
        for name, (scanner, states) in stored.items()
    }
    for layer in range(distinct.rows):
        for first, keys, values in contents.rows(layer, capacity):
            rows.put(layer, first, keys, values)
            for store in stores.values():
                for same in range(layer, distinct.index, distinct.rows):
                    store.extend(same, keys, first // BLOCK)
    for store in stores.values():
        store.verify()
    return Filled(contents, distinct, capacity, rows, stores)
