"""The exact K/V rows of one sequence: what the model attends to, what scanners are built from, what a branch rewinds.

One buffer per layer is allocated at full capacity when the rows are made, so that neither values nor strides depend on
how the sequence grew, and a rewind costs nothing. Sliding-window layers keep all their rows too (a window that had
dropped rows could not be rewound exactly); their window is applied by the model's own mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from leadline.errors import UsageError, explain

if TYPE_CHECKING:
    from leadline.model import LoadedModel, ModelShape


class RowLayer(DynamicLayer):  # type: ignore[misc]
    """Rows of one layer: `[1, H, capacity, d]` for keys and for values, the first `filled` positions in use."""

    def __init__(self, heads: int, capacity: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.device, self.dtype, self.capacity, self.filled = device, dtype, capacity, 0
        self.key_buffer = torch.zeros(1, heads, capacity, head_dim, device=device, dtype=dtype)
        self.value_buffer = torch.zeros_like(self.key_buffer)
        self.is_initialized = True
        self._expose()

    def _expose(self) -> None:
        self.keys = self.key_buffer[:, :, : self.filled]
        self.values = self.value_buffer[:, :, : self.filled]

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing to do: the buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append `[1, H, T, d]` rows (post-RoPE, post-norm) and return views of all rows so far, `[1, H, n, d]`."""
        if key_states.shape[0] != 1:
            raise ValueError(f"rows hold one sequence, not a batch of {key_states.shape[0]}")
        end = self.filled + key_states.shape[-2]
        _check_room(end, self.capacity)
        self.key_buffer[:, :, self.filled : end] = key_states
        self.value_buffer[:, :, self.filled : end] = value_states
        self.filled = end
        self._expose()
        return self.keys, self.values

    def get_seq_length(self, *_: Any) -> int:
        """Positions in use; the model takes the position of the next token from here."""
        return self.filled

    def get_max_length(self) -> int:
        """The capacity in tokens."""
        return self.capacity

    def rewind(self, n: int) -> None:
        """Keep the first n positions; what lies behind them is overwritten by the next update."""
        self.filled = n
        self._expose()


class Rows(Cache):  # type: ignore[misc]
    """K/V rows of one sequence (batch 1) in every layer, as transformers' cache object.

    `capacity` counts tokens. An update beyond it is a UsageError that names it.
    """

    def __init__(
        self,
        shape: ModelShape,
        capacity: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"rows need a capacity of at least 1 token, not {capacity}")
        self.capacity = capacity
        place = torch.device(device)
        layers = [RowLayer(shape.kv_heads, capacity, shape.head_dim, place, dtype) for _ in range(shape.layers)]
        super().__init__(layers=layers)

    @classmethod
    def for_model(cls, model: LoadedModel, capacity: int) -> Self:
        """Empty rows of this model's shape, on its device and in its precision."""
        return cls(model.shape, capacity, device=model.device, dtype=model.dtype)

    @property
    def length(self) -> int:
        """Tokens whose rows are complete in every layer."""
        return min(int(layer.filled) for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values of all layers."""
        return sum(layer.key_buffer.nbytes + layer.value_buffer.nbytes for layer in self.layers)

    def check_room(self, tokens: int) -> None:
        """UsageError unless `tokens` more tokens fit."""
        _check_room(self.length + tokens, self.capacity)

    def rewind(self, n: int) -> None:
        """Forget every token from position n on, exactly, in all layers. ValueError if n is not in 0..length."""
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot rewind to {n}: the rows hold {self.length} tokens")
        for layer in self.layers:
            layer.rewind(n)

    def keys(self, layer: int) -> Tensor:
        """Keys of one layer, post-RoPE and post-norm, `[H, n, d]`: a view, valid until the next update or rewind."""
        found: Tensor = self.layers[layer].keys[0]
        return found

    def values(self, layer: int) -> Tensor:
        """Values of one layer, `[H, n, d]`: a view, valid until the next update or rewind."""
        found: Tensor = self.layers[layer].values[0]
        return found


def _check_room(needed: int, capacity: int) -> None:
    if needed > capacity:
        raise UsageError(
            explain(
                "the K/V rows are full",
                field="capacity",
                found=f"{needed} tokens",
                expected=f"at most the capacity of {capacity} tokens",
                do="raise the longest context, or decode fewer tokens",
            )
        )
