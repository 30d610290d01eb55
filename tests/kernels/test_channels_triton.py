"""The plan of the largest channels equals SparQ's own, ties included, in every form it is written."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of

from leadline.kernels import channels as ops
from leadline.kernels.slots import Slots, slots
from leadline.scanners.sparq import largest


@pytest.mark.parametrize(
    ("group", "d", "r"), [(1, 64, 8), (3, 80, 1), (4, 128, 16), (6, 64, 64), (7, 128, 0), (8, 256, 33)]
)
@pytest.mark.parametrize("kind", ["normal", "ties", "zero", "denormal"])
def test_equals_the_scanner(group: int, d: int, r: int, kind: str) -> None:
    noise = torch.randn(2, group, d + 4, generator=torch.Generator().manual_seed(d))[..., :d]
    query = {"normal": noise, "ties": noise.round(), "zero": noise * -0.0, "denormal": noise * 1e-40}[kind]
    expected = largest(query.abs().sum(-2), r).long() * 4
    listed = slots(expected)
    for run in (kernels_of("channels").largest, ops.largest):
        depth = torch.full((2, d), -1, dtype=torch.int32, device=DEVICE)
        out = Slots(depth - 8, torch.full((2, 5), -9, dtype=torch.int32, device=DEVICE))
        active = torch.full((2, d), torch.nan, device=DEVICE)
        totals = torch.tensor([100, 7], device=DEVICE)
        assert run(query.to(DEVICE), r, depth, out, active, totals)[1] is out
        assert torch.equal(depth.cpu().long(), expected)
        assert torch.equal(out.channel.cpu(), listed.channel)
        assert torch.equal(out.deeper.cpu(), listed.deeper)
        assert torch.equal(active.cpu(), (expected > 0).float())
        assert totals.tolist() == [100 + 8 * r, 7 + 2 * r]
        assert torch.equal(run(query.to(DEVICE), r)[0].cpu(), depth.cpu())


def test_refuses_what_it_cannot_plan() -> None:
    with pytest.raises(ValueError, match="r = 65 of 64"):
        ops.largest(torch.zeros(1, 1, 64), 65)
    with pytest.raises(ValueError, match="fp32"):
        kernels_of("channels").largest(torch.zeros(1, 1, 64, dtype=torch.float64), 5)
    with pytest.raises(ValueError, match="totals"):
        kernels_of("channels").largest(torch.zeros(1, 1, 64), 5, totals=torch.zeros(3))
