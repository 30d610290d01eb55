"""Every kernel against its reference on the device, at sizes that an interpreter on a CPU cannot reach."""

from __future__ import annotations

import torch
from kernel_setup import (
    DEVICE,
    LONG,
    SMALL,
    Report,
    attention,
    entries,
    gather,
    nibbles,
    normal,
    pinned,
    planes,
    poison,
    rows,
    scan,
    slots,
    topk,
    waterfill,
)
from step_checks import check_captured_step as check_captured_step
from step_checks import check_channels as check_channels
from step_checks import check_dense as check_dense
from step_checks import check_key_scan as check_key_scan
from step_checks import check_records as check_records
from step_checks import check_tail as check_tail
from torch import Tensor

from leadline.kernels.entries.reference import page_scan
from leadline.kernels.gather.dispatch import staging
from leadline.kernels.gather.reference import stage as stage_by_torch
from leadline.kernels.nibbles.reference import pack_nibbles
from leadline.kernels.planes.reference import BLOCK, decode
from leadline.kernels.planes.reference import pack as pack_by_torch
from leadline.kernels.rows.reference import Union
from leadline.kernels.rows.reference import fetch as fetch_by_torch
from leadline.kernels.rows.reference import union as union_by_torch
from leadline.kernels.slots.reference import slots as slots_by_torch
from leadline.kernels.topk.reference import select
from leadline.kernels.waterfill.reference import depths

SHAPES = [(1, 1, 64), (2, 3, 64), (2, 4, 128), (1, 6, 80), (2, 7, 128), (1, 8, 256)]  # heads, group, d
if SMALL:
    SHAPES = SHAPES[1:3]
_CHUNK = 1 << 16


def sparse_depths(heads: int, d: int, seed: int) -> Tensor:
    """Depths 0..4, three quarters of them 0."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    depth = torch.randint(0, 5, (heads, d), generator=generator, device=DEVICE)
    return depth * (torch.rand(heads, d, generator=generator, device=DEVICE) < 0.25)


def require_scores(found: Tensor, query: Tensor, words: Tensor, scales: Tensor, depth: Tensor) -> None:
    """Scores within 1e-5 of sum |q_j v_j| of float64, a part of the sequence at a time."""
    for start in range(0, words.shape[-1], _CHUNK // BLOCK):
        part = slice(start, start + _CHUNK // BLOCK)
        values = decode(words[..., part].to(DEVICE).contiguous(), depth).double()
        values *= scales[..., part].to(DEVICE).double().repeat_interleave(BLOCK, -1)
        exact, size = query.double() @ values, query.double().abs() @ values.abs()
        part = slice(start * BLOCK, start * BLOCK + exact.shape[-1])
        worst = ((found[..., part].double() - exact).abs() / (size + 1e-30)).max()
        assert float(worst) <= 1e-5, f"scores differ by {float(worst):.2e} of sum |q v|"


def check_scans(report: Report) -> None:
    """The plane scan on small and odd lengths, 1M keys, host memory, and past 2^31 elements."""
    for heads, group, d in SHAPES:
        for blocks in (1, 2, 63, 64, 65):
            with report.check(f"plane scan H={heads} G={group} d={d} blocks={blocks}"):
                words, scales = pack_by_torch(normal(heads, blocks * BLOCK, d))
                depth, query = sparse_depths(heads, d, blocks), normal(heads, group, d, seed=1)
                plan, counter = slots.slots(depth), torch.zeros(1, dtype=torch.int64, device=DEVICE)
                assert torch.equal(plan.depth(), depth)
                out, maxima = poison(heads, group, blocks * BLOCK), poison(heads, group, blocks)
                scan.plane_scan(query, words, scales, plan, out=out, maxima=maxima, counter=counter)
                require_scores(out, query, words, scales, depth)
                assert torch.equal(maxima, out.unflatten(-1, (-1, BLOCK)).amax(-1))
                assert int(counter) == int(8 * depth.sum() + 2 * (depth > 0).sum()) * blocks
    heads, group, d, m = (1, 4, 64, LONG // BLOCK) if SMALL else (8, 4, 128, LONG // BLOCK)
    words = torch.randint(-(2**63), 2**63 - 1, (heads, d, 4, m), device=DEVICE)
    scales, query, depth = normal(heads, d, m).abs().half(), normal(heads, group, d), sparse_depths(heads, d, 7)
    plan = slots.slots(depth)
    with report.check(f"plane scan of {LONG} keys"):
        out = poison(heads, group, m * BLOCK)
        scan.plane_scan(query, words, scales, plan, out=out)
        require_scores(out, query, words, scales, depth)
    with report.check(f"plane scan of {LONG} keys in pinned host memory, equal to device memory bit for bit"):
        host_words, host_scales, again = pinned(words), pinned(scales), poison(heads, group, m * BLOCK)
        counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        scan.plane_scan(query, host_words, host_scales, plan, out=again, counter=counter)
        assert torch.equal(again, out)
        assert int(counter) == int(8 * depth.sum() + 2 * (depth > 0).sum()) * m
    with report.check("staged transfer from host memory, then the scan of what was staged"):
        into, expected = (staging(heads, d, m, DEVICE) for _ in range(2))
        for buffer in (into, expected):
            buffer.planes.fill_(-3)
            buffer.scales.fill_(-3)
        counter = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        gather.stage(host_words, host_scales, plan, into.planes, into.scales, counter=counter)
        stage_by_torch(words, scales, plan, expected.planes, expected.scales)
        assert torch.equal(into.planes, expected.planes)
        assert torch.equal(into.scales, expected.scales)
        assert int(counter) == int(8 * depth.sum() + 2 * (depth > 0).sum()) * m
        assert torch.equal(scan.plane_scan(query, into.planes, into.scales, plan, rows=into.rows), out)
    del words, scales, out, into, expected
    for stride in () if SMALL else ((1 << 30) - 4096, 1 << 30):  # of 8-byte words: 2^31 words of 4 bytes
        with report.check(f"plane scan with heads {stride} words of 8 bytes apart, scores as far"):
            store, scores = torch.empty(stride + 65536, dtype=torch.int64, device=DEVICE), poison(2 * stride + 65536)
            small, scales = pack_by_torch(normal(2, 128, 64))
            far = store.as_strided(small.shape, (stride, 8, 2, 1)).copy_(small)
            depth, query = sparse_depths(2, 64, 3), normal(2, 4, 64)
            out = scores.as_strided((2, 4, 128), (2 * stride, 128, 1))
            scan.plane_scan(query, far, scales, slots.slots(depth), out=out)
            require_scores(out, query, small, scales, depth)
            del store, scores, far, out


def check_other_scans(report: Report) -> None:
    """Nibbles, entries and pages, from host memory."""
    for heads, group, c in SHAPES:
        tokens = 65 * BLOCK
        keys, query = normal(heads, tokens, c), normal(heads, group, c, seed=2)
        with report.check(f"nibble scan H={heads} G={group} c={c}"):
            words, scales = pack_nibbles(keys)
            bit_planes, _ = pack_by_torch(keys)
            out, counter = poison(heads, group, tokens), torch.zeros(1, dtype=torch.int64, device=DEVICE)
            nibbles.nibble_scan(query, pinned(words), pinned(scales), out=out, counter=counter)
            require_scores(out, query, bit_planes, scales, torch.full((heads, c), 4, device=DEVICE))
            assert int(counter) == heads * c * 65 * 34
        with report.check(f"entry and page scans H={heads} G={group} c={c}"):
            for tokens_per_entry in (1, 8, 16):
                few = keys.unflatten(1, (-1, tokens_per_entry)).transpose(-1, 1)
                low, high = few.amin(2).half().contiguous(), few.amax(2).half().contiguous()
                exact = (query.double() @ high.double()).repeat_interleave(tokens_per_entry, -1)
                size = (query.double().abs() @ high.double().abs()).repeat_interleave(tokens_per_entry, -1)
                out = poison(heads, group, tokens)
                entries.entry_scan(query, pinned(high), None, tokens_per_entry, out=out)
                assert bool(((out.double() - exact).abs() <= 1e-5 * size).all())
                out = poison(heads, group, tokens)
                entries.entry_scan(query, pinned(high), pinned(low), tokens_per_entry, out=out)
                torch.testing.assert_close(out, page_scan(query, low, high, tokens_per_entry), rtol=1e-4, atol=1e-4)


def positions(mask: Tensor, k: int) -> Tensor:
    """Ascending positions `[R, k]` of a mask `[R, n]`, -1 past the last."""
    ids = torch.full((mask.shape[0], k), -1, dtype=torch.int32, device=mask.device)
    row, token = torch.nonzero(mask, as_tuple=True)
    ids[row, (mask.cumsum(-1) - 1)[row, token]] = token.to(torch.int32)
    return ids


def check_topk(report: Report) -> None:
    """Selections equal the reference's on crowded rows of 1M scores, five times the same."""
    count = 2 if SMALL else 32
    noise = normal(count, LONG)
    plateau = noise.clone()
    at = torch.randperm(LONG, device=DEVICE)[: min(16385, LONG // 2)]
    plateau[:, at] = 2.0
    kinds = {
        "normal": noise,
        "constant": torch.zeros_like(noise),
        "a plateau of 16385": plateau,
        "few values": noise.round(),
        "crowded in [1, 1.245)": 1 + noise.abs() % 0.245,
        "mostly -inf": torch.where(noise > 3.2, noise, -torch.inf),
        "-inf alone": torch.full_like(noise, -torch.inf),
    }
    lengths = torch.full((count,), LONG, dtype=torch.int32, device=DEVICE)
    lengths[count // 2 :] -= 1000
    for name, scores in kinds.items():
        for k in (128,) if SMALL else (512, 2048):
            with report.check(f"top-{k} of {count} x {LONG}, {name}"):
                space = topk.workspace(count, LONG, DEVICE, 4 * k)  # blocks of 64 tokens and of fewer
                mask = select(scores.view(count, 1, 1, LONG), lengths.long(), k=k, sink=4, local=32).view(count, -1)
                expected = positions(mask, k)
                for buffer in (space.blocks, space.bound, space.counts, space.keys, space.index):
                    buffer.fill_(-1)
                space.peaks.fill_(torch.nan)
                for _ in range(1 if SMALL else 5):
                    out = poison(count, k, dtype=torch.int32)
                    topk.select_ids(scores, lengths, k=k, sink=4, local=32, space=space, out=out)
                    assert torch.equal(out, expected)
                peaks = scores.unflatten(-1, (-1, BLOCK)).amax(-1)
                given = topk.select_ids(scores, lengths, k=k, sink=4, local=32, space=space, peaks=peaks)
                assert torch.equal(given, expected)
                assert int(space.invalid) == 0
    for n in (1, 35, 36, 37, 511, 512, 513, 1000, 16383, 16384, 16385, 16386):
        with report.check(f"top-512 of rows of {n}"):
            some = torch.tensor([n], dtype=torch.int32, device=DEVICE)
            scores = kinds["crowded in [1, 1.245)"][:2, : max(n, 600)].contiguous()
            some = some.clamp(max=scores.shape[1])
            space = topk.workspace(2, scores.shape[1], DEVICE, 512)
            mask = select(scores.view(2, 1, 1, -1), some.long().expand(2), k=512, sink=4, local=32).view(2, -1)
            found = topk.select_ids(scores, some, k=512, sink=4, local=32, space=space)
            assert torch.equal(found, positions(mask, 512))
    if not SMALL:
        with report.check("top-512 of rows 2^31 scores apart"):
            far = torch.empty((1 << 31) + 70000, device=DEVICE).as_strided((2, 65536), (1 << 31, 1))
            far.copy_(noise[:2, :65536])
            some = torch.tensor([65536], dtype=torch.int32, device=DEVICE)
            near = topk.select_ids(far.contiguous(), some, k=512, sink=4, local=32)
            assert torch.equal(topk.select_ids(far, some, k=512, sink=4, local=32), near)
            del far


def check_rows(report: Report) -> None:
    """Union, fetch from host memory, and attention over what was fetched."""
    for heads, group, d in SHAPES:
        n, tail, k = (600, 50, 60) if SMALL else (200_000, 500, 512)
        picked = torch.stack([torch.randperm(n + tail, device=DEVICE)[:k].sort().values for _ in range(heads * group)])
        picked[:, : k // 2] = picked[:1, : k // 2]  # half of a selection is common to the heads
        selected = picked.sort(-1).values.view(heads, group, k).to(torch.int32)
        mask = torch.zeros(heads, group, n + tail, dtype=torch.bool, device=DEVICE).scatter(-1, selected.long(), True)
        selected = positions(mask.flatten(0, 1), k).view(heads, group, k)
        expected = union_by_torch(selected, n + tail)
        with report.check(f"union H={heads} G={group} of {n + tail}"):
            blank = poison(heads, group * k, dtype=torch.int32)
            found = rows.union(selected, n + tail, out=Union(blank, blank.clone(), blank[:, 0].clone()))
            assert torch.equal(found.count, expected.count)
            for head, count in enumerate(expected.count.tolist()):
                assert torch.equal(found.ids[head, :count], expected.ids[head, :count])
                assert torch.equal(found.member[head, :count], expected.member[head, :count])
        with report.check(f"row fetch and attention H={heads} G={group} d={d}"):
            record = normal(heads, n, 2, d, dtype=torch.bfloat16)
            new = normal(2, heads, tail, d, dtype=torch.bfloat16)
            host, staged = pinned(record), []
            for side in range(2):
                counter = torch.zeros(2, dtype=torch.int64, device=DEVICE)
                out = poison(heads, group * k, d, dtype=torch.bfloat16)
                rows.fetch(expected, host[:, :, side], new[side], n, out=out, counter=counter)
                reference = fetch_by_torch(expected, record[:, :, side], new[side], n)
                for head, count in enumerate(expected.count.tolist()):
                    assert torch.equal(out[head, :count], reference[head, :count])
                assert int(counter.sum()) == int(expected.count.sum()) * 2 * d
                staged.append(out)
            query = 4 * normal(heads, group, d)
            whole = [torch.cat([record[:, :, side], new[side]], 1).double() for side in range(2)]
            logits = (query.double() @ whole[0].transpose(-1, -2) * d**-0.5).masked_fill(~mask, -torch.inf)
            exact = torch.softmax(logits, -1) @ whole[1]
            found_out = attention.attend(query, *staged, expected, d**-0.5, out=poison(heads, group, d))
            error = float((found_out.double() - exact).norm() / exact.norm())
            assert error < 1e-5, f"attention differs by {error:.2e}"
    for stride in () if SMALL else ((1 << 31) - 4096, 1 << 31):
        with report.check(f"row fetch with heads {stride} elements apart"):
            store = torch.empty(stride + 65536, dtype=torch.bfloat16, device=DEVICE)
            far = store.as_strided((2, 100, 128), (stride, 128, 1)).copy_(normal(2, 100, 128))
            picked = union_by_torch(torch.arange(0, 100, 3, dtype=torch.int32, device=DEVICE).expand(2, 1, -1), 100)
            assert torch.equal(rows.fetch(picked, far, far[:, :0], 100), fetch_by_torch(picked, far, far[:, :0], 100))
            del store, far


def check_plans_and_packing(report: Report) -> None:
    """Depths and codes equal the references bit for bit, those computed on the CPU too."""
    for heads, group, d in SHAPES:
        with report.check(f"water-filling H={heads} G={group} d={d}"):
            for seed in range(2 if SMALL else 20):
                query = normal(heads, group, d, seed=seed)
                variance = torch.exp(2 * normal(heads, d, seed=seed + 99))
                budget = 3 * d // 8
                depth, plan = waterfill.plan(query, variance, budget)
                importance = torch.square(query).sum(-2) * variance
                on_cpu = depths(torch.square(query.cpu()).sum(-2) * variance.cpu(), budget)
                assert torch.equal(depth.cpu().long(), on_cpu)
                expected = slots_by_torch(on_cpu)
                assert torch.equal(plan.channel.cpu(), expected.channel)
                assert torch.equal(plan.deeper.cpu(), expected.deeper)
                for values in (importance, importance.round(), importance * 1e-38, torch.ones_like(importance)):
                    for b in (0, budget, d, 4 * d - 1, 4 * d):
                        assert torch.equal(waterfill.depths(values, b)[0].long(), depths(values, b))
    for kind in ("normal", "edges", "zeros", "tiny"):
        for dtype in (torch.float32, torch.bfloat16):
            with report.check(f"packing {kind} {dtype}"):
                blocks = 3 if SMALL else 513
                noise = normal(2, blocks * BLOCK, 128) * torch.exp(2 * normal(128))
                scaled = {
                    "normal": noise,
                    "edges": noise.round() / 4,
                    "zeros": noise.round() * 0,
                    "tiny": noise * 1e-39,
                }
                keys = scaled[kind].to(dtype)
                words, scales = planes.pack(
                    keys,
                    poison(2, 128, 4, blocks, dtype=torch.int64),
                    poison(2, 128, blocks, dtype=torch.float16),
                )
                for device in (DEVICE, torch.device("cpu")):
                    expected_words, expected_scales = pack_by_torch(keys.to(device))
                    assert torch.equal(words.to(device), expected_words)
                    assert torch.equal(scales.to(device), expected_scales)
