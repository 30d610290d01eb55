"""Synthetic keys, values and queries of SPEC section 8, made on any device in pieces, and the statistics they have.

Channels of a KV head have variances whose logarithm is normal with sigma 2; keys are normal with them, values normal.
Queries of a group are normal and correlated 0.8. The scanners' own rules then decide what a step reads. Everything is
drawn from the seed, the layer and the position, so that a second run reads the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leadline.bench.shapes import Shape
from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Scanner, State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import LayerStatistics

SIGMA = 2.0  # of ln Var(k_j)
CORRELATION = 0.8  # of the queries of a group
PIECE = 1024 * BLOCK  # tokens made at once
SAMPLE = 4096  # positions that calibration sees


@dataclass(frozen=True)
class Contents:
    """What a shape's layers hold, for a batch of sequences of equal length: their KV heads are rows of one another.

    `distinct` layers differ, layer l is as layer l % distinct. Shapes below: H = batch * KV heads.
    """

    shape: Shape
    batch: int
    seed: int
    distinct: int
    device: torch.device
    dtype: torch.dtype
    _statistics: dict[int, LayerStatistics] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def heads(self) -> int:
        """Rows of KV heads."""
        return self.batch * self.shape.kv_heads

    @property
    def sha256(self) -> str:
        """Stands for the calibration text in a scanner's identity."""
        text = f"synthetic {self.shape.name} {self.seed} {SIGMA} {CORRELATION} {SAMPLE}"
        return hashlib.sha256(text.encode()).hexdigest()

    def variance(self, layer: int) -> Tensor:
        """Var(k_j) `[KV heads, d]` in fp32, the same for every sequence."""
        drawn = self._normal("variance", layer, 0, self.shape.kv_heads, self.shape.head_dim)
        return torch.exp(SIGMA * drawn)

    def rows(self, layer: int, tokens: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(first position, keys `[H, t, d]`, values `[H, t, d]`) of a layer, piece by piece up to `tokens`."""
        spread = self.variance(layer).sqrt().repeat(self.batch, 1).unsqueeze(1)
        for first in range(0, tokens, PIECE):
            size = (self.heads, min(PIECE, tokens - first), self.shape.head_dim)
            keys = (self._normal("keys", layer, first, *size) * spread).to(self.dtype)
            yield first, keys, self._normal("values", layer, first, *size).to(self.dtype)

    def tail(self, layer: int, tokens: int) -> Tensor:
        """Records `[H, tokens, 2, d]` that follow the complete blocks."""
        records = self._normal("tail", layer, 0, self.heads, tokens, 2, self.shape.head_dim)
        records[:, :, 0] *= self.variance(layer).sqrt().repeat(self.batch, 1).unsqueeze(1)
        return records.to(self.dtype)

    def queries(self, step: int) -> Tensor:
        """Queries of every layer at one step, fp32 `[L, H, G, d]`."""
        return self._correlated("queries", step, self.shape.layers, self.heads)

    def statistics(self, layer: int) -> LayerStatistics:
        """What a calibration pass over 4,096 positions of the layer finds, for the rows of all sequences; made once."""
        layer %= self.distinct
        if layer not in self._statistics:
            self._statistics[layer] = self._calibrated(layer)
        return self._statistics[layer]

    def states(self, scanner: Scanner) -> list[State]:
        """The scanner's state in every layer."""
        if scanner.needs == "nothing":
            return [scanner.calibrate(None)] * self.shape.layers
        made = [scanner.calibrate(self.statistics(layer)) for layer in range(self.distinct)]
        return [made[layer % self.distinct] for layer in range(self.shape.layers)]

    def _calibrated(self, layer: int) -> LayerStatistics:
        found, kv, d = Accumulator(), self.shape.kv_heads, self.shape.head_dim
        keys = self._normal("calibration keys", layer, 0, kv, SAMPLE, d) * self.variance(layer).sqrt().unsqueeze(1)
        asked = self._correlated("calibration queries", layer, SAMPLE, kv)  # [T, KV, G, d]
        found.add(asked.permute(1, 2, 0, 3).flatten(0, 1), keys.to(self.dtype), 0)
        one = found.statistics().to(self.device)
        moments = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        return LayerStatistics(**{name: _for_all(value, self.batch) for name, value in moments.items()})

    def _correlated(self, what: str, which: int, *rows: int) -> Tensor:
        d = self.shape.head_dim
        shared = self._normal(f"{what}, shared", which, 0, *rows, 1, d)
        own = self._normal(f"{what}, own", which, 0, *rows, self.shape.group, d)
        together: Tensor = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * own
        return together

    def _normal(self, what: str, which: int, first: int, *size: int) -> Tensor:
        """fp32 normal deviates that depend on the seed and on what they are for."""
        layered = which if "queries" in what else which % self.distinct
        digest = hashlib.sha256(f"{self.seed} {what} {layered} {first}".encode()).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.randn(size, generator=generator, device=self.device)


def _for_all(moment: Any, batch: int) -> Any:
    """What holds rows of numbers per KV head, for the KV heads of all sequences; anything else as it is."""
    per_head = isinstance(moment, Tensor) and moment.dim() > 1
    return moment.repeat(batch, *[1] * (moment.dim() - 1)) if per_head else moment
