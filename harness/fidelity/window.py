"""A window of text under a model: its rows, and the queries of its last positions, captured by the attention hook."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.attention import dense, forward, hooked
from leadline.model import LoadedModel
from leadline.prefill import chunk_ends
from leadline.rows import Rows

CHUNK = 512


@dataclass(frozen=True)
class CapturedLayer:
    """One layer of a window: queries `[Hq, T, d]` of its last T positions, keys and values `[H, n, d]`."""

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float

    @property
    def first(self) -> int:
        """The first measured position; everything before it is the window's own past."""
        return self.keys.shape[1] - self.query.shape[1]


@dataclass(frozen=True)
class Window:
    """A captured window. `rows` holds every layer's keys and values, in the model's precision, on its device."""

    name: str
    sha256: str
    rows: Rows
    queries: dict[int, Tensor]
    scaling: dict[int, float]

    @property
    def length(self) -> int:
        """Tokens."""
        return self.rows.length

    @property
    def layers(self) -> tuple[int, ...]:
        """Scanned layers, ascending."""
        return tuple(sorted(self.queries))

    def layer(self, layer: int) -> CapturedLayer:
        """What was captured in one layer: views, nothing is copied."""
        return CapturedLayer(
            self.queries[layer], self.rows.keys(layer), self.rows.values(layer), float(self.scaling[layer])
        )


class _LastQueries:
    """Dense attention that keeps the queries of positions `first` and later, layer by layer."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.parts: dict[int, list[Tensor]] = {}
        self.scaling: dict[int, float] = {}

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        start = keys.shape[1] - query.shape[1]
        wanted = query[:, max(0, self._first - start) :]
        if wanted.shape[1]:
            self.parts.setdefault(layer, []).append(wanted.clone())
        self.scaling[layer] = scaling
        return dense(query, keys, values, scaling)


def measured_positions(length: int) -> int:
    """How many last positions of a window of `length` tokens are measured: 128, and 64 from 128k tokens on."""
    return 64 if length >= 131072 else 128


def capture(model: LoadedModel, name: str, ids: Sequence[int], positions: int, chunk: int = CHUNK) -> Window:
    """Prefill `ids` densely and keep the queries of the last `positions` of them. ValueError if there are not more."""
    if not 0 < positions < len(ids):
        raise ValueError(f"cannot measure the last {positions} of {len(ids)} positions")
    rows = Rows.for_model(model, len(ids))
    attend = _LastQueries(len(ids) - positions)
    tokens = torch.tensor(ids)
    with hooked(model):
        for end in chunk_ends(0, len(ids), chunk, ()):
            forward(model, tokens[rows.length : end], rows, attend=attend)
    queries = {layer: torch.cat(parts, 1) for layer, parts in attend.parts.items()}
    return Window(name, ids_sha256(ids), rows, queries, attend.scaling)


def ids_sha256(ids: Sequence[int]) -> str:
    """Hash of token ids."""
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()
