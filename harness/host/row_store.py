"""The exact K/V rows of complete blocks as records, K beside V: one place of host memory to fetch per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.host.placement import Where, empty
from leadline.kernels.place import place


class RowStore:
    """Records `[H, capacity, 2, d]` of every scanned layer, in GPU or in pinned host memory.

    `capacity` counts tokens. MachineError where the memory is not there.
    """

    def __init__(
        self,
        layers: Sequence[int],
        heads: int,
        head_dim: int,
        capacity: int,
        *,
        where: Where,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._place_of = {layer: i for i, layer in enumerate(layers)}
        self._records = empty((len(layers), heads, capacity, 2, head_dim), dtype, where, device, "the K/V rows")
        self.capacity = capacity

    @property
    def allocated_bytes(self) -> int:
        """Bytes taken."""
        return self._records.nbytes

    def put(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Copy keys and values `[H, t, d]` to positions first to first + t, on the current stream."""
        end = first + keys.shape[1]
        if not 0 <= first <= end <= self.capacity:
            raise ValueError(f"cannot put rows {first} to {end} into a store of {self.capacity}")
        records = self.records(layer)[:, first:end]
        place(keys, records[:, :, 0])
        place(values, records[:, :, 1])

    def records(self, layer: int) -> Tensor:
        """`[H, capacity, 2, d]`: a view."""
        return self._records[self._place_of[layer]]

    def keys(self, layer: int) -> Tensor:
        """`[H, capacity, d]`: a view of every record's first half."""
        return self.records(layer)[:, :, 0]

    def values(self, layer: int) -> Tensor:
        """`[H, capacity, d]`: a view of every record's second half."""
        return self.records(layer)[:, :, 1]
