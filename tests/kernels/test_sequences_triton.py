"""Sequences that share a store: what the kernels read of it is what they would read of a copy for each, and counters
count the first sequence alone.
"""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels import attention, entries, keyscan, rows, scan
from leadline.kernels.planes import BLOCK, pack
from leadline.kernels.rows import Union
from leadline.kernels.sequences import for_each
from leadline.kernels.slots import slots

SEQUENCES, HEADS, GROUP, D = 3, 2, 3, 64
ROWS = SEQUENCES * HEADS


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(DEVICE)


def counting(size: int = 1) -> Tensor:
    return torch.zeros(size, dtype=torch.int64, device=DEVICE)


def number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


def copied(stored: Tensor) -> Tensor:
    return torch.cat([stored] * SEQUENCES)


def test_a_store_is_repeated_only_where_it_is_shared() -> None:
    stored = normal(HEADS, 5)
    assert for_each(stored, HEADS) is stored
    assert torch.equal(for_each(stored, ROWS), copied(stored))
    with pytest.raises(ValueError, match="5 rows of queries do not share a store of 2 KV heads"):
        for_each(stored, 5)


def test_plane_scan() -> None:
    words, scales = pack(normal(HEADS, 5 * BLOCK, D).cpu())
    words, scales, query = words.to(DEVICE), scales.to(DEVICE), normal(ROWS, GROUP, D)
    generator = torch.Generator().manual_seed(5)
    depth = torch.randint(0, 5, (ROWS, D), generator=generator).to(DEVICE)  # every row has its own plan
    plan, own, first = slots(depth), counting(), counting()
    for run in (kernels_of("scan").plane_scan, scan.fused_scan):
        maxima = torch.zeros(ROWS, GROUP, 5, device=DEVICE)
        found = run(query, words, scales, plan, blocks=number(4), maxima=maxima, counter=own.zero_())
        apart = run(query, copied(words), copied(scales), plan, blocks=number(4))
        run(query[:HEADS], words, scales, slots(depth[:HEADS]), blocks=number(4), counter=first.zero_())
        assert torch.equal(found[..., : 4 * BLOCK], apart[..., : 4 * BLOCK])
        assert torch.equal(maxima[..., :4], apart[..., : 4 * BLOCK].unflatten(-1, (4, BLOCK)).amax(-1))
        assert int(own) == int(first) == 4 * int(8 * depth[:HEADS].sum() + 2 * (depth[:HEADS] > 0).sum())
    with pytest.raises(ValueError, match="other KV heads"):
        kernels_of("scan").plane_scan(normal(5, GROUP, D), words, scales, slots(depth[:5]))


def test_key_scan() -> None:
    keys, query, counter = normal(HEADS, 3 * BLOCK, D), normal(ROWS, GROUP, D), counting()
    for run in (kernels_of("keyscan").key_scan, keyscan.key_scan):
        found = run(query, keys, first=number(2 * BLOCK), counter=counter.zero_())[..., : 2 * BLOCK]
        assert torch.equal(found, run(query, copied(keys), first=number(2 * BLOCK))[..., : 2 * BLOCK])
        assert int(counter) == HEADS * 2 * BLOCK * D * 4
    with pytest.raises(ValueError, match="KV heads"):
        kernels_of("keyscan").key_scan(normal(5, GROUP, D), keys)


@pytest.mark.parametrize("bounds", [False, True])
def test_entry_and_page_scan(bounds: bool) -> None:
    high, low = (normal(HEADS, D, 24, seed=seed).to(torch.float16) for seed in (1, 2))
    query, counter = normal(ROWS, GROUP, D), counting()

    def by_kernel(high: Tensor, low: Tensor, counted: Tensor | None = None) -> Tensor:
        below, blocks = low if bounds else None, number(2)
        found: Tensor = kernels_of("entries").entry_scan(query, high, below, 8, blocks=blocks, counter=counted)
        return found

    def by_dispatch(high: Tensor, low: Tensor, counted: Tensor | None = None) -> Tensor:
        if bounds:
            return entries.page_scan(query, low, high, 8, blocks=number(2), counter=counted)
        return entries.entry_scan(query, high, 8, blocks=number(2), counter=counted)

    for run in (by_kernel, by_dispatch):
        found = run(high, low, counter.zero_())[..., : 2 * BLOCK]
        assert torch.equal(found, run(copied(high), copied(low))[..., : 2 * BLOCK])
        assert int(counter) == HEADS * D * 2 * (BLOCK // 8) * 2 * (1 + bounds)


def test_row_fetch() -> None:
    keys, values, tail = normal(HEADS, 40, D, seed=1), normal(HEADS, 40, D, seed=2), normal(ROWS, 8, 2, D)
    count = torch.tensor([5, 3, 6, 1, 2, 4], dtype=torch.int32)
    ids = torch.stack(
        [torch.randperm(48, generator=torch.Generator().manual_seed(r))[:6].sort().values for r in range(6)]
    )
    wanted = Union(ids.to(torch.int32).to(DEVICE), torch.ones_like(ids, dtype=torch.int32).to(DEVICE), count.to(DEVICE))
    live = torch.arange(6) < count.unsqueeze(-1)
    old, new = ((live & side)[:HEADS].sum().item() for side in (ids < 40, ids >= 40))
    for run in (kernels_of("rows").fetch_records, rows.fetch_records):
        counter = counting(2)
        found = run(wanted, keys, values, tail, number(40), counter=counter).cpu()
        apart = run(wanted, copied(keys), copied(values), tail, number(40)).cpu()
        assert torch.equal(found[live], apart[live])
        assert counter.tolist() == [old * 2 * D * 4, new * 2 * D * 4]


def test_attention_over_every_row() -> None:
    keys, values, tail = normal(HEADS, 200, D, seed=1), normal(HEADS, 200, D, seed=2), normal(ROWS, 9, 2, D)
    query = normal(ROWS, GROUP, D)
    for run in (kernels_of("attention").attend_all, attention.attend_all):
        counter = counting(2)
        found = run(query, keys, values, tail, number(192), number(197), 0.125, counter=counter)
        apart = run(query, copied(keys), copied(values), tail, number(192), number(197), 0.125)
        assert torch.equal(found, apart)
        assert counter.tolist() == [HEADS * 192 * 2 * D * 4, HEADS * 5 * 2 * D * 4]
    with pytest.raises(ValueError, match="another shape"):
        kernels_of("attention").attend_all(query[:5], keys, values, tail[:5], number(192), number(197), 0.125)
