"""The list of a plan: the kernel equals the reference, and the list gives the plan back."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of

from leadline.kernels.slots import Slots, slots


@pytest.mark.parametrize("d", [4, 64, 80, 128])
@pytest.mark.parametrize("kind", ["mixed", "none", "all", "ties"])
def test_equals_the_reference(d: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(d)
    depth = {
        "mixed": torch.randint(0, 5, (3, d), generator=generator),
        "none": torch.zeros(3, d, dtype=torch.int64),
        "all": torch.full((3, d), 4),
        "ties": torch.arange(d).remainder(2).expand(3, d) * 3,
    }[kind].contiguous()
    expected = slots(depth)
    assert torch.equal(expected.depth(), depth)
    poisoned = Slots(
        torch.full((3, d), -1, dtype=torch.int32, device=DEVICE),
        torch.full((3, 5), -1, dtype=torch.int32, device=DEVICE),
    )
    found = kernels_of("slots").slots(depth.to(DEVICE), poisoned)
    assert torch.equal(found.channel.cpu(), expected.channel)
    assert torch.equal(found.deeper.cpu(), expected.deeper)
