"""Attention over a fetched union equals attention over the selected rows, in float64, whatever lies past the count."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of

from leadline.kernels.attention import attend_all, attend_rows, attend_selected
from leadline.kernels.rows import Union, fetch, union


def rounding(logits: torch.Tensor) -> float:
    """How far fp32 may be off: two units in the last place of the largest logit, relative in a softmax's weights."""
    return 2 * 2**-23 * float(logits[logits.isfinite()].abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "group", "d", "k", "splits"),
    [(2, 1, 64, 1, 4), (1, 4, 128, 50, 3), (2, 7, 80, 20, 16), (2, 3, 64, 70, 1)],
)
def test_equals_the_reference(dtype: torch.dtype, heads: int, group: int, d: int, k: int, splits: int) -> None:
    generator = torch.Generator().manual_seed(k)
    n = 200
    keys, values = (torch.randn(heads, n, d, generator=generator).to(dtype) for _ in range(2))
    query = 3 * torch.randn(heads, group, d, generator=generator)
    picked = torch.stack([torch.randperm(n, generator=generator)[:k].sort().values for _ in range(heads * group)])
    selected = picked.view(heads, group, k).to(torch.int32)
    mask = torch.zeros(1, heads, group, n, dtype=torch.bool).scatter(-1, selected.long().unsqueeze(0), True)
    logits = (query.double() @ keys.double().transpose(-1, -2) * 0.1).masked_fill(~mask[0], -torch.inf)
    exact = torch.softmax(logits, -1) @ values.double()
    theirs, _ = attend_selected(query.unsqueeze(0), keys, values, mask, 0.1)
    rows = union(selected, n)
    tail = keys.new_zeros(heads, 0, d)
    staged = [fetch(rows, t, tail, n) for t in (keys, values)]
    past = (torch.arange(rows.ids.shape[1]) >= rows.count.unsqueeze(-1)).unsqueeze(-1)
    staged = [t.masked_fill(past, torch.nan).to(DEVICE) for t in staged]
    out = torch.full((heads, group, d), torch.nan, device=DEVICE)
    lse = torch.full((heads, group), torch.nan, device=DEVICE)
    on_device = Union(*(t.to(DEVICE) for t in (rows.ids, rows.member, rows.count)))
    kernels_of("attention").attend(query.to(DEVICE), *staged, on_device, 0.1, out=out, lse=lse, splits=splits)
    size, near = exact.norm(), rounding(logits)
    assert float((out.cpu().double() - exact).norm() / size) < near
    assert float((theirs[0].double() - exact).norm() / size) < 1e-6
    torch.testing.assert_close(lse.cpu().double(), torch.logsumexp(logits, -1), rtol=1e-6, atol=1e-6)
    lse.fill_(torch.nan)
    by_dispatch = attend_rows(query.to(DEVICE), *staged, on_device, 0.1, lse=lse)
    torch.testing.assert_close(by_dispatch, out, rtol=1e-5, atol=near)
    into = torch.full((heads, group, d), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    assert attend_rows(query.to(DEVICE), *staged, on_device, 0.1, out=into) is into
    assert torch.equal(into, by_dispatch.bfloat16())
    assert bool(lse.isfinite().all())


@pytest.mark.parametrize(
    ("heads", "group", "d", "first", "tail", "there", "splits", "dtype"),
    [
        (2, 1, 64, 0, 5, 1, 2, torch.float32),
        (1, 3, 80, 64, 70, 70, 3, torch.bfloat16),
        (2, 4, 128, 640, 130, 65, 16, torch.bfloat16),
        (1, 6, 64, 960, 40, 40, 9, torch.float32),
        (1, 7, 128, 192, 64, 64, 40, torch.bfloat16),
        (1, 8, 256, 128, 200, 3, 5, torch.float16),
    ],
)
@pytest.mark.parametrize("records", [True, False])
def test_dense_decoding_equals_softmax_over_every_row(
    heads: int, group: int, d: int, first: int, tail: int, there: int, splits: int, dtype: torch.dtype, records: bool
) -> None:
    generator = torch.Generator().manual_seed(first)
    stored = torch.randn(heads, first + 64, 2, d, generator=generator).to(dtype)
    new = torch.randn(heads, tail, 2, d, generator=generator).to(dtype)
    query = 3 * torch.randn(heads, group, d, generator=generator)
    keys, values = (torch.cat([stored[:, :first, side], new[:, :there, side]], 1).double() for side in range(2))
    logits = query.double() @ keys.transpose(-1, -2) * 0.1
    exact = torch.softmax(logits, -1) @ values
    stored[:, first:], new[:, there:] = torch.nan, torch.nan
    sides = [stored[:, :, side] if records else stored[:, :, side].contiguous() for side in range(2)]
    rows = [side.to(DEVICE) for side in sides]
    place = [torch.tensor([value], dtype=torch.int32, device=DEVICE) for value in (first, first + there)]
    kernels = kernels_of("attention")
    space = kernels.workspace(heads, group, d, splits, torch.device(DEVICE))
    for run, extra in ((kernels.attend_all, {"space": space}), (attend_all, {})):
        for buffer in (space.peak, space.mass, space.sums):
            buffer.fill_(torch.nan)
        out = torch.full((heads, group, d), torch.nan, device=DEVICE)
        lse = torch.full((heads, group), torch.nan, device=DEVICE)
        counter = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        run(query.to(DEVICE), *rows, new.to(DEVICE), *place, 0.1, out=out, lse=lse, counter=counter, **extra)
        assert float((out.cpu().double() - exact).norm() / exact.norm()) < 1e-6
        torch.testing.assert_close(lse.cpu().double(), torch.logsumexp(logits, -1), rtol=1e-6, atol=1e-6)
        assert counter.tolist() == [heads * many * 2 * d * dtype.itemsize for many in (first, there)]
        half = torch.full((heads, group, d), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        run(query.to(DEVICE), *rows, new.to(DEVICE), *place, 0.1, out=half, **extra)
        torch.testing.assert_close(half.float(), out, rtol=2**-7, atol=1e-6)
    roomier = [torch.nn.functional.pad(side, (0, 0, 0, 200), value=torch.nan).to(DEVICE) for side in sides]
    again = kernels.attend_all(query.to(DEVICE), *roomier, new.to(DEVICE), *place, 0.1, space=space)
    assert torch.equal(again, kernels.attend_all(query.to(DEVICE), *rows, new.to(DEVICE), *place, 0.1, space=space))


def test_parts_merge_by_their_log_sum_exp() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 1, 40, 64, generator=generator)
    query = torch.randn(1, 2, 64, generator=generator)
    expected = torch.softmax(query @ keys.transpose(-1, -2) * 0.2, -1) @ values
    parts, masses = [], []
    for start, stop in ((0, 13), (13, 40)):
        rows = union(torch.arange(stop - start, dtype=torch.int32).expand(1, 2, -1).contiguous(), stop - start)
        lse = torch.empty(1, 2, device=DEVICE)
        on_device = Union(*(t.to(DEVICE) for t in (rows.ids, rows.member, rows.count)))
        some = [
            torch.nn.functional.pad(t[:, start:stop], (0, 0, 0, rows.ids.shape[1] - stop + start))
            for t in (keys, values)
        ]
        parts.append(
            kernels_of("attention").attend(query.to(DEVICE), *(t.to(DEVICE) for t in some), on_device, 0.2, lse=lse)
        )
        masses.append(lse)
    weight = torch.softmax(torch.stack(masses), 0).unsqueeze(-1)
    torch.testing.assert_close((weight * torch.stack(parts)).sum(0).cpu(), expected, rtol=1e-5, atol=1e-6)


def test_refuses_too_few_rows() -> None:
    rows = union(torch.zeros(1, 1, 4, dtype=torch.int32), 10)
    with pytest.raises(ValueError, match="union of 4"):
        kernels_of("attention").attend(*torch.zeros(3, 1, 1, 64), rows, 1.0)
