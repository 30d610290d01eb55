"""Strided copy: the kernel equals its reference and touches nothing beside the destination."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.place import place, reference


def items(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randint(-100, 100, shape, generator=generator)
    return (made % 2 == 0) if dtype == torch.bool else made.to(dtype)


TYPES = [torch.int64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 1), (2, 5, 8), (2, 3, 4, 9), (2, 3, 1, 16), (1, 1, 1, 3000)])
def test_kernel_equals_the_reference_in_the_middle_of_a_store(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = items(*shape, dtype=dtype)
    larger = (*shape[:-1], shape[-1] + 13)
    expected, found = (torch.full(larger, 1, dtype=dtype) for _ in range(2))
    reference.place(source, expected[..., 5 : 5 + shape[-1]])
    found = found.to(DEVICE)
    kernels_of("place").place(source.to(DEVICE), found[..., 5 : 5 + shape[-1]])
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [16, 80, 128])
def test_keys_go_beside_values(dtype: torch.dtype, d: int) -> None:
    keys = items(70, 3, d, dtype=dtype).transpose(0, 1)  # heads first, as views of a projection are
    expected, found = (torch.full((3, 200, 2, d), -7, dtype=dtype) for _ in range(2))
    reference.place(keys, expected[:, 64:134, 0])
    found = found.to(DEVICE)
    kernels_of("place").place(keys.to(DEVICE), found[:, 64:134, 0])
    assert torch.equal(found.cpu(), expected)


def test_wide_items_are_used_only_where_everything_is_a_multiple() -> None:
    widest = kernels_of("place")._widest
    store = torch.zeros(4, 64, dtype=torch.bfloat16)

    def strides(tensor: Tensor) -> tuple[int, ...]:
        return tensor.stride()[:-1]

    for part, wide in (
        (store[:, :8], 8),
        (store[:, :2], 4),
        (store[:, :3], 2),
        (store[:, 2:10], 4),
        (store[:, 1:9], 2),
    ):
        source = torch.zeros(part.shape, dtype=torch.bfloat16)
        assert widest(source, part, [strides(source), strides(part)]) == wide


@pytest.mark.parametrize("run", [place, kernels_of("place").place])
def test_nothing_is_broadcast_or_converted(run: object) -> None:
    assert callable(run)
    with pytest.raises(ValueError, match="does not fit"):
        run(torch.zeros(1, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="does not fit"):
        run(torch.zeros(4), torch.zeros(4, dtype=torch.float64))


def test_rows_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        kernels_of("place").place(torch.zeros(4, 6).t(), torch.zeros(6, 4))
    with pytest.raises(ValueError, match="three outer dimensions"):
        kernels_of("place").place(torch.zeros(1, 1, 1, 1, 2), torch.zeros(1, 1, 1, 1, 2))
