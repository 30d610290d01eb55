"""Attention over selected rows equals a plain softmax per head, and rows are counted once per KV head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.kernels.attention import attend_selected, union_rows


def plain(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """One head and position at a time, float64."""
    out = torch.empty(query.shape, dtype=torch.float64)
    for t, h, g in torch.cartesian_prod(*(torch.arange(s) for s in query.shape[:3])).tolist():
        chosen = mask[t, h, g].nonzero()[:, 0]
        weights = torch.softmax(keys[h, chosen].double() @ query[t, h, g].double() * scaling, 0)
        out[t, h, g] = weights @ values[h, chosen].double()
    return out


@pytest.mark.parametrize(
    ("heads", "group", "n", "d"), [(1, 1, 1, 64), (2, 3, 70, 64), (1, 7, 33, 128), (3, 4, 130, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_softmax_of_each_head(heads: int, group: int, n: int, d: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    query = torch.randn(3, heads, group, d, generator=generator)
    keys, values = (torch.randn(heads, n, d, generator=generator).to(dtype) for _ in range(2))
    mask = torch.rand(3, heads, group, n, generator=generator) < 0.4
    mask[..., 0] = True
    out, counts = attend_selected(query, keys, values, mask, d**-0.5)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), plain(query, keys, values, mask, d**-0.5), rtol=1e-5, atol=1e-6)
    assert counts.tolist() == mask.any(2).sum(-1).tolist()


def test_rows_outside_the_selection_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, *shape, generator=generator) for shape in ((1, 2, 8), (20, 8), (20, 8)))
    query = query.view(1, 1, 2, 8)
    mask = torch.zeros(1, 1, 2, 20, dtype=torch.bool)
    mask[0, 0, 0, [3, 9]] = True
    mask[0, 0, 1, [9, 12]] = True
    before, counts = attend_selected(query, keys, values, mask, 1.0)
    assert counts.tolist() == [[3]]
    outside = torch.ones(20, dtype=torch.bool)
    outside[[3, 9, 12]] = False
    keys[:, outside], values[:, outside] = torch.nan, torch.nan
    after, _ = attend_selected(query, keys, values, mask, 1.0)
    assert torch.equal(before, after)


def test_large_logits_do_not_overflow() -> None:
    query = torch.full((1, 1, 1, 4), 1e4)
    keys = torch.tensor([[[1e4] * 4, [-1e4] * 4]])
    values = torch.tensor([[[1.0] * 4, [2.0] * 4]])
    out, _ = attend_selected(query, keys, values, torch.ones(1, 1, 1, 2, dtype=torch.bool), 1.0)
    assert out.tolist() == [[[[1.0] * 4]]]


def test_union_is_ascending_and_counted_per_head() -> None:
    mask = torch.zeros(1, 2, 2, 10, dtype=torch.bool)
    mask[0, 0, 0, [7, 2]] = True
    mask[0, 0, 1, [2, 5]] = True
    mask[0, 1, 0, [9]] = True
    indices, counts = union_rows(mask)
    assert counts.tolist() == [[3, 1]]
    assert indices[0, 0].tolist() == [2, 5, 7]
    assert indices[0, 1, 0].item() == 9
