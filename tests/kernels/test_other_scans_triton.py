"""Nibble, landmark and page scans and the staged transfer: each kernel equals its reference and counts its bytes."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels import entries as entry_ops
from leadline.kernels import nibbles as nibble_ops
from leadline.kernels.gather import reference as gather_reference
from leadline.kernels.gather import staging
from leadline.kernels.planes import BLOCK, codes, pack
from leadline.kernels.slots import slots


def poison(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, device=DEVICE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@pytest.mark.parametrize(
    ("heads", "group", "c", "blocks"), [(1, 1, 8, 1), (2, 3, 16, 3), (1, 4, 32, 33), (1, 7, 20, 2), (2, 8, 5, 17)]
)
def test_nibble_scan_equals_the_reference(heads: int, group: int, c: int, blocks: int) -> None:
    keys, query = normal(heads, blocks * BLOCK, c), normal(heads, group, c)
    words, scales = nibble_ops.pack_nibbles(keys)
    code, maxima = codes(keys)
    values = (code.double() - 7.5) / 8 * maxima.double().repeat_interleave(BLOCK, -2)
    exact, size = query.double() @ values.transpose(-1, -2), query.double().abs() @ values.abs().transpose(-1, -2)
    assert bool(((nibble_ops.nibble_scan(query, words, scales).double() - exact).abs() <= 1e-5 * size).all())
    counter, peaks = torch.zeros(1, dtype=torch.int64, device=DEVICE), poison(heads, group, blocks)
    found = kernels_of("nibbles").nibble_scan(
        *(t.to(DEVICE) for t in (query, words, scales)),
        out=poison(heads, group, blocks * BLOCK),
        maxima=peaks,
        counter=counter,
    )
    assert bool(((found.cpu().double() - exact).abs() <= 1e-5 * size).all())
    assert torch.equal(peaks, found.unflatten(-1, (-1, BLOCK)).amax(-1))
    assert int(counter) == heads * c * blocks * (32 + 2)


@pytest.mark.parametrize(("group", "c", "tokens", "repeat"), [(1, 64, 64, 8), (4, 30, 4224, 8), (7, 17, 640, 1)])
def test_entry_scan_equals_the_reference(group: int, c: int, tokens: int, repeat: int) -> None:
    entries, query = normal(2, c, tokens // repeat).to(torch.float16), normal(2, group, c)
    exact = (query.double() @ entries.double()).repeat_interleave(repeat, -1)
    size = (query.double().abs() @ entries.double().abs()).repeat_interleave(repeat, -1)
    counter, peaks = torch.zeros(1, dtype=torch.int64, device=DEVICE), poison(2, group, tokens // 64)
    found = kernels_of("entries").entry_scan(
        query.to(DEVICE), entries.to(DEVICE), None, repeat, out=poison(2, group, tokens), maxima=peaks, counter=counter
    )
    for scores in (found.cpu(), entry_ops.entry_scan(query, entries, repeat)):
        assert bool(((scores.double() - exact).abs() <= 1e-5 * size).all())
    assert torch.equal(peaks, found.unflatten(-1, (-1, BLOCK)).amax(-1))
    assert int(counter) == entries.numel() * 2


@pytest.mark.parametrize("group", [3, 4])
def test_page_scan_equals_the_reference(group: int) -> None:
    keys, query = normal(2, 192, 33), normal(2, group, 33)
    pages = keys.unflatten(1, (-1, 16)).transpose(-1, 1)  # [H, c, 16, pages]
    low, high = pages.amin(2).to(torch.float16).contiguous(), pages.amax(2).to(torch.float16).contiguous()
    a, b = (
        query.double().unsqueeze(-1) * low.double().unsqueeze(1),
        query.double().unsqueeze(-1) * high.double().unsqueeze(1),
    )
    exact = torch.maximum(a, b).sum(2).repeat_interleave(16, -1)
    size = torch.maximum(a.abs(), b.abs()).sum(2).repeat_interleave(16, -1)
    counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    found = kernels_of("entries").entry_scan(
        *(t.to(DEVICE) for t in (query, high, low)), 16, out=poison(2, group, 192), counter=counter
    )
    for scores in (found.cpu(), entry_ops.page_scan(query, low, high, 16)):
        assert bool(((scores.double() - exact).abs() <= 1e-5 * size).all())
    assert int(counter) == 2 * low.numel() * 2


def test_fewer_blocks_than_are_stored() -> None:
    two = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    query = normal(1, 2, 16)
    words, scales = nibble_ops.pack_nibbles(normal(1, 5 * BLOCK, 16))
    arguments = [t.to(DEVICE) for t in (query, words, scales)]
    found = kernels_of("nibbles").nibble_scan(*arguments, out=poison(1, 2, 320), blocks=two)
    assert torch.equal(found[..., :128], kernels_of("nibbles").nibble_scan(*arguments)[..., :128])
    assert bool(found[..., 128:].isnan().all())
    entries = normal(1, 16, 40).to(torch.float16).to(DEVICE)
    found = kernels_of("entries").entry_scan(query.to(DEVICE), entries, None, 8, out=poison(1, 2, 320), blocks=two)
    assert torch.equal(
        found[..., :128], kernels_of("entries").entry_scan(query.to(DEVICE), entries, None, 8)[..., :128]
    )
    assert bool(found[..., 128:].isnan().all())


@pytest.mark.parametrize("blocks", [1, 63, 65])
def test_staged_runs_are_the_planned_ones(blocks: int) -> None:
    planes, scales = pack(normal(2, blocks * BLOCK, 16))
    depth = torch.randint(0, 5, (2, 16), generator=torch.Generator().manual_seed(blocks))
    plan = slots(depth)
    into, expected = (staging(2, 16, blocks + 3, device) for device in (DEVICE, "cpu"))
    for buffer in (into, expected):
        buffer.planes.fill_(-3)
        buffer.scales.fill_(-3)
    counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    gather_reference.stage(planes, scales, plan, expected.planes, expected.scales)
    kernels_of("gather").stage(
        planes.to(DEVICE), scales.to(DEVICE), slots(depth.to(DEVICE)), into.planes, into.scales, counter=counter
    )
    assert torch.equal(into.planes.cpu(), expected.planes)
    assert torch.equal(into.scales.cpu(), expected.scales)
    assert int(counter) == int((8 * depth.sum() + 2 * (depth > 0).sum()) * blocks)
    query = normal(2, 4, 16).to(DEVICE)
    scan = kernels_of("scan").plane_scan
    staged = scan(query, into.planes[..., :blocks], into.scales[..., :blocks], slots(depth.to(DEVICE)), rows=into.rows)
    assert torch.equal(staged, scan(query, planes.to(DEVICE), scales.to(DEVICE), slots(depth.to(DEVICE))))


def test_refuse_what_they_would_misread() -> None:
    with pytest.raises(ValueError, match="int32"):
        kernels_of("nibbles").nibble_scan(torch.zeros(1, 1, 4), torch.zeros(1, 4, 8), torch.zeros(1, 4, 1))
    with pytest.raises(ValueError, match="fp16"):
        kernels_of("entries").entry_scan(torch.zeros(1, 1, 4), torch.zeros(1, 4, 8), None, 8)
    with pytest.raises(ValueError, match="fill"):
        kernels_of("entries").entry_scan(torch.zeros(1, 1, 4), torch.zeros(1, 4, 7, dtype=torch.float16), None, 8)
    into = staging(1, 4, 1, "cpu")
    planes, scales = pack(normal(1, 2 * BLOCK, 4))
    with pytest.raises(ValueError, match="2 blocks"):
        kernels_of("gather").stage(planes, scales, slots(torch.ones(1, 4)), into.planes, into.scales)
