"""The small kernels of a decode step, norm, heads and gate: equal to their references in fp32 and bf16 rounding."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.gate import reference as gate
from leadline.kernels.heads import HeadForm
from leadline.kernels.heads import reference as heads
from leadline.kernels.norm import reference as norm

# The interpreter has no bf16 arithmetic, and these kernels need none: they round to it and compute in fp32.
DTYPES = [torch.float32, torch.float16]


def _draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 48), (3, 576), (2, 1000)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norm(dtype: torch.dtype, rows: int, width: int, with_residual: bool) -> None:
    x, weight = _draw(rows, width, dtype=dtype), _draw(width, seed=1, dtype=dtype)
    residual = _draw(rows, width, seed=2, dtype=dtype) if with_residual else None
    expected, expected_total = norm.add_norm(x, weight, 1e-5, residual)
    moved = None if residual is None else residual.to(DEVICE)
    found, total = kernels_of("norm").add_norm(x.to(DEVICE), weight.to(DEVICE), 1e-5, moved)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6 if dtype == torch.float32 else 2e-3, atol=1e-6)
    assert torch.equal(total.cpu(), expected_total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 80), (2, 1024), (1, 1537)])
def test_gate(dtype: torch.dtype, rows: int, width: int) -> None:
    both = _draw(rows, 2 * width, dtype=dtype) * 4
    found = kernels_of("gate").gated(both.to(DEVICE))
    torch.testing.assert_close(found.cpu(), gate.gated(both), rtol=1e-5 if dtype == torch.float32 else 2e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "h", "g", "d"), [(1, 2, 3, 16), (2, 1, 4, 80), (1, 3, 1, 128), (3, 2, 7, 64)])
@pytest.mark.parametrize("normed", [False, True])
def test_heads(dtype: torch.dtype, n: int, h: int, g: int, d: int, normed: bool) -> None:
    joint = _draw(n, (h * g + 2 * h) * d, dtype=dtype)
    angle = torch.arange(d // 2).repeat(2) * 0.37
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    weights = (_draw(d, seed=3, dtype=dtype), _draw(d, seed=4, dtype=dtype)) if normed else (None, None)
    position, first = torch.tensor([70], dtype=torch.int32), torch.tensor([64], dtype=torch.int32)
    outcomes = []
    for split, device in ((heads.split_heads, "cpu"), (kernels_of("heads").split_heads, DEVICE)):
        form = HeadForm(h, g, d, *(None if w is None else w.to(device) for w in weights), eps=1e-5)
        query = torch.full((n * h, g, d), torch.nan, device=device)
        tail = torch.full((n * h, 9, 2, d), -7.0, dtype=dtype, device=device)
        moved = (t.to(device) for t in (cos, sin, position, first))
        key = torch.full((n * h, d), torch.nan, device=device)
        split(joint.to(device), form, *moved, query, tail, key)
        outcomes.append((query.cpu(), tail.cpu()))
        assert torch.equal(key, tail[:, 6, 0].float())
    (query, tail), (own_query, own_tail) = outcomes
    close = {"rtol": 2e-6, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 3e-3, "atol": 2e-3}
    torch.testing.assert_close(own_query, query, **close)
    torch.testing.assert_close(own_tail, tail, **close)
    untouched = torch.arange(9) != 6
    assert torch.equal(own_tail[:, untouched], torch.full_like(own_tail[:, untouched], -7.0))
    if not normed:  # only products and sums, each rounded alike
        assert torch.equal(own_tail[:, 6, 1], tail[:, 6, 1])


@pytest.mark.parametrize("wrong", ["joint", "query", "tail"])
def test_heads_refuses_another_form(wrong: str) -> None:
    shapes = {"joint": (1, 64), "query": (2, 1, 16), "tail": (2, 5, 2, 16)}
    shapes[wrong] = tuple(2 * s for s in shapes[wrong])
    tensors = {name: torch.zeros(shape, device=DEVICE) for name, shape in shapes.items()}
    tensors["joint"] = torch.zeros(shapes["joint"] if wrong == "joint" else (1, 2 * 3 * 16), device=DEVICE)
    one = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    ramp = torch.ones(16, device=DEVICE)
    with pytest.raises(ValueError, match=f"heads: the {'joint' if wrong == 'joint' else ''}|heads: {wrong}"):
        kernels_of("heads").split_heads(
            tensors["joint"], HeadForm(2, 1, 16), ramp, ramp, one, one, tensors["query"], tensors["tail"]
        )
