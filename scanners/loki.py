"""Loki: the first r coordinates of the keys in their principal basis (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH
from leadline.kernels.scan import dot
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled, to_fp16
from leadline.scanners.statistics import Basis, LayerStatistics


class Loki(Scanner):
    """The first r coordinates of (k - mu) V, ordered by calibration score variance; nothing else is stored.

    r: coordinates per 128. precision: "int4" codes with the same block scales as every other scan, or "fp16"
    coordinates.
    """

    name: ClassVar[str] = "loki"
    headline: ClassVar[tuple[str, ...]] = ("r",)
    r: int = Field(default=32, ge=1, le=128)
    precision: Literal["int4", "fp16"] = "int4"

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "calibration"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        full = statistics.basis
        r = scaled(self.r, full.mean.shape[-1])
        return State(basis=Basis(full.mean, full.vectors[..., :r].contiguous(), full.variance[..., :r]))

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        assert state.basis is not None
        if self.precision == "int4":
            return plane_store.build(keys, state.basis, block)
        coordinates = to_fp16(state.basis.rotate_keys(keys), "coordinates").transpose(-1, -2).unsqueeze(-2).contiguous()
        return Index({"coordinates": coordinates}, {"coordinates": 1}, keys.shape[-2], block, state.basis)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        assert state.basis is not None
        every = torch.ones(state.basis.variance.shape, dtype=torch.int64, device=query.device)
        return plane_store.read(every * DEPTH) if self.precision == "int4" else ReadPlan({"coordinates": every})

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        assert state.basis is not None
        rotated = state.basis.rotate_query(query)
        if self.precision == "int4":
            return plane_store.score(rotated, reads)
        return dot(reads.query(rotated), reads.fields["coordinates"].squeeze(-2))
