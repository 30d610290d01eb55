"""The fused plane scan equals the reference within 1e-5 of sum |q_j v_j|, and counts the bytes of its plan."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.gather import stage, staging
from leadline.kernels.planes import BLOCK, decode, pack
from leadline.kernels.scan import fused_scan
from leadline.kernels.slots import slots

GRID = [  # heads, group, d, blocks
    (1, 1, 64, 1),
    (2, 3, 64, 3),
    (1, 4, 128, 15),
    (2, 7, 64, 2),
    (1, 8, 128, 5),
    (2, 6, 80, 4),
    (1, 4, 256, 1),
    (1, 1, 64, 65),
    (1, 2, 80, 16),
    (1, 5, 64, 33),
    (2, 12, 64, 9),
]


def case(heads: int, group: int, d: int, blocks: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A query, planes, scales and depths that leave most channels out."""
    generator = torch.Generator().manual_seed(1000 * group + d + blocks)
    spread = torch.exp(torch.randn(d, generator=generator))
    planes, scales = pack(torch.randn(heads, blocks * BLOCK, d, generator=generator) * spread)
    depth = torch.randint(0, 5, (heads, d), generator=generator)
    depth[torch.rand(heads, d, generator=generator) < 0.8] = 0
    return torch.randn(heads, group, d, generator=generator), planes, scales, depth


def expected(query: Tensor, planes: Tensor, scales: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in float64 and sum |q_j v_j|."""
    values = decode(planes, depth).double() * scales.double().repeat_interleave(BLOCK, -1)
    return query.double() @ values, query.double().abs() @ values.abs()


def poison(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, device=DEVICE)


@pytest.mark.parametrize(("heads", "group", "d", "blocks"), GRID)
def test_equals_the_reference(heads: int, group: int, d: int, blocks: int) -> None:
    query, planes, scales, depth = case(heads, group, d, blocks)
    exact, size = expected(query, planes, scales, depth)
    counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    maxima = poison(heads, group, blocks)
    found = kernels_of("scan").plane_scan(
        *(t.to(DEVICE) for t in (query, planes, scales)),
        slots(depth.to(DEVICE)),
        out=poison(heads, group, blocks * BLOCK),
        maxima=maxima,
        counter=counter,
    )
    assert bool(((found.cpu().double() - exact).abs() <= 1e-5 * size + 1e-30).all())
    assert torch.equal(maxima, found.unflatten(-1, (-1, BLOCK)).amax(-1))
    planned = (8 * depth.sum() + 2 * (depth > 0).sum()) * blocks
    assert int(counter) == int(planned)


def test_a_plan_that_reads_nothing_scores_zero() -> None:
    query, planes, scales, depth = case(1, 2, 64, 2)
    found = kernels_of("scan").plane_scan(
        *(t.to(DEVICE) for t in (query, planes, scales)),
        slots(torch.zeros_like(depth).to(DEVICE)),
        out=poison(1, 2, 128),
    )
    assert torch.equal(found, torch.zeros_like(found))


def test_strided_inputs_room_to_grow_and_a_prefix() -> None:
    """A store with capacity, a wider output, and fewer blocks than the store holds: the rest stays untouched."""
    query, planes, scales, depth = case(2, 4, 64, 3)
    exact, size = expected(query, planes, scales, depth)
    room = torch.full((2, 64, 4, 9), -1, dtype=torch.int64)
    room[..., :3] = planes
    wide = torch.full((2, 64, 9), torch.nan, dtype=torch.float16)
    wide[..., :3] = scales
    room, wide = room.to(DEVICE), wide.to(DEVICE)
    doubled = torch.stack([query, query], 1).flatten(0, 1).to(DEVICE)[::2]
    buffer = poison(2, 4, 300)
    kernels_of("scan").plane_scan(doubled, room[..., :3], wide[..., :3], slots(depth.to(DEVICE)), out=buffer)
    assert bool(((buffer[..., :192].cpu().double() - exact).abs() <= 1e-5 * size).all())
    assert bool(buffer[..., 192:].isnan().all())
    two = poison(2, 4, 600)
    blocks = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    kernels_of("scan").plane_scan(doubled, room, wide, slots(depth.to(DEVICE)), out=two, blocks=blocks)
    assert torch.equal(two[..., :128], buffer[..., :128])
    assert bool(two[..., 128:].isnan().all())


@pytest.mark.parametrize(("group", "held"), [(1, 5), (2, 6), (3, 1), (4, 5), (5, 2), (6, 6), (7, 5), (8, 1)])
def test_a_prefix_of_any_store(group: int, held: int) -> None:
    """Blocks in use odd or even, in a store of odd or even capacity, with rows of scales at multiples of 4 bytes or
    not: what lies past the blocks in use is NaN, and neither read into a score nor written over.
    """
    query, planes, scales, depth = case(2, group, 64, held)
    depth[:, :4] = torch.arange(1, 5)  # every depth at least once
    exact, size = expected(query, planes, scales, depth)
    blocks = torch.tensor([held], dtype=torch.int32, device=DEVICE)
    found = []
    for capacity, stride, start in ((6, 64, 0), (7, 64, 0), (7, 7, 0), (6, 6, 1)):
        words = torch.full((2, 64, 4, stride), -1, dtype=torch.int64)
        words[..., :held] = planes
        numbers = torch.full((start + 2 * 64 * stride,), torch.nan, dtype=torch.float16)
        numbers[start:].view(2, 64, stride)[..., :held] = scales
        numbers = numbers.to(DEVICE)[start:].view(2, 64, stride)
        out, maxima = poison(2, group, 7 * BLOCK), poison(2, group, capacity)
        counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        kernels_of("scan").plane_scan(
            query.to(DEVICE),
            words.to(DEVICE)[..., :capacity],
            numbers[..., :capacity],
            slots(depth.to(DEVICE)),
            blocks=blocks,
            out=out,
            maxima=maxima,
            counter=counter,
        )
        seen = out[..., : held * BLOCK]
        assert bool(((seen.cpu().double() - exact).abs() <= 1e-5 * size).all())
        assert bool(out[..., held * BLOCK :].isnan().all())
        assert torch.equal(maxima[..., :held], seen.unflatten(-1, (-1, BLOCK)).amax(-1))
        assert bool(maxima[..., held:].isnan().all())
        assert int(counter) == int((8 * depth.sum() + 2 * (depth > 0).sum()) * held)
        found.append(seen)
    assert all(torch.equal(seen, found[0]) for seen in found)


def test_rows_say_where_a_slot_lies() -> None:
    query, planes, scales, depth = case(1, 4, 64, 2)
    plan = slots(depth.to(DEVICE))
    whole = kernels_of("scan").plane_scan(*(t.to(DEVICE) for t in (query, planes, scales)), plan)
    by_slot = plan.channel.long().cpu()
    staged = planes[0][by_slot], scales[0][by_slot]
    rows = torch.arange(64, dtype=torch.int32, device=DEVICE).view(1, 64)
    found = kernels_of("scan").plane_scan(query.to(DEVICE), *(t.to(DEVICE) for t in staged), plan, rows=rows)
    assert torch.equal(found, whole)


def test_a_score_that_is_no_number_makes_its_block_the_largest() -> None:
    query, planes, scales, depth = case(1, 1, 64, 3)
    depth[0, 5] = 4
    scales[0, 5, 1] = torch.nan
    maxima = poison(1, 1, 3)
    kernels_of("scan").plane_scan(
        *(t.to(DEVICE) for t in (query, planes, scales)), slots(depth.to(DEVICE)), maxima=maxima
    )
    assert maxima.isinf().flatten().tolist() == [False, True, False]


def test_refuses_what_it_would_misread() -> None:
    query, planes, scales, depth = case(1, 1, 64, 2)
    scan, plan = kernels_of("scan").plane_scan, slots(depth)
    with pytest.raises(ValueError, match="int64"):
        scan(query, planes.to(torch.int32), scales, plan)
    with pytest.raises(ValueError, match="contiguous"):
        scan(query, planes.repeat_interleave(2, -1)[..., ::2], scales, plan)
    with pytest.raises(ValueError, match="fp16"):
        scan(query, planes, scales.float(), plan)


def test_one_dispatch_for_both() -> None:
    query, planes, scales, depth = case(2, 3, 64, 3)
    exact, size = expected(query, planes, scales, depth)
    out, maxima = poison(2, 3, 200), poison(2, 3, 3)
    blocks = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    arguments = [t.to(DEVICE) for t in (query, planes, scales)]
    whole = fused_scan(*arguments, slots(depth.to(DEVICE)))
    assert bool(((whole.cpu().double() - exact).abs() <= 1e-5 * size).all())
    fused_scan(*arguments, slots(depth.to(DEVICE)), blocks=blocks, out=out, maxima=maxima)
    torch.testing.assert_close(out[..., :128], whole[..., :128])
    assert bool(out[..., 128:].isnan().all())
    assert torch.equal(maxima[..., :2], out[..., :128].unflatten(-1, (-1, BLOCK)).amax(-1))
    assert bool(maxima[..., 2].isnan().all())


def test_what_a_plan_leaves_out_of_a_staging_buffer_enters_no_score() -> None:
    """The dispatches of the staged path, on any machine: unread rows of the buffer hold NaN, and bytes are counted."""
    query, planes, scales, depth = (t.to(DEVICE) for t in case(2, 3, 64, 3))
    plan, into = slots(depth), staging(2, 64, 3, DEVICE)
    into.planes.fill_(-1)
    into.scales.fill_(torch.nan)
    moved, read = (torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(2))
    stage(planes, scales, plan, into, moved)
    found = fused_scan(query, into.planes, into.scales, plan, rows=into.rows, counter=read)
    torch.testing.assert_close(found, fused_scan(query, planes, scales, plan))
    assert int(moved) == int(read) == int((8 * depth.sum() + 2 * (depth > 0).sum()) * 3)
