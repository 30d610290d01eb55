"""Water-filling: the exact form keeps its budget, and differs from the paper's bisection only on near-ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.kernels.waterfill import depths, depths_by_bisection

EXAMPLE = torch.tensor([12.22, 3.77, 0.63, 1e-5])


def at_line(importance: Tensor, theta: float) -> list[int]:
    """clip(round(log4(g / theta)), 0, 4) in Python floats; half-way values round up, as the plan counts them."""
    return [0 if g <= 0 else min(max(math.floor(math.log(g / theta, 4) + 0.5), 0), 4) for g in importance.tolist()]


def test_depths_at_given_water_lines() -> None:
    assert at_line(EXAMPLE, 0.1) == [3, 3, 1, 0]
    assert at_line(EXAMPLE, 0.01) == [4, 4, 3, 0]


@pytest.mark.parametrize(
    ("budget", "expected"), [(8, [4, 3, 1, 0]), (6, [3, 2, 1, 0]), (7, [3, 3, 1, 0]), (0, [0, 0, 0, 0])]
)
def test_budgets_of_the_worked_example(budget: int, expected: list[int]) -> None:
    assert depths(EXAMPLE, budget).tolist() == expected
    assert depths_by_bisection(EXAMPLE, budget)[0].tolist() == expected


def test_bisection_settles_at_the_published_water_line() -> None:
    found, theta = depths_by_bisection(EXAMPLE, 8)
    assert float(theta) == pytest.approx(0.079, abs=0.001)
    assert at_line(EXAMPLE, float(theta) * (1 + 1e-6)) == found.tolist()


importances = st.lists(
    st.floats(0, 1e6, width=32) | st.sampled_from([0.0, 1.0, 4.0, 16.0, 0.25]), min_size=1, max_size=40
)


@settings(max_examples=200, deadline=None)
@given(importances, st.integers(0, 170))
def test_budget_is_a_ceiling_and_depth_grows_with_importance(values: list[float], budget: int) -> None:
    g = torch.tensor(values)
    t = depths(g, budget)
    assert int(t.sum()) <= budget
    assert int(t.min()) >= 0
    assert int(t.max()) <= 4
    assert all(a <= b for a, b in zip(t[g.argsort()].tolist(), t[g.argsort()][1:].tolist(), strict=False))
    assert all(depth == 0 for depth, value in zip(t.tolist(), values, strict=True) if value == 0)


@settings(max_examples=200, deadline=None)
@given(importances, st.integers(0, 160))
def test_nothing_that_fits_is_left_out_but_ties(values: list[float], budget: int) -> None:
    """The next value below the water line would not fit together with everything equal to it."""
    g = torch.tensor(values)
    t = depths(g, budget)
    marginal = g.unsqueeze(-1) * 4.0 ** -(torch.arange(4) + 0.5)
    out = marginal[torch.arange(4) >= t.unsqueeze(-1)]
    rest = out[out > 0]
    if rest.numel():
        line = rest.max()
        assert int(t.sum()) + int((rest == line).sum()) > budget


@settings(max_examples=100, deadline=None)
@given(importances, st.integers(0, 159))
def test_more_budget_never_reads_less(values: list[float], budget: int) -> None:
    g = torch.tensor(values)
    assert bool((depths(g, budget + 1) >= depths(g, budget)).all())


def test_ties_leave_budget_unused() -> None:
    assert depths(torch.ones(64), 63).tolist() == [0] * 64
    assert depths(torch.ones(64), 64).tolist() == [1] * 64
    assert depths(torch.ones(64), 127).tolist() == [1] * 64
    assert depths(torch.tensor([4.0, 1.0, 1.0]), 2).tolist() == [1, 0, 0]


def test_everything_fits_at_four_planes_each() -> None:
    g = torch.tensor([3.0, 0.0, 1e-20, 5.0])
    for budget in (16, 17, 1000):
        assert depths(g, budget).tolist() == [4, 0, 4, 4]


def test_a_negative_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match="not negative"):
        depths(torch.ones(4), -1)


def test_plans_of_a_batch_are_those_of_its_members() -> None:
    g = torch.rand(5, 2, 64, generator=torch.Generator().manual_seed(0))
    together = depths(g, 24)
    assert all(torch.equal(together[i, h], depths(g[i, h], 24)) for i in range(5) for h in range(2))


def near_tie(g: Tensor, budget: int) -> float:
    """Relative gap between the last marginal value that fits and the first that does not."""
    flat = (
        (g.double().unsqueeze(-1) * 4.0 ** -(torch.arange(4, dtype=torch.float64) + 0.5))
        .flatten()
        .sort(descending=True)
        .values
    )
    return float((flat[budget - 1] - flat[budget]) / flat[budget - 1])


def test_exact_form_against_bisection_on_queries() -> None:
    """On 4,000 plans of heavy-tailed channel variances the two differ only where two values nearly tie."""
    generator = torch.Generator().manual_seed(1)
    variance = torch.exp(2 * torch.randn(8, 128, generator=generator))
    query = torch.randn(500, 8, 4, 128, generator=generator)
    g = query.square().sum(-2) * variance
    exact, (bisected, _) = depths(g, 48), depths_by_bisection(g, 48)
    differ = (exact != bisected).any(-1).nonzero().tolist()
    assert len(differ) <= 8, f"{len(differ)} of 4000 plans differ"
    for i, h in differ:
        assert near_tie(g[i, h], 48) < 1e-5
