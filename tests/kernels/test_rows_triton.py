"""Union and row fetch: the kernels equal their references and count the bytes they read."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels import rows as ops
from leadline.kernels.attention import union_rows
from leadline.kernels.rows import Union, reference


def selections(heads: int, group: int, k: int, n: int, missing: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(group * k)
    picked = torch.stack([torch.randperm(n, generator=generator)[:k] for _ in range(heads * group)])
    picked = picked.sort(-1).values.to(torch.int32)
    if missing:
        picked[:, -missing:] = -1
    return picked.view(heads, group, k)


def poisoned(heads: int, group: int, k: int) -> Union:
    ids = torch.full((heads, group * k), -9, dtype=torch.int32, device=DEVICE)
    return Union(ids, ids.clone(), torch.full((heads,), -9, dtype=torch.int32, device=DEVICE))


@pytest.mark.parametrize(
    ("heads", "group", "k", "n", "missing"),
    [
        (1, 1, 5, 33, 0),
        (1, 1, 1, 1, 0),
        (2, 3, 40, 100, 7),
        (2, 4, 100, 3000, 0),
        (1, 6, 1100, 3000, 90),
        (1, 7, 60, 64, 0),
        (1, 8, 33, 70000, 1),
        (2, 3, 16, 40, 16),
        (1, 3, 128, 300, 5),
        (2, 2, 256, 260, 0),
        (1, 5, 257, 1000, 200),
    ],
)
def test_union_equals_the_reference(heads: int, group: int, k: int, n: int, missing: int) -> None:
    selected = selections(heads, group, k, n, missing)
    expected = ops.union(selected, n)
    mask = torch.zeros(1, heads, group, n + 1, dtype=torch.bool)
    mask.scatter_(-1, selected.long().where(selected >= 0, n).unsqueeze(0), True)
    ids, counts = union_rows(mask[..., :n])
    assert torch.equal(expected.count.long(), counts[0])
    space = kernels_of("rows").workspace(heads, group, k + 3, torch.device(DEVICE))
    space.first_seen.fill_(-1)
    space.seen.fill_(-1)
    found = kernels_of("rows").union(selected.to(DEVICE), n, space, poisoned(heads, group, k))
    assert torch.equal(found.count.cpu(), expected.count)
    for head, count in enumerate(expected.count.tolist()):
        assert torch.equal(expected.ids[head, :count].long(), ids[0, head, :count])
        assert torch.equal(found.ids[head, :count].cpu(), expected.ids[head, :count])
        assert torch.equal(found.member[head, :count].cpu(), expected.member[head, :count])
        assert bool((found.ids[head, count:] == -9).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d", "n", "tail"), [(64, 90, 10), (80, 64, 64), (128, 130, 0), (64, 0, 40)])
def test_fetch_equals_the_reference(dtype: torch.dtype, d: int, n: int, tail: int) -> None:
    generator = torch.Generator().manual_seed(d)
    record = torch.randn(2, n, 2, d, generator=generator).to(dtype)  # keys and values side by side
    new = torch.randn(2, tail, d, generator=generator).to(dtype)
    union = ops.union(selections(2, 3, 20, n + tail), n + tail)
    expected = reference.fetch(union, record[:, :, 1], new, n)
    on_device = Union(*(t.to(DEVICE) for t in (union.ids, union.member, union.count)))
    out = torch.full((2, 60, d), torch.nan, dtype=dtype, device=DEVICE)
    counter = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    kernels_of("rows").fetch(on_device, record.to(DEVICE)[:, :, 1], new.to(DEVICE), n, out=out, counter=counter)
    old_rows = 0
    for head, count in enumerate(union.count.tolist()):
        assert torch.equal(out[head, :count].cpu(), expected[head, :count])
        assert bool(out[head, count:].isnan().all())
        old_rows += int((union.ids[head, :count] < n).sum())
    size = d * record.element_size()
    assert counter.tolist() == [old_rows * size, (int(union.count.sum()) - old_rows) * size]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize(
    ("group", "d", "n", "tail"), [(4, 128, 130, 10), (1, 80, 64, 64), (7, 64, 90, 0), (3, 256, 0, 40)]
)
def test_records_are_two_fetches(dtype: torch.dtype, records: bool, group: int, d: int, n: int, tail: int) -> None:
    generator = torch.Generator().manual_seed(d)
    old = torch.randn(2, n, 2, d, generator=generator).to(dtype)
    new = torch.randn(2, tail, 2, d, generator=generator).to(dtype)
    union = ops.union(selections(2, group, 20, n + tail), n + tail)
    expected = torch.stack([reference.fetch(union, old[:, :, side], new[:, :, side], n) for side in range(2)], 2)
    on_device = Union(*(t.to(DEVICE) for t in (union.ids, union.member, union.count)))
    old, new = old.to(DEVICE), new.to(DEVICE)
    stored = (old[:, :, 0], old[:, :, 1])
    if not records:
        stored = (stored[0].contiguous(), torch.nn.functional.pad(stored[1], (0, 8))[..., :d])
    first = torch.tensor([n], dtype=torch.int32, device=DEVICE)
    live = torch.arange(20 * group) < union.count.unsqueeze(-1)
    read = [int((live & (union.ids < n)).sum()), int((live & (union.ids >= n)).sum())]
    for run in (kernels_of("rows").fetch_records, ops.fetch_records):
        out = torch.full((2, 20 * group + 3, 2, d), torch.nan, dtype=dtype, device=DEVICE)
        counter = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        run(on_device, *stored, new, first, out=out, counter=counter)
        by_number = run(on_device, *stored, new, n)
        for head, count in enumerate(union.count.tolist()):
            assert torch.equal(out[head, :count].cpu(), expected[head, :count])
            assert torch.equal(by_number[head, :count].cpu(), expected[head, :count])
        assert bool(out[:, 20 * group :].isnan().all())
        assert counter.tolist() == [2 * d * dtype.itemsize * many for many in read]


def test_union_into_given_buffers() -> None:
    selected = selections(2, 3, 40, 100, 7)
    expected, out = ops.union(selected, 100), poisoned(2, 3, 40)
    assert ops.union(selected.to(DEVICE), 100, None, out) is out
    assert torch.equal(out.count.cpu(), expected.count)
    assert torch.equal(out.ids[0, : out.count[0]].cpu(), expected.ids[0, : out.count[0]])


def test_refuses_what_it_would_misread() -> None:
    kernels = kernels_of("rows")
    with pytest.raises(ValueError, match="int32"):
        kernels.union(torch.zeros(1, 1, 4, dtype=torch.int64), 10)
    union = reference.union(torch.zeros(1, 1, 4, dtype=torch.int32), 10)
    with pytest.raises(ValueError, match="one type"):
        kernels.fetch(union, torch.zeros(1, 10, 64), torch.zeros(1, 1, 64, dtype=torch.bfloat16), 10)
