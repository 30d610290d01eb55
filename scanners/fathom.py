"""Fathom: every query decides how many planes of each key channel to read (Fathom sections 3.3 and 3.5, SPEC section
2).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from leadline.errors import UsageError, explain
from leadline.kernels.planes import BLOCK
from leadline.kernels.waterfill import depths
from leadline.scanners import plane_store
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State, scaled
from leadline.scanners.statistics import BasisName, LayerStatistics


class Fathom(Scanner):
    """Water-filling of `budget` code bits over g_j = sum_h q_j^2 Var(k_j), one plan per KV head shared by its group.

    budget: code bits per token per 128 channels, a ceiling. basis: raw channels, or planes of (k - mu) V with g_j =
    sum_h (q_h V)_j^2 lambda_j, all coordinates stored; "auto" is the one that the calibration chose. statistics: where
    Var, mu, V and lambda come from, a calibration text or the session's own prompt up to its first branch point. plan:
    every layer at the budget, or the calibration's budgets by layer, of which `budget` is the mean. weight: what g_j
    is, for ablations: sum_h q_j^2 Var(k_j), sum_h q_j^2, or sum_h |q_j|.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    name: ClassVar[str] = "fathom"
    headline: ClassVar[tuple[str, ...]] = ("budget",)
    budget: int = Field(default=48, ge=1)
    basis: Literal["raw", "rotated", "auto"] = "raw"
    statistics: Literal["calibration", "session"] = "calibration"
    allotment: Literal["flat", "per-layer"] = Field(default="flat", alias="plan")  # `plan` itself is a method
    weight: Literal["q2var", "q2", "absq"] = "q2var"

    @model_validator(mode="after")
    def _decided_by_calibrations_only(self) -> Self:
        if self.statistics == "session" and (self.basis == "auto" or self.allotment == "per-layer"):
            raise ValueError("basis=auto and plan=per-layer are decisions of a calibration: use statistics=calibration")
        return self

    @property
    def needs(self) -> Literal["nothing", "calibration", "session"]:
        without = self.basis == "raw" and self.allotment == "flat" and self.weight != "q2var"
        return "nothing" if without else self.statistics

    @property
    def store(self) -> str:
        return "planes" if self.basis == "raw" else f"planes:{self.basis}:{self.statistics}"

    @property
    def label(self) -> str:
        return super().label.replace("allotment=", "plan=")

    def options(self) -> dict[str, Any]:
        """All options; those that came later are left out at their defaults, so that older results keep their name."""
        later = {"allotment": "plan", "weight": "weight"}
        changed = self.model_dump(mode="json", exclude_defaults=True)
        return {later.get(k, k): v for k, v in super().options().items() if k not in later or k in changed}

    def settled(self, choice: BasisName | None) -> Fathom:
        """The scanner with basis=auto replaced by a calibration's choice; itself where the basis is named."""
        return self if self.basis != "auto" or choice is None else self.model_copy(update={"basis": choice})

    def calibrate(self, statistics: LayerStatistics | None) -> State:
        if statistics is None:
            return State()
        basis = self._basis(statistics)
        extra = {}
        if self.allotment == "per-layer":
            # On the CPU: the budget decides shapes of work, and reading it must not wait for a GPU.
            extra["budget"] = torch.tensor(self._layer_budget(statistics, basis))
        if basis == "raw":
            return State(variance=statistics.variance, extra=extra)
        return State(variance=statistics.basis.variance, basis=statistics.basis, extra=extra)

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return plane_store.build(keys, state.basis, block)

    def importance(self, query: Tensor, state: State) -> Tensor:
        """g `[..., H, d]` of queries `[..., H, G, d]` (Fathom equation 3)."""
        rotated = self._rotated(query, state)
        if self.weight == "absq":
            return rotated.abs().sum(-2)
        squares = torch.square(rotated).sum(-2)
        if self.weight == "q2":
            return squares
        assert state.variance is not None
        return squares * state.variance

    def code_bits(self, head_dim: int, state: State) -> int:
        """The ceiling of a plan at this head_dim, in this state's layer."""
        return scaled(int(state.extra["budget"]) if "budget" in state.extra else self.budget, head_dim)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return plane_store.read(depths(self.importance(query, state), self.code_bits(query.shape[-1], state)))

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return plane_store.score(self._rotated(query, state), reads)

    @staticmethod
    def _rotated(query: Tensor, state: State) -> Tensor:
        return query if state.basis is None else state.basis.rotate_query(query)

    def _basis(self, statistics: LayerStatistics) -> BasisName:
        if self.basis != "auto":
            return self.basis
        if statistics.basis_choice is None:
            raise UsageError(
                explain(
                    f"scanner {self.label}: the calibration did not choose a store",
                    field="basis",
                    found="auto",
                    expected="a calibration whose decisions were made, or basis=raw or basis=rotated",
                    do="make it again with `leadline calibrate`",
                )
            )
        return statistics.basis_choice

    def _layer_budget(self, statistics: LayerStatistics, basis: BasisName) -> int:
        found = statistics.layer_budgets.get((basis, self.budget))
        if found is None:
            held = ", ".join(f"{mean} ({store})" for store, mean in sorted(statistics.layer_budgets)) or "none"
            raise UsageError(
                explain(
                    f"scanner {self.label}: the calibration holds no such per-layer plan",
                    field="budget",
                    found=f"{self.budget} on the {basis} store",
                    expected=f"a mean that was planned: {held}",
                    do=f"make it again with `leadline calibrate --plans {self.budget}`",
                )
            )
        return found
