"""Scores of the tail, rotation of what is new: kernels equal the harness's arithmetic within fp32 rounding."""

from __future__ import annotations

import itertools

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels import tail as ops
from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Index, ReadPlan
from leadline.scanners.statistics import Basis
from leadline.scanning import tail_scores as scores_of_the_harness

SHAPES = [(1, 1, 64), (2, 3, 80), (2, 4, 128), (1, 6, 64), (1, 7, 128), (1, 8, 256)]  # heads, group, d


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(("heads", "group", "d"), SHAPES)
@pytest.mark.parametrize(("there", "dtype", "masked"), [(1, torch.bfloat16, True), (37, torch.float32, False)])
def test_scores_equal_the_harness(heads: int, group: int, d: int, there: int, dtype: torch.dtype, masked: bool) -> None:
    first, room = 2 * BLOCK, 70
    query = normal(heads, group, d)
    records = normal(heads, room, 2, d).to(dtype)  # keys beside values
    keys = records[:, :, 0]
    active = (normal(heads, d) > 0.3).float()
    index = Index({"planes": torch.zeros(heads, d, 4, 2)}, {"planes": BLOCK}, first)
    plan = ReadPlan({"planes": active.long()}, tail="channels" if masked else "keys")
    expected = scores_of_the_harness(query.unsqueeze(0), keys[:, :there], plan, index)[0]
    size = query.double().abs() @ keys[:, :there].double().abs().transpose(-1, -2)
    records[:, there:] = torch.nan
    mask = active.to(DEVICE) if masked else None
    place = (number(first), number(first + there))
    for run in (kernels_of("tail").tail_scores, ops.tail_scores):
        out = torch.full((heads, group, first + room), torch.nan, device=DEVICE)
        counter = torch.full((1,), 5, dtype=torch.int64, device=DEVICE)
        run(query.to(DEVICE), records.to(DEVICE)[:, :, 0], mask, *place, out, counter)
        error = (out[..., first : first + there].cpu().double() - expected.double()).abs()
        assert bool((error <= 1e-6 * size).all())
        assert bool(out[..., :first].isnan().all())
        assert bool(out[..., first + there :].isnan().all())
        assert int(counter) == 5 + heads * there * d * dtype.itemsize


@pytest.mark.parametrize(("heads", "group", "d"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_equals_the_basis(heads: int, group: int, d: int, dtype: torch.dtype) -> None:
    basis = Basis(normal(heads, d), torch.linalg.qr(normal(heads, d, d))[0].contiguous(), torch.ones(heads, d))
    key, query = normal(heads, 3 * d)[:, d : 2 * d].to(dtype), normal(heads, group, d)
    expected = basis.rotate_keys(key.unsqueeze(1))[:, 0]
    exact = (key.double() - basis.mean.double()).unsqueeze(1) @ basis.vectors.double()
    assert float((expected - exact[:, 0]).abs().max()) < 1e-4
    mean, vectors = basis.mean.to(DEVICE), basis.vectors.to(DEVICE)
    for kernel, r in itertools.product((kernels_of("tail"), ops), (d, d // 3)):  # all coordinates, or the first few
        first_few = vectors[..., :r].contiguous()
        out = torch.full((heads, 5, r), torch.nan, device=DEVICE)
        kernel.rotate_one(key.to(DEVICE), mean, first_few, number(131), number(128), out)
        torch.testing.assert_close(out[:, 3].cpu(), expected[..., :r], rtol=1e-5, atol=1e-5)
        assert bool(out[:, [0, 1, 2, 4]].isnan().all())
        turned = torch.full((heads, group, r), torch.nan, device=DEVICE)
        kernel.rotate_query(query.to(DEVICE), first_few, turned)
        torch.testing.assert_close(turned.cpu(), basis.rotate_query(query)[..., :r], rtol=1e-5, atol=1e-5)


def test_a_slot_outside_the_tail_is_not_written() -> None:
    out = torch.full((1, 2, 64), torch.nan, device=DEVICE)
    for position in (127, 130):
        kernels_of("tail").rotate_one(
            normal(1, 64).to(DEVICE), torch.zeros(1, 64, device=DEVICE), torch.eye(64, device=DEVICE).view(1, 64, 64),
            number(position), number(128), out,
        )  # fmt: skip
    assert bool(out.isnan().all())


def test_refuses_what_it_would_misread() -> None:
    kernels = kernels_of("tail")
    with pytest.raises(ValueError, match="int32"):
        kernels.tail_scores(*torch.zeros(2, 1, 4, 64), None, torch.zeros(1), torch.zeros(1), torch.zeros(1, 4, 9))
    with pytest.raises(ValueError, match="more than its 4 rows"):
        ops.tail_scores(*torch.zeros(2, 1, 4, 64), None, torch.zeros(1), torch.full((1,), 9), torch.zeros(1, 4, 9))
    with pytest.raises(ValueError, match="vectors"):
        kernels.rotate_query(torch.zeros(1, 4, 64), torch.zeros(1, 32, 32))
