"""A session's stores: filled behind the prefill chunk by chunk, shared by all branches, never changed by one.

Only complete 64-token blocks are stored: floor((n - 1) / 64) of a prompt of n tokens, whose last token is decoded under
the scanner (SPEC section 1). Scanners with equal `store` names share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from leadline.host.index_store import IndexStore
from leadline.host.indexes import LayerIndexes, WholeStore
from leadline.host.placement import Placement
from leadline.host.row_store import RowStore
from leadline.kernels.planes import BLOCK
from leadline.rows import Rows
from leadline.scanners.base import Scanner, State

__all__ = ["IndexStore", "LayerIndexes", "Placement", "RowStore", "SessionStores", "WholeStore", "is_block_local"]


def is_block_local(scanner: Scanner) -> bool:
    """Whether a store may be built block by block: the built-ins promise it, a plugin does not."""
    return type(scanner).__module__.startswith("leadline.")


class SessionStores:
    """The stores of one session under one prefill, over its rows.

    After every prefill chunk call `advance`; whenever the rows are rewound, `rewind`. With rows placed on the GPU the
    session's own rows are what is fetched from, with rows placed on the host a `RowStore` of records is filled.
    """

    def __init__(self, rows: Rows, layers: Sequence[int], placement: Placement) -> None:
        """`layers` are the scanned ones. MachineError where the rows' memory is not there."""
        self._rows, self.layers, self.placement = rows, tuple(layers), placement
        sample = rows.layers[self.layers[0]].key_buffer
        self._heads, _, self._head_dim = sample.shape[1:]
        self._device, self._dtype = sample.device, sample.dtype
        self._stores: dict[tuple[bool, str], LayerIndexes] = {}
        self._rows_done = 0
        self.row_store: RowStore | None = None
        if placement.rows == "host":
            self.row_store = RowStore(
                self.layers,
                self._heads,
                self._head_dim,
                rows.capacity // BLOCK * BLOCK,
                where="host",
                device=self._device,
                dtype=self._dtype,
            )

    @property
    def blocks(self) -> int:
        """Complete blocks of the rows as they stand."""
        return self._rows.length // BLOCK

    def advance(self, rows: Rows) -> None:
        """Take the newly completed blocks of `rows` into the rows' store and every scanner's, on the current stream.

        `rows` are the ones given at the start, or others of the same shape that continue them.
        """
        self._rows = rows
        for store in self._stores.values():
            self._extend(store)
        if self.row_store is not None and self._rows_done < self.blocks:
            first, end = self._rows_done * BLOCK, self.blocks * BLOCK
            for layer in self.layers:
                keys, values = rows.keys(layer)[:, first:end], rows.values(layer)[:, first:end]
                self.row_store.put(layer, first, keys, values)
            self._rows_done = self.blocks

    def rewind(self, n: int) -> None:
        """Only the first n tokens are still what they were: blocks that end past them are built again."""
        for store in self._stores.values():
            store.truncate(n // BLOCK)
        self._rows_done = min(self._rows_done, n // BLOCK)

    def of(self, scanner: Scanner, states: Mapping[int, State]) -> LayerIndexes:
        """The store of a scanner, over all complete blocks; one asked for the first time is built from block 0.

        Waits for the GPU once, to raise ValueError where a key did not fit the store. MachineError where the memory is
        not there.
        """
        key = is_block_local(scanner), scanner.store
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._make(scanner, states)
        self._extend(store)
        if isinstance(store, WholeStore):
            store.build(self.blocks, self.keys if store.scanner.reads_rows else self._rows.keys)
        store.verify()
        return store

    def keys(self, layer: int) -> Tensor:
        """Keys to fetch winners from, `[H, capacity, d]`, of which those of complete blocks are meant: a view."""
        if self.row_store is not None:
            return self.row_store.keys(layer)
        found: Tensor = self._rows.layers[layer].key_buffer[0]
        return found

    def values(self, layer: int) -> Tensor:
        """The values beside `keys`."""
        if self.row_store is not None:
            return self.row_store.values(layer)
        found: Tensor = self._rows.layers[layer].value_buffer[0]
        return found

    @property
    def allocated_bytes(self) -> int:
        """Bytes taken by the stores, the session's own rows left out."""
        rows = 0 if self.row_store is None else self.row_store.allocated_bytes
        return rows + sum(store.allocated_bytes for store in self._stores.values())

    def _make(self, scanner: Scanner, states: Mapping[int, State]) -> LayerIndexes:
        states = {layer: states[layer] for layer in self.layers}
        if scanner.reads_rows or not is_block_local(scanner):
            return WholeStore(scanner, states, self._device)
        return IndexStore(
            scanner,
            states,
            self._heads,
            self._head_dim,
            self._rows.capacity,
            where=self.placement.index,
            device=self._device,
            dtype=self._dtype,
        )

    def _extend(self, store: LayerIndexes) -> None:
        first, end = store.blocks, self.blocks
        if isinstance(store, IndexStore) and first < end:
            with store.clock.running():
                for layer in self.layers:
                    store.extend(layer, self._rows.keys(layer)[:, first * BLOCK : end * BLOCK], first)
