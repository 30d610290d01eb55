"""The plan kernel gives the reference's depths bit for bit, ties included."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.slots import Slots, slots
from leadline.kernels.waterfill import depths, plan


def poisoned(heads: int, d: int) -> tuple[Tensor, Slots]:
    depth = torch.full((heads, d), -1, dtype=torch.int32, device=DEVICE)
    return depth, Slots(depth - 8, torch.full((heads, 5), -9, dtype=torch.int32, device=DEVICE))


def same(found: tuple[Tensor, Slots], expected: Tensor) -> None:
    assert torch.equal(found[0].cpu().long(), expected)
    listed = slots(expected)
    assert torch.equal(found[1].channel.cpu(), listed.channel)
    assert torch.equal(found[1].deeper.cpu(), listed.deeper)


@pytest.mark.parametrize("d", [64, 80, 256])
@pytest.mark.parametrize("kind", ["spread", "ties", "powers", "uniform", "zero", "denormal"])
def test_depths_equal_the_reference(d: int, kind: str) -> None:
    noise = torch.randn(3, d, generator=torch.Generator().manual_seed(d))
    importance = {
        "spread": torch.exp(3 * noise),
        "ties": noise.abs().round(),
        "powers": torch.exp2(noise.round()),
        "uniform": torch.full((3, d), 0.7),
        "zero": torch.zeros(3, d),
        "denormal": noise.abs() * 1e-38,
    }[kind]
    for budget in (0, 3 * d // 8, d - 1, 4 * d - 1, 4 * d):
        found = kernels_of("waterfill").depths(importance.to(DEVICE), budget, *poisoned(3, d))
        same(found, depths(importance, budget))


@pytest.mark.parametrize("group", [1, 3, 4, 6, 7, 8])
def test_plans_from_queries_equal_the_reference(group: int) -> None:
    generator = torch.Generator().manual_seed(group)
    query = torch.randn(2, group, 128, generator=generator)
    variance = torch.exp(2 * torch.randn(2, 128, generator=generator))
    strided = torch.stack([query, query], 2)[:, :, 0].to(DEVICE)
    found = kernels_of("waterfill").plan(strided, variance.to(DEVICE), 48, *poisoned(2, 128))
    expected = depths(torch.square(query).sum(-2) * variance, 48)
    same(found, expected)
    for run in (kernels_of("waterfill").plan, plan):
        active = torch.full((2, 128), torch.nan, device=DEVICE)
        totals = torch.tensor([5, 50], device=DEVICE)
        into = poisoned(2, 128)
        assert run(strided, variance.to(DEVICE), 48, *into, active, totals)[1] is into[1]
        same(into, expected)
        assert torch.equal(active.cpu(), (expected > 0).float())
        assert totals.tolist() == [5 + int(expected.sum()), 50 + int((expected > 0).sum())]
        same(run(strided, variance.to(DEVICE), 48), expected)


def test_refuses_what_it_cannot_plan() -> None:
    kernels = kernels_of("waterfill")
    with pytest.raises(ValueError, match="not negative"):
        kernels.depths(torch.ones(1, 8), -1)
    with pytest.raises(ValueError, match="fp32"):
        kernels.depths(torch.ones(1, 8, dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="variance"):
        kernels.plan(torch.ones(1, 2, 8), torch.ones(1, 9), 1)
