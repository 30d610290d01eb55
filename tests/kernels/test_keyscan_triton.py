"""The key scan: scores within fp32 rounding of float64, the maxima of those scores, nothing read past `first`."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels import keyscan as ops
from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("heads", "group", "d", "blocks", "capacity", "dtype"),
    [
        (1, 1, 64, 1, 1, torch.float32),
        (2, 3, 80, 2, 5, torch.bfloat16),
        (2, 4, 128, 3, 3, torch.bfloat16),
        (1, 6, 64, 15, 15, torch.float16),
        (1, 7, 128, 0, 2, torch.float32),
        (1, 8, 256, 2, 3, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("records", [True, False])
def test_scores_equal_the_product(
    heads: int, group: int, d: int, blocks: int, capacity: int, dtype: torch.dtype, records: bool
) -> None:
    n, query = blocks * BLOCK, normal(heads, group, d)
    stored = normal(heads, capacity * BLOCK + (7 if blocks < capacity else 0), 2, d).to(dtype)
    stored[:, n:] = torch.nan
    keys = stored[:, :, 0] if records else stored[:, :, 0].contiguous()
    exact = query.double() @ keys[:, :n].double().transpose(-1, -2)
    size = query.double().abs() @ keys[:, :n].double().abs().transpose(-1, -2)
    first = torch.tensor([n], dtype=torch.int32, device=DEVICE)
    on_device = stored.to(DEVICE)[:, :, 0] if records else keys.to(DEVICE)
    for run in (kernels_of("keyscan").key_scan, ops.key_scan):
        out = torch.full((heads, group, capacity * BLOCK + 70), torch.nan, device=DEVICE)
        maxima = torch.full((heads, group, capacity + 3), torch.nan, device=DEVICE)
        counter = torch.full((1,), 9, dtype=torch.int64, device=DEVICE)
        run(query.to(DEVICE), on_device, first=first, out=out, maxima=maxima, counter=counter)
        assert bool(((out[..., :n].cpu().double() - exact).abs() <= 1e-6 * size).all())
        assert torch.equal(maxima[..., :blocks], out[..., :n].unflatten(-1, (blocks, BLOCK)).amax(-1))
        assert bool(out[..., n:].isnan().all())
        assert bool(maxima[..., blocks:].isnan().all())
        assert int(counter) == 9 + heads * n * d * dtype.itemsize
    if blocks == capacity:
        whole = kernels_of("keyscan").key_scan(query.to(DEVICE), on_device)
        torch.testing.assert_close(whole.cpu(), dot(query, keys.float().transpose(-1, -2)), rtol=1e-4, atol=1e-4)


def test_a_score_that_is_no_number_shows_in_its_block() -> None:
    keys = normal(1, 2 * BLOCK, 64)
    keys[0, 70] = torch.nan
    for run in (kernels_of("keyscan").key_scan, ops.key_scan):
        maxima = torch.zeros(1, 2, 2, device=DEVICE)
        out = run(normal(1, 2, 64).to(DEVICE), keys.to(DEVICE), maxima=maxima)
        assert maxima.isposinf().tolist() == [[[False, True]] * 2]
        assert out.isnan().sum().item() == 2


def test_refuses_what_it_would_misread() -> None:
    for run in (kernels_of("keyscan").key_scan, ops.key_scan):
        with pytest.raises(ValueError, match="multiple of 64"):
            run(torch.zeros(1, 1, 64), torch.zeros(1, 65, 64))
    with pytest.raises(ValueError, match="int32"):
        kernels_of("keyscan").key_scan(torch.zeros(1, 1, 64), torch.zeros(1, 64, 64), first=torch.zeros(1))
