"""Double Sparsity: a 4-bit label cache of channels chosen offline (SPEC section 2)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled
from leadline.scanners.statistics import Basis, LayerStatistics


class DoubleSparsity(Scanner):
    """c channels per KV head by mean |q| over the group times mean |k| on calibration text; only those are stored.

    channels: c per 128. Ties break to the smallest channel. The label cache is the plane store of the chosen channels,
    kept as a basis of unit vectors.
    """

    name: ClassVar[str] = "double_sparsity"
    headline: ClassVar[tuple[str, ...]] = ("channels",)
    channels: int = Field(default=32, ge=1, le=128)

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "calibration"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        if statistics.abs_query is None or statistics.abs_key is None:
            raise ValueError("double_sparsity needs query statistics, which the given calibration does not hold")
        weight = statistics.abs_query * statistics.abs_key
        c = scaled(self.channels, weight.shape[-1])
        chosen = weight.argsort(dim=-1, descending=True, stable=True)[..., :c].sort(-1).values
        unit = torch.nn.functional.one_hot(chosen, weight.shape[-1]).to(torch.float32).transpose(-1, -2).contiguous()
        basis = Basis(torch.zeros_like(weight), unit, statistics.variance.gather(-1, chosen))
        return State(channels=chosen, basis=basis)

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, state.basis, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        assert state.channels is not None
        return plane_store.read(torch.full_like(state.channels, DEPTH))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        assert state.basis is not None
        return plane_store.score(state.basis.rotate_query(query), reads)
