"""What a calibration decides: the store's basis and per-layer budgets, by attention errors on held-out windows (SPEC
sections 1 and 2).

Errors are measured with statistics of the other windows, never of the text they are measured on. The artifact's own
statistics are of all windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leadline.calibrating import calibrate
from leadline.errors import UsageError, explain
from leadline.fidelity.measure import LayerMeter
from leadline.fidelity.window import capture, measured_positions
from leadline.model import LoadedModel
from leadline.scanners.base import Scanner
from leadline.scanners.decisions import BUDGETS, RULE_BUDGET, BasisRule, Decisions, check_means, greedy
from leadline.scanners.fathom import Fathom
from leadline.scanners.statistics import BasisName
from leadline.states import States

Texts = Sequence[tuple[str, Sequence[int]]]
STORES: tuple[BasisName, ...] = ("raw", "rotated")
_RULE_BUDGETS = (RULE_BUDGET, 64)
_MOST_HELD_OUT = 4


def decide(
    model: LoadedModel,
    texts: Texts,
    *,
    means: Sequence[int],
    k: int,
    sink: int = 4,
    local: int = 32,
    tell: Callable[[str], None] = lambda _: None,
) -> Decisions:
    """Choose the basis, and plan budgets by layer at every mean, on a held-out part of `texts`.

    Without `means` only the basis is chosen. `tell` hears what is being measured. UsageError where the text is too
    short to hold any of it out.
    """
    layers = model.shape.scanned_layers
    check_means(means, len(layers))
    fitted, held = hold_out(texts, k)
    budgets = BUDGETS if means else _RULE_BUDGETS
    tell(f"fitting on {len(fitted)} windows, to decide on {len(held)} held out")
    statistics, _ = calibrate(model, fitted, 0, "", depths=False)
    states = States(layers, {layer: each.to(model.device) for layer, each in statistics.items()})
    scanners: dict[BasisName, list[Scanner]] = {
        basis: [Fathom(budget=budget, basis=basis) for budget in budgets] for basis in STORES
    }
    sums = {basis: torch.zeros(len(layers), len(budgets), dtype=torch.float64) for basis in STORES}
    for name, ids in held:
        tell(f"measuring {2 * len(budgets)} settings on {name}")
        window = capture(model, name, ids, measured_positions(len(ids)))
        for i, layer in enumerate(layers):
            meter = LayerMeter(window.layer(layer), [k], sink, local)
            for basis in STORES:
                found = meter.measure([(each, states.of(each)[layer]) for each in scanners[basis]])
                sums[basis][i] += torch.tensor([figures[k].error for figures in found], dtype=torch.float64)
    errors = {basis: total / len(held) for basis, total in sums.items()}
    return Decisions(
        k=k,
        layers=layers,
        held_out=tuple(name for name, _ in held),
        held_out_positions=sum(measured_positions(len(ids)) for _, ids in held),
        fitted_on=tuple(name for name, _ in fitted),
        basis=_rule(errors, budgets),
        paths=tuple(greedy(basis, layers, errors[basis].tolist(), means) for basis in STORES if means),
        budgets=budgets,
        errors={basis: tuple(map(tuple, total.tolist())) for basis, total in errors.items()},
    )


def hold_out(texts: Texts, k: int) -> tuple[Texts, Texts]:
    """The windows to fit on and those to decide on: of several, the last quarter (at most 4) of the long ones is held
    out; of a single one, its measured last positions.
    """
    longest = max(len(ids) for _, ids in texts)
    needed = k + measured_positions(longest) + 1
    able = [i for i, (_, ids) in enumerate(texts) if 2 * len(ids) >= longest and len(ids) >= needed]
    if not able:
        raise UsageError(
            explain(
                "the text is too short to decide on a part of it held out",
                field="--text",
                found=f"windows of at most {longest} tokens",
                expected=f"at least {needed} tokens, for k = {k}",
                do="give longer text, or a smaller --k",
            )
        )
    if len(texts) == 1:
        ((name, ids),) = texts
        return [(f"{name} but its last positions", ids[: -measured_positions(len(ids))])], texts
    last = able[-min(_MOST_HELD_OUT, max(1, len(texts) // 4)) :]
    return [text for i, text in enumerate(texts) if i not in last], [texts[i] for i in last]


def _rule(errors: dict[BasisName, Tensor], budgets: Sequence[int]) -> BasisRule:
    means = {basis: total.mean(0).tolist() for basis, total in errors.items()}
    at = list(budgets).index(RULE_BUDGET)
    return BasisRule(
        budgets=tuple(budgets),
        raw=tuple(means["raw"]),
        rotated=tuple(means["rotated"]),
        choice="rotated" if means["rotated"][at] < means["raw"][at] else "raw",
    )
