"""Fathom with one water line for many heads: a head that needs depth takes it from one that does not.

The flat plan gives every KV head of every layer the same budget. Here the heads of a layer share one line, for each
query, under a total that is never above the flat plan's; or the whole model shares one fixed line, whose total then
differs from query to query and meets the budget only in the mean over the calibration's text.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from leadline.errors import UsageError, explain
from leadline.kernels.planes import BLOCK
from leadline.kernels.waterfill import depths
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled
from leadline.scanners.depth_statistics import line_of
from leadline.scanners.statistics import LayerStatistics
from leadline.scanners.water_line import above, fill, modelled_values


class FathomGlobal(Scanner):
    """Fathom whose KV heads share one water line over g_j = sum_h q_j^2 Var(k_j), read from the same store.

    budget: code bits per token per 128 channels, per KV head. scope: "layer" draws a line per layer and query over all
    KV heads, a ceiling that never exceeds what the flat plan of that query reads in all; "model" keeps one line for all
    layers and queries, at which the calibration text's queries read `budget` in the mean: no ceiling at all. weight:
    "absolute" compares g_j as they are, so that heads whose scores vary most read most; "relative" divides them by the
    head's sum, so that depth goes to heads whose variance is spread over many channels. basis: as in `fathom`. A line
    for the model is known for raw channels and absolute weights only.
    """

    name: ClassVar[str] = "fathom_global"
    headline: ClassVar[tuple[str, ...]] = ("budget",)
    shares_budget: ClassVar[bool] = True
    budget: int = Field(default=48, ge=1)
    scope: Literal["layer", "model"] = "layer"
    weight: Literal["absolute", "relative"] = "absolute"
    basis: Literal["raw", "rotated"] = "raw"

    @model_validator(mode="after")
    def _what_a_line_is_known_for(self) -> Self:
        if self.scope == "model" and (self.basis, self.weight) != ("raw", "absolute"):
            raise ValueError("scope=model needs basis=raw and weight=absolute: no other line is calibrated")
        return self

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        return "calibration"

    @property
    def store(self) -> str:
        return "planes" if self.basis == "raw" else "planes:rotated:calibration"

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        assert statistics is not None
        if self.basis == "rotated":
            return State(variance=statistics.basis.variance, basis=statistics.basis)
        if self.scope == "layer":
            return State(variance=statistics.variance)
        if statistics.line_bits is None:
            raise UsageError(
                explain(
                    f"{self.label} needs the bits a water line costs",
                    field="--calibration",
                    found="a calibration without it, of an older leadline",
                    do="make it again with `leadline calibrate`",
                )
            )
        line = line_of(statistics.line_bits, scaled(self.budget, statistics.variance.shape[-1]))
        height = torch.tensor(line, dtype=torch.float32, device=statistics.variance.device)
        return State(variance=statistics.variance, extra={"line": height})

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, state.basis, block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        assert state.variance is not None
        importance = torch.square(self._rotated(query, state)).sum(-2) * state.variance  # [..., H, d]
        if self.scope == "model":
            return plane_store.read(above(modelled_values(importance), state.extra["line"]))
        # Flat leaves bits unused where a head has less to read than its budget, or where values tie.
        flat = depths(importance, scaled(self.budget, query.shape[-1])).sum((-1, -2))
        if self.weight == "relative":
            importance = importance / importance.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        shared = fill(modelled_values(importance).flatten(-3, -2), flat)
        return plane_store.read(shared.unflatten(-1, importance.shape[-2:]))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(self._rotated(query, state), reads)

    @staticmethod
    def _rotated(query: Tensor, state: State) -> Tensor:
        return query if state.basis is None else state.basis.rotate_query(query)
