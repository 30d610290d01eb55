"""The ops that surround the scan in a decode step, against their references on the device, and captured in a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_setup import (
    DEVICE,
    LONG,
    REHEARSAL,
    SMALL,
    Report,
    attention,
    normal,
    pinned,
    poison,
    rows,
    topk,
    waterfill,
)
from torch import Tensor

from leadline.kernels.channels import reference as channels_by_torch
from leadline.kernels.channels import triton as channels
from leadline.kernels.keyscan import triton as keyscan
from leadline.kernels.planes.reference import BLOCK
from leadline.kernels.rows.reference import fetch as fetch_by_torch
from leadline.kernels.rows.reference import union as union_by_torch
from leadline.kernels.slots.reference import slots as slots_by_torch
from leadline.kernels.tail import triton as tail
from leadline.kernels.topk.reference import select

SHAPES = [(1, 1, 64), (2, 3, 64), (2, 4, 128), (1, 6, 80), (2, 7, 128), (1, 8, 256)]  # heads, group, d
if SMALL:
    SHAPES = SHAPES[1:3]
FAR = () if SMALL else ((1 << 31) - 4096, 1 << 31)  # elements between heads
_CHUNK = 1 << 16


def number(value: int) -> Tensor:
    """A number on the device."""
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


def counter(size: int = 1) -> Tensor:
    """Where bytes are counted."""
    return torch.zeros(size, dtype=torch.int64, device=DEVICE)


def require_products(found: Tensor, query: Tensor, keys: Tensor) -> None:
    """Scores within 1e-5 of sum |q_j k_j| of float64, a part of the tokens at a time."""
    for start in range(0, keys.shape[1], _CHUNK):
        part = slice(start, min(start + _CHUNK, keys.shape[1]))
        wide = keys[:, part].to(DEVICE).double().transpose(-1, -2)
        exact, size = query.double() @ wide, query.double().abs() @ wide.abs()
        worst = ((found[..., part].double() - exact).abs() / (size + 1e-30)).max()
        assert float(worst) <= 1e-5, f"scores differ by {float(worst):.2e} of sum |q k|"


def check_tail(report: Report) -> None:
    """Scores of the tail, and the rotation of a key and of queries."""
    for heads, group, d in SHAPES:
        room, first = 200, 3 * BLOCK
        query, active = normal(heads, group, d), (normal(heads, d, seed=3) > 0).float()
        for dtype in (torch.float32, torch.bfloat16):
            with report.check(f"tail scores H={heads} G={group} d={d} {dtype}"):
                for there in (1, 64, 130):
                    records = normal(heads, room, 2, d).to(dtype)
                    records[:, there:] = torch.nan
                    for mask in (active, None):
                        out, read = poison(heads, group, first + room), counter()
                        keys = records[:, :, 0]
                        tail.tail_scores(query, keys, mask, number(first), number(first + there), out, read)
                        shown = query if mask is None else query * mask.unsqueeze(1)
                        require_products(out[..., first : first + there], shown, keys[:, :there])
                        assert bool(out[..., :first].isnan().all())
                        assert bool(out[..., first + there :].isnan().all())
                        assert int(read) == heads * there * d * dtype.itemsize
        with report.check(f"rotation H={heads} G={group} d={d}"):
            mean, turn = normal(heads, d), torch.linalg.qr(normal(heads, d, d, seed=2))[0]
            for r in (d, d // 4):
                vectors, key = turn[..., :r].contiguous(), normal(heads, d, seed=4).bfloat16()
                out = poison(heads, 70, r)
                tail.rotate_one(key, mean, vectors, number(first + 69), number(first), out)
                require_products(out[:, 69:].mT, vectors.mT, (key.float() - mean).unsqueeze(1))
                assert bool(out[:, :69].isnan().all())
                turned = tail.rotate_query(query, vectors, poison(heads, group, r))
                require_products(turned, query, vectors.mT)


def check_key_scan(report: Report) -> None:
    """Scores of key rows in GPU and pinned host memory, of records and apart, and past 2^31 elements."""
    for heads, group, d in SHAPES:
        for blocks in (0, 1, 65):
            with report.check(f"key scan H={heads} G={group} d={d} blocks={blocks}"):
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    n, query = blocks * BLOCK, normal(heads, group, d)
                    records = normal(heads, n + 100, 2, d).to(dtype)
                    records[:, n:] = torch.nan
                    out, maxima, read = poison(heads, group, n + 100), poison(heads, group, blocks + 1), counter()
                    keys = records[:, :, 0]
                    keyscan.key_scan(query, keys, first=number(n), out=out, maxima=maxima, counter=read)
                    require_products(out, query, keys[:, :n])
                    if blocks:
                        assert torch.equal(maxima[..., :-1], out[..., :n].unflatten(-1, (-1, BLOCK)).amax(-1))
                    assert bool(maxima[..., -1].isnan().all())
                    assert bool(out[..., n:].isnan().all())
                    assert int(read) == heads * n * d * dtype.itemsize
    heads, group, d = 2, 4, 128
    with report.check(f"key scan of {LONG} keys, in pinned host memory bit for bit as in GPU memory"):
        query, records = normal(heads, group, d), normal(heads, LONG, 2, d, dtype=torch.bfloat16)
        here = keyscan.key_scan(query, records[:, :, 0])
        require_products(here, query, records[:, :, 0])
        out = poison(heads, group, LONG)
        assert torch.equal(keyscan.key_scan(query, pinned(records)[:, :, 0], out=out), here)
    for stride in FAR:
        with report.check(f"key scan with heads {stride} elements apart"):
            store = torch.empty(stride + 65536, dtype=torch.bfloat16, device=DEVICE)
            far = store.as_strided((2, 128, d), (stride, d, 1)).copy_(normal(2, 128, d))
            assert torch.equal(keyscan.key_scan(query, far), keyscan.key_scan(query, far.contiguous()))
            del store, far


def check_channels(report: Report) -> None:
    """Plans of the largest channels, and the sums that plans leave behind."""
    for heads, group, d in SHAPES:
        with report.check(f"largest channels and totals H={heads} G={group} d={d}"):
            for query in (normal(heads, group, d), normal(heads, group, d).round()):
                for r in (0, 1, d // 8, d):
                    active, totals = poison(heads, d), counter(2)
                    depth, plan = channels.largest(query, r, active=active, totals=totals)
                    expected = channels_by_torch.depths(query.cpu(), r)
                    assert torch.equal(depth.cpu().long(), expected)
                    assert torch.equal(plan.channel.cpu(), slots_by_torch(expected).channel)
                    assert torch.equal(active.cpu(), expected.float() / 4)
                    assert totals.tolist() == [4 * r * heads, r * heads]
                active, totals = poison(heads, d), counter(2)
                depth, _ = waterfill.plan(
                    query, torch.ones(heads, d, device=DEVICE), d // 2, None, None, active, totals
                )
                assert torch.equal(active, (depth > 0).float())
                assert totals.tolist() == [int(depth.sum()), int((depth > 0).sum())]


def check_records(report: Report) -> None:
    """Records of a union from pinned host memory and from two tensors, `first` on the device."""
    for heads, group, d in SHAPES:
        n, more, k = (600, 50, 60) if SMALL else (200_000, 500, 512)
        picked = [torch.randperm(n + more, device=DEVICE)[:k].sort().values for _ in range(heads * group)]
        union = union_by_torch(torch.stack(picked).view(heads, group, k).int(), n + more)
        old, new = (normal(heads, count, 2, d, dtype=torch.bfloat16) for count in (n, more))
        sides = [fetch_by_torch(union, old[:, :, side], new[:, :, side], n) for side in range(2)]
        expected, host = torch.stack(sides, 2), pinned(old)
        apart = [old[:, :, side].contiguous() for side in range(2)]
        for name, stored in (("host records", (host[:, :, 0], host[:, :, 1])), ("two tensors", apart)):
            with report.check(f"records from {name} H={heads} G={group} d={d}"):
                out, read = poison(heads, group * k, 2, d, dtype=torch.bfloat16), counter(2)
                rows.fetch_records(union, *stored, new, number(n), out=out, counter=read)
                for head, count in enumerate(union.count.tolist()):
                    assert torch.equal(out[head, :count], expected[head, :count])
                    assert bool(out[head, count:].isnan().all())
                assert int(read.sum()) == int(union.count.sum()) * 4 * d
    for stride in FAR:
        with report.check(f"records with heads {stride} elements apart"):
            store = torch.empty(stride + 65536, dtype=torch.bfloat16, device=DEVICE)
            far = store.as_strided((2, 100, 2, 128), (stride, 256, 128, 1)).copy_(normal(2, 100, 2, 128))
            ids = torch.arange(0, 100, 3, dtype=torch.int32, device=DEVICE).expand(2, 1, -1).contiguous()
            union = rows.union(ids, 100)
            found = rows.fetch_records(union, far[:, :, 0], far[:, :, 1], far[:, :0], 100)
            assert torch.equal(found, far[:, ::3])
            del store, far


def check_dense(report: Report) -> None:
    """Dense decoding: softmax over every row in float64, and the same bits from either memory and in any room."""
    for heads, group, d in [*SHAPES, (2, 4, 128)]:
        long = (heads, group, d) == (2, 4, 128)
        for first, there in ((LONG - BLOCK, 64) if long else (64 * 40, 130), (0, 1), (64, 64)):
            with report.check(f"dense decoding H={heads} G={group} d={d} over {first} + {there}"):
                stored = normal(heads, first + 77, 2, d, dtype=torch.bfloat16)
                new = normal(heads, 140, 2, d, dtype=torch.bfloat16)
                query, place = 4 * normal(heads, group, d), (number(first), number(first + there))
                every = torch.cat([stored[:, :first], new[:, :there]], 1)
                logits = query.double() @ every[:, :, 0].double().mT * d**-0.5
                exact = torch.softmax(logits, -1) @ every[:, :, 1].double()
                stored[:, first:], new[:, there:] = torch.nan, torch.nan
                lse, read, out = poison(heads, group), counter(2), poison(heads, group, d)
                args = (new, *place, d**-0.5)
                attention.attend_all(query, stored[:, :, 0], stored[:, :, 1], *args, out=out, lse=lse, counter=read)
                error = float((out.double() - exact).norm() / exact.norm())
                assert error < 1e-5, f"attention differs by {error:.2e}"
                torch.testing.assert_close(lse.double(), torch.logsumexp(logits, -1), rtol=1e-5, atol=1e-5)
                assert read.tolist() == [heads * first * 4 * d, heads * there * 4 * d]
                host = pinned(stored)
                assert torch.equal(attention.attend_all(query, host[:, :, 0], host[:, :, 1], *args), out)
                apart = [stored[:, : max(first, 1), side].contiguous() for side in range(2)]
                half = attention.attend_all(query, *apart, *args, out=poison(heads, group, d, dtype=torch.bfloat16))
                if REHEARSAL:  # the interpreter cuts bits off where a GPU rounds
                    torch.testing.assert_close(half.float(), out, rtol=2**-7, atol=0)
                else:
                    assert torch.equal(half, out.bfloat16())
    for stride in FAR:
        with report.check(f"dense decoding with heads {stride} elements apart"):
            store = torch.empty(stride + 65536, dtype=torch.bfloat16, device=DEVICE)
            far = store.as_strided((2, 100, 2, 128), (stride, 256, 128, 1)).copy_(normal(2, 100, 2, 128))
            query, near = normal(2, 4, 128), far.contiguous()
            args = (near, number(64), number(100), 0.1)
            found = attention.attend_all(query, far[:, :, 0], far[:, :, 1], *args)
            assert torch.equal(found, attention.attend_all(query, near[:, :, 0], near[:, :, 1], *args))
            del store, far


def check_captured_step(report: Report) -> None:
    """Exact top-k attention of one layer as one graph: captured once, right at every place in the text."""
    heads, group, d, room, k = 2, 4, 128, 128, 128
    blocks = 40 if SMALL else 500
    records = normal(heads, blocks * BLOCK, 2, d, dtype=torch.bfloat16)
    new, host, query = normal(heads, room, 2, d, dtype=torch.bfloat16), pinned(records), normal(heads, group, d)
    capacity = blocks * BLOCK + room
    scores, maxima = poison(heads, group, capacity), poison(heads, group, blocks)
    first, length, used = number(0), number(0), number(0)
    top, merge = topk.workspace(heads * group, capacity, DEVICE), attention.workspace(heads, group, d, 32, DEVICE)
    space, into = rows.workspace(heads, group, k, DEVICE), rows.empty(heads, group, k, DEVICE)
    ids, fetched = poison(heads * group, k, dtype=torch.int32), poison(heads, group * k, 2, d, dtype=torch.bfloat16)
    out, read = poison(heads, group, d), counter(2)

    def step() -> None:
        keyscan.key_scan(query, host[:, :, 0], first=first, out=scores, maxima=maxima)
        tail.tail_scores(query, new[:, :, 0], None, first, length, scores)
        topk.select_ids(
            scores.flatten(0, 1), length, k=k, sink=4, local=32, space=top, peaks=maxima.flatten(0, 1), covered=used,
            out=ids,
        )  # fmt: skip
        union = rows.union(ids.view(heads, group, k), capacity, space, into)
        rows.fetch_records(union, host[:, :, 0], host[:, :, 1], new, first, out=fetched, counter=read)
        attention.attend(query, fetched[:, :, 0], fetched[:, :, 1], union, d**-0.5, space=merge, out=out)

    def set_place(stored: int, there: int) -> None:
        for cell, value in ((first, stored * BLOCK), (length, stored * BLOCK + there), (used, stored)):
            cell.fill_(value)

    run = captured(step, lambda: set_place(2, 1))
    for stored, there in ((blocks, 64), (3, 70), (blocks - 1, 1), (0, 1), (1, 65), (blocks, 128)):
        with report.check(f"captured step at {stored} blocks and {there} tokens"):
            set_place(stored, there)
            for tensor in (scores, maxima, out, fetched):
                tensor.fill_(torch.nan)
            read.zero_()
            run()
            n = stored * BLOCK + there
            every = torch.cat([records[:, : stored * BLOCK], new[:, :there]], 1)
            require_products(scores[..., :n], query, every[:, :, 0])
            mask = select(scores[None, ..., :n], length.long(), k=k, sink=4, local=32)[0]
            logits = (query.double() @ every[:, :, 0].double().mT * d**-0.5).masked_fill(~mask, -torch.inf)
            exact = torch.softmax(logits, -1) @ every[:, :, 1].double()
            error = float((out.double() - exact).norm() / exact.norm())
            assert error < 1e-5, f"attention differs by {error:.2e}"
            assert int(read.sum()) == int(mask.any(1).sum()) * 4 * d


def captured(step: Callable[[], None], begin: Callable[[], None]) -> Callable[[], None]:
    """The step's replay; the step itself where there is no GPU."""
    begin()
    if REHEARSAL:
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
