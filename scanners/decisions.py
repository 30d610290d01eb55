"""What a calibration decides for its model: the store's basis and each layer's budget (SPEC sections 1 and 2).

Both come from attention errors measured on text that the statistics behind them never saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from leadline.errors import UsageError, explain
from leadline.scanners.statistics import BasisName

LOWEST: Final = 24
HIGHEST: Final = 128
STEP: Final = 8
BUDGETS: Final = tuple(range(LOWEST, HIGHEST + 1, STEP))
RULE_BUDGET: Final = 48  # the basis with the lower error at this budget is the model's


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BasisRule(_Record):
    """Flat Fathom's attention error on each store, mean over layers, by budget; and the store with the lower one at 48
    code bits (a tie keeps raw, which needs no rotation).
    """

    budgets: tuple[int, ...]
    raw: tuple[float, ...]
    rotated: tuple[float, ...]
    choice: BasisName


class GreedyStep(_Record):
    """One increment: this layer's budget became `budget`, its error fell from `before` to `after`."""

    layer: int
    budget: int
    before: float
    after: float


class LayerPlan(_Record):
    """Budgets by layer, in the order of the calibration's layers, whose mean is `mean` exactly.

    `steps` says how many increments of the path lead here. `error` is the plan's, `flat_error` that of `mean`
    everywhere; means over layers of the errors the path was found with.
    """

    mean: int
    budgets: tuple[int, ...]
    steps: int
    error: float
    flat_error: float


class GreedyPath(_Record):
    """The greedy allotment on one store: from 24 everywhere, one increment of 8 bits at a time."""

    basis: BasisName
    steps: tuple[GreedyStep, ...]
    plans: tuple[LayerPlan, ...]


class Decisions(_Record):
    """Everything decided, and on what: k of the selection, held-out windows and their measured positions.

    `errors[basis][layer]` are the errors at budgets 24, 32, ..., 128 (or at the rule's budgets where no plan was made).
    `fitted_on` names the text whose statistics the errors were measured with.
    """

    k: int
    layers: tuple[int, ...]
    held_out: tuple[str, ...]
    held_out_positions: int
    fitted_on: tuple[str, ...]
    basis: BasisRule
    paths: tuple[GreedyPath, ...] = ()
    budgets: tuple[int, ...] = ()
    errors: dict[BasisName, tuple[tuple[float, ...], ...]] = {}

    def budgets_of(self, layer: int) -> Mapping[tuple[BasisName, int], int]:
        """This layer's budget in every plan, by (store, mean)."""
        at = self.layers.index(layer)
        return {(path.basis, plan.mean): plan.budgets[at] for path in self.paths for plan in path.plans}


def greedy(
    basis: BasisName, layers: Sequence[int], errors: Sequence[Sequence[float]], means: Sequence[int]
) -> GreedyPath:
    """Per-layer plans at each mean: the next 8 bits go to the layer whose measured error falls most, ties to the first.

    `errors[i]` are those of layer `layers[i]` at `BUDGETS`. One path passes through all means, since a smaller mean is
    an earlier stop. UsageError for a mean that increments of 8 bits cannot meet exactly.
    """
    check_means(means, len(layers))
    at = [0] * len(layers)
    steps: list[GreedyStep] = []
    plans = []
    for mean in sorted(set(means)):
        while sum(BUDGETS[i] for i in at) < mean * len(layers):
            open_layers = [j for j, i in enumerate(at) if i + 1 < len(BUDGETS)]
            best = max(open_layers, key=lambda j: (errors[j][at[j]] - errors[j][at[j] + 1], -j))
            before, after = errors[best][at[best]], errors[best][at[best] + 1]
            at[best] += 1
            steps.append(GreedyStep(layer=layers[best], budget=BUDGETS[at[best]], before=before, after=after))
        flat = [row[BUDGETS.index(mean)] for row in errors]
        plans.append(
            LayerPlan(
                mean=mean,
                budgets=tuple(BUDGETS[i] for i in at),
                steps=len(steps),
                error=_mean([row[i] for row, i in zip(errors, at, strict=True)]),
                flat_error=_mean(flat),
            )
        )
    return GreedyPath(basis=basis, steps=tuple(steps), plans=tuple(plans))


def check_means(means: Sequence[int], layers: int) -> None:
    """UsageError unless every mean budget is one of 24, 32, ..., 128, which any number of layers meets exactly."""
    for mean in means:
        if mean not in BUDGETS:
            raise UsageError(
                explain(
                    f"no per-layer plan has this mean exactly over {layers} layers in increments of {STEP} bits",
                    field="--plans",
                    found=mean,
                    expected=", ".join(map(str, BUDGETS)),
                )
            )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
