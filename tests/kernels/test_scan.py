"""The plane scan equals decoding what was read and taking the dot product in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK, codes, pack
from leadline.kernels.scan import plane_scan


def slow(query: Tensor, keys: Tensor, depth: Tensor, block: int) -> Tensor:
    """query `[T, H, G, d]`, keys `[H, n, d]`, depth `[T, H, d]`: decode by the formula of SPEC section 1, float64."""
    code, scales = codes(keys, block)
    a = scales.double().repeat_interleave(block, -2)  # [H, n, d]
    t = depth.unsqueeze(-2)  # [T, H, 1, d]
    prefix = code.long() >> (4 - t)
    half = torch.exp2(t.double() - 1)
    values = torch.where(t > 0, (prefix + 0.5 - half) * a / half, 0.0)  # [T, H, n, d]
    return query.double() @ values.transpose(-1, -2)


@pytest.mark.parametrize(
    ("heads", "group", "d", "blocks", "block"),
    [(1, 1, 64, 1, 64), (2, 3, 64, 3, 64), (3, 7, 128, 2, 64), (2, 2, 4, 5, 6)],
)
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_equals_decode_and_dot(
    heads: int, group: int, d: int, blocks: int, block: int, positions: int, shared: bool
) -> None:
    generator = torch.Generator().manual_seed(d + positions)
    keys = torch.randn(heads, blocks * block, d, generator=generator) * torch.exp(torch.randn(d, generator=generator))
    query = torch.randn(positions, heads, group, d, generator=generator)
    depth = torch.randint(0, 5, (heads, d) if shared else (positions, heads, d), generator=generator)
    planes, scales = pack(keys, block)
    found = plane_scan(query, planes, scales, depth, block)
    expected = slow(query, keys, depth.expand(positions, heads, d), block)
    assert found.shape == (positions, heads, group, blocks * block)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_positions_with_plans_of_their_own_read_only_to_their_depth() -> None:
    """Planes past a position's depth are in the delivery for another position and must not enter its scores."""
    keys = torch.randn(1, BLOCK, 8, generator=torch.Generator().manual_seed(0))
    query = torch.randn(2, 1, 2, 8, generator=torch.Generator().manual_seed(1))
    planes, scales = pack(keys)
    depth = torch.tensor([[[1] * 8], [[4, 0] * 4]])
    both = plane_scan(query, planes, scales, depth)
    for i in range(2):
        torch.testing.assert_close(both[i : i + 1], plane_scan(query[i : i + 1], planes, scales, depth[i : i + 1]))


def test_reading_nothing_scores_zero() -> None:
    planes, scales = pack(torch.randn(2, BLOCK, 8))
    found = plane_scan(torch.randn(3, 2, 2, 8), planes, scales, torch.zeros(3, 2, 8, dtype=torch.int64))
    assert torch.equal(found, torch.zeros(3, 2, 2, BLOCK))
