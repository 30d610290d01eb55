"""Plans and bytes on the queries and keys of a model, captured in its own attention."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from cases import SCANNERS
from torch import Tensor

from leadline.attention import dense, forward, hooked
from leadline.kernels.planes import BLOCK
from leadline.kernels.waterfill import depths, depths_by_bisection
from leadline.registry import create
from leadline.rows import Rows
from leadline.scanners.base import State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import LayerStatistics, of_keys
from leadline.scanners.transfer import fetch

TOKENS = 400


@pytest.fixture(scope="module")
def captured() -> list[tuple[Tensor, Tensor]]:
    """Query `[Hq, n, d]` and keys `[H, n, d]` of every layer of a small random model on random tokens."""
    model = tiny_models.model("qwen3", head_dim=64, num_attention_heads=8)
    seen: list[tuple[Tensor, Tensor]] = []

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        seen.append((query.clone(), keys.clone()))
        return dense(query, keys, values, scaling)

    ids = torch.randint(tiny_models.VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(0))
    with hooked(model):
        forward(model, ids, Rows.for_model(model, TOKENS), attend=attend)
    assert len(seen) == 4
    return seen


def statistics(query: Tensor, keys: Tensor) -> LayerStatistics:
    sums = Accumulator()
    sums.add(query, keys, 0)
    return sums.statistics()


def grouped(query: Tensor, heads: int) -> Tensor:
    """`[Hq, n, d]` -> `[n, H, G, d]`."""
    return query.unflatten(0, (heads, -1)).permute(2, 0, 1, 3)


@pytest.mark.parametrize("budget", [20, 24, 32, 40])
def test_the_plan_agrees_with_thirty_bisection_steps_but_for_near_ties(
    captured: list[tuple[Tensor, Tensor]], budget: int
) -> None:
    """The bisection ends on an interval of relative width e^(range / 2^30); values closer than that it cannot part."""
    plans = near_ties = 0
    for query, keys in captured:
        g = grouped(query, keys.shape[0]).square().sum(-2) * statistics(query, keys).variance
        exact, (bisected, _) = depths(g, budget), depths_by_bisection(g, budget)
        plans += g.shape[0] * g.shape[1]
        for t, h in (exact != bisected).any(-1).nonzero().tolist():
            marginal = (g[t, h].double().unsqueeze(-1) * 4.0 ** -(torch.arange(4) + 0.5)).flatten()
            ranked = marginal.sort(descending=True).values
            assert float(1 - ranked[budget] / ranked[budget - 1]) < 1e-6, "they differ and it is no near-tie"
            near_ties += 1
    assert plans == 4 * TOKENS * 2
    assert near_ties <= 3, f"{near_ties} of {plans} plans differ on near-ties"


@pytest.mark.parametrize("spec", SCANNERS)
def test_planned_bytes_equal_realised_bytes(captured: list[tuple[Tensor, Tensor]], spec: str) -> None:
    scanner = create(spec)
    whole = TOKENS // BLOCK * BLOCK
    for query, keys in captured:
        state = {
            "nothing": lambda: scanner.calibrate(None),
            "calibration": lambda q=query, k=keys: scanner.calibrate(statistics(q, k)),
            "session": lambda k=keys: scanner.calibrate(of_keys(k)),
        }[scanner.needs]()
        assert isinstance(state, State)
        index = scanner.build(keys[:, :whole], state)
        for t in (whole, TOKENS - 1):
            plan = scanner.plan(grouped(query, keys.shape[0])[t : t + 1], state, index)
            bits = plan.bits_per_token(index)
            planned = float(bits.sum() if isinstance(bits, Tensor) else torch.tensor(bits)) * whole / 8
            assert planned == fetch(index, plan).nbytes
