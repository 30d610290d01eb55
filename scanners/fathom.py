"""Fathom: every query decides how many planes of each key channel to read (Fathom sections 3.3 and 3.5, SPEC section
2).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.waterfill import depths
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled
from leadline.scanners.statistics import LayerStatistics


class Fathom(Scanner):
    """Water-filling of `budget` code bits over g_j = sum_h q_j^2 Var(k_j), one plan per KV head shared by its group.

    budget: code bits per token per 128 channels, a ceiling. basis: raw channels, or planes of (k - mu) V with g_j =
    sum_h (q_h V)_j^2 lambda_j, all coordinates stored. statistics: where Var, mu, V and lambda come from, a calibration
    text or the session's own prompt up to its first branch point.
    """

    name: ClassVar[str] = "fathom"
    headline: ClassVar[tuple[str, ...]] = ("budget",)
    budget: int = Field(default=48, ge=1)
    basis: Literal["raw", "rotated"] = "raw"
    statistics: Literal["calibration", "session"] = "calibration"

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return self.statistics

    @property
    def store(self) -> str:
        return "planes" if self.basis == "raw" else f"planes:rotated:{self.statistics}"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        if self.basis == "raw":
            return State(variance=statistics.variance)
        return State(variance=statistics.basis.variance, basis=statistics.basis)

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, state.basis, block)

    def importance(self, query: Tensor, state: State) -> Tensor:
        """g `[..., H, d]` of queries `[..., H, G, d]` (Fathom equation 3)."""
        assert state.variance is not None
        return torch.square(self._rotated(query, state)).sum(-2) * state.variance

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return plane_store.read(depths(self.importance(query, state), scaled(self.budget, query.shape[-1])))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(self._rotated(query, state), reads)

    @staticmethod
    def _rotated(query: Tensor, state: State) -> Tensor:
        return query if state.basis is None else state.basis.rotate_query(query)
