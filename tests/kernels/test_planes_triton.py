"""The packing kernel gives the reference's planes and scales bit for bit."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.planes import BLOCK, pack_rotated
from leadline.kernels.planes.reference import pack


def keys_of(kind: str, heads: int, blocks: int, d: int) -> Tensor:
    generator = torch.Generator().manual_seed(d + blocks)
    noise = torch.randn(heads, blocks * BLOCK, d, generator=generator)
    keys = {
        "normal": noise * torch.exp(2 * torch.randn(d, generator=generator)),
        "edges": noise.round() / 4,  # many keys on a cell's edge, at +a and at -a
        "zeros": noise * (torch.arange(d) % 3 == 0),
        "tiny": noise * 1e-39,
        "small": noise * 1e-7,
        "large": noise.clamp(-1, 1) * 65504,
    }[kind]
    keys[:, :, 0] = keys[:, :, 0].abs()
    return keys


@pytest.mark.parametrize("kind", ["normal", "edges", "zeros", "tiny", "small", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_reference(kind: str, dtype: torch.dtype) -> None:
    keys = keys_of(kind, 2, 3, 80).to(dtype)
    if kind == "large":
        keys = keys.clamp(-65280, 65280)  # bf16 rounds 65504 up to 65536
    planes = torch.full((2, 80, 4, 3), -1, dtype=torch.int64, device=DEVICE)
    scales = torch.full((2, 80, 3), torch.nan, dtype=torch.float16, device=DEVICE)
    kernels_of("planes").pack(keys.to(DEVICE), planes, scales)
    expected = pack(keys)
    assert torch.equal(planes.cpu(), expected[0])
    assert torch.equal(scales.cpu(), expected[1])


@pytest.mark.parametrize("blocks", [0, 1, 17])
def test_block_counts(blocks: int) -> None:
    keys = keys_of("normal", 1, blocks, 16)
    found, expected = kernels_of("planes").pack(keys.to(DEVICE)), pack(keys)
    assert torch.equal(found[0].cpu(), expected[0])
    assert torch.equal(found[1].cpu(), expected[1])


def test_writes_a_part_of_a_larger_store_from_strided_keys() -> None:
    keys = keys_of("normal", 2, 4, 32)
    expected = pack(keys)
    planes = torch.full((2, 32, 4, 9), -1, dtype=torch.int64, device=DEVICE)
    scales = torch.full((2, 32, 9), 7.0, dtype=torch.float16, device=DEVICE)
    rows = torch.stack([keys, -keys], 2).to(DEVICE)[:, :, 0]
    kernels_of("planes").pack(rows, planes[..., 2:6], scales[..., 2:6])
    assert torch.equal(planes[..., 2:6].cpu(), expected[0])
    assert torch.equal(scales[..., 2:6].cpu(), expected[1])
    assert bool((planes[..., [0, 1, 6, 7, 8]] == -1).all())
    assert bool((scales[..., [0, 1, 6, 7, 8]] == 7).all())


@pytest.mark.parametrize("bad", [1e5, torch.inf, -torch.inf, torch.nan])
def test_refuses_what_fp16_cannot_hold(bad: float) -> None:
    keys = keys_of("normal", 1, 1, 16)
    keys[0, 5, 3] = bad
    with pytest.raises(ValueError, match="at most 65504"):
        kernels_of("planes").pack(keys.to(DEVICE))
    told = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    kernels_of("planes").pack(keys.to(DEVICE), invalid=told)
    assert int(told) == 1


def test_rotated_store_is_the_pack_of_the_rotated_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of("normal", 2, 5, 16)
    vectors = torch.linalg.qr(torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)))[0][..., :8]
    mean = keys.mean(-2)
    whole = pack((keys - mean.unsqueeze(-2)) @ vectors)
    monkeypatch.setattr("leadline.kernels.planes.dispatch._ROTATED_AT_ONCE", 2 * BLOCK)
    found = pack_rotated(keys, mean, vectors)
    assert torch.equal(found[0], whole[0])
    assert torch.equal(found[1], whole[1])


def test_refuses_incomplete_blocks() -> None:
    with pytest.raises(ValueError, match="complete blocks"):
        kernels_of("planes").pack(torch.zeros(1, 65, 16))
