"""Times of the kernels with a cold L2, from CUDA events around replays of a captured graph, beside the link's rate.

Contents are synthetic as SPEC section 8 has them: ln Var normal with sigma 2, queries of a group correlated 0.8, the
real plan. Every op is captured and replayed, which also shows that it neither waits for the host nor allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kernel_setup import (
    DEVICE,
    attention,
    entries,
    gather,
    keyscan,
    nibbles,
    normal,
    pinned,
    planes,
    rows,
    scan,
    slots,
    topk,
    waterfill,
)
from torch import Tensor

from leadline.kernels.gather.dispatch import staging
from leadline.kernels.planes.reference import BLOCK
from leadline.kernels.slots.reference import Slots

GROUP, D = 4, 128
plane_scan = scan.plane_scan
_TABLE: list[dict[str, Any]] = []


def median_ms(op: Callable[[], Any], repeats: int = 21) -> float:
    """Median milliseconds of a graph's replay, the L2 filled with something else before each."""
    op()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    times = []
    for _ in range(repeats + 2):
        flush.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return float(torch.tensor(times[2:]).median())


def row(name: str, op: Callable[[], Any], nbytes: float = 0.0, link: float = 0.0) -> float:
    """Time an op and print its line."""
    try:
        ms = median_ms(op)
    except Exception as error:
        print(f"{name:64s} FAILED {type(error).__name__}: {str(error)[:200]}", flush=True)
        _TABLE.append({"name": name, "error": str(error)[:500]})
        return float("nan")
    rate = nbytes / ms / 1e6
    share = f"{rate / link:6.2f} of the link" if link else ""
    print(f"{name:64s} {ms:9.4f} ms {rate:9.1f} GB/s {share}", flush=True)
    _TABLE.append({"name": name, "ms": ms, "gb_per_s": rate, "bytes": nbytes, "link_gb_per_s": link})
    return ms


def queries(heads: int) -> tuple[Tensor, Tensor]:
    """Queries of a group correlated 0.8, and variances of channels."""
    shared = normal(heads, 1, D, seed=5)
    return 0.8**0.5 * shared + 0.2**0.5 * normal(heads, GROUP, D, seed=6), torch.exp(2 * normal(heads, D, seed=7))


def plan_bytes(plan: Slots, m: int) -> int:
    """Payload bytes of a plan over m blocks."""
    depth = plan.depth()
    return int(8 * depth.sum() + 2 * (depth > 0).sum()) * m


def plans(heads: int) -> dict[str, Slots]:
    """The plans of the scanners that read the plane store."""
    query, variance = queries(heads)
    found = {f"fathom B={b}": waterfill.plan(query, variance, b)[1] for b in (40, 48, 64, 80)}
    strongest = query.abs().sum(1).argsort(-1, descending=True)
    for r in (16, 32):
        chosen = torch.zeros(heads, D, dtype=torch.int64, device=DEVICE).scatter(-1, strongest[:, :r], 4)
        found[f"sparq r={r}"] = slots.slots(chosen)
    for name, t in (("thumbnail", 2), ("full4", 4)):
        found[name] = slots.slots(torch.full((heads, D), t, device=DEVICE))
    return found


def link_rate() -> float:
    """GB/s of a copy of 1 GiB from pinned host memory."""
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    ms = row("copy of 1 GiB from pinned memory", partial(device.copy_, host, non_blocking=True), 1 << 30)
    return (1 << 30) / ms / 1e6


def time_host_scans(link: float) -> None:
    """Plane scans of one layer, 8 KV heads, from pinned host memory: fused, and staged."""
    heads, most = 8, (1 << 20) // BLOCK
    words = pinned(torch.randint(-(2**63), 2**63 - 1, (heads, D, 4, most), device=DEVICE))
    scales = pinned(normal(heads, D, most).abs().half())
    query, _ = queries(heads)
    out, maxima = torch.empty(heads, GROUP, most * BLOCK, device=DEVICE), torch.empty(heads, GROUP, most, device=DEVICE)
    every = plans(heads)
    for m in (most, most // 2, most // 8):
        for name, plan in every.items():
            nbytes = plan_bytes(plan, m)
            for size in (64, 128, 256) if name == "fathom B=48" else (128,):
                op = partial(plane_scan, query, words[..., :m], scales[..., :m], plan, out=out, size=size)
                bits = 8 * nbytes / heads / m / BLOCK
                row(f"host scan {m * BLOCK >> 10}k {name} ({bits:.1f} bits) size={size}", op, nbytes, link)
    plan = every["fathom B=48"]
    nbytes = plan_bytes(plan, most)
    op = partial(plane_scan, query, words, scales, plan, out=out, maxima=maxima)
    row("host scan 1024k fathom B=48 with block maxima", op, nbytes, link)
    seven, wide = normal(heads, 7, D), torch.empty(heads, 7, most * BLOCK, device=DEVICE)
    row("host scan 1024k fathom B=48, G=7", partial(plane_scan, seven, words, scales, plan, out=wide), nbytes, link)
    tight = pinned(torch.randint(-(2**63), 2**63 - 1, (heads, D, 4, most - 1), device=DEVICE))
    op = partial(plane_scan, query, tight, scales[..., :-1], plan, out=out)
    row("host scan 16383 blocks, rows unaligned, fathom B=48", op, plan_bytes(plan, most - 1), link)
    into = staging(heads, D, most, DEVICE)
    for width in (512, 1024, 2048):
        op = partial(gather.stage, words, scales, plan, into.planes, into.scales, width=width)
        row(f"staging 1024k fathom B=48 width={width}", op, nbytes, link)
    op = partial(plane_scan, query, into.planes, into.scales, plan, rows=into.rows, out=out)
    row("scan of what was staged", op, nbytes)


def time_landmarks(link: float) -> None:
    """Landmarks of one layer at 1M, 8 KV heads, from pinned host memory."""
    query, _ = queries(8)
    means = pinned(normal(8, D, 1 << 17).half())
    out = torch.empty(8, GROUP, 1 << 20, device=DEVICE)
    for size in (256, 512, 1024):
        op = partial(entries.entry_scan, query, means, None, 8, out=out, size=size)
        row(f"host landmark scan 1024k (256 bits) size={size}", op, means.numel() * 2, link)


def time_device_scans() -> None:
    """Scans with everything in GPU memory: 4 sequences of 8 KV heads."""
    heads = 32
    query, _ = queries(heads)
    labels = query[:, :, :32].contiguous()
    for m in (512, 2048):
        what = f"{m * BLOCK >> 10}k x 32 heads"
        words = torch.randint(-(2**63), 2**63 - 1, (heads, D, 4, m), device=DEVICE)
        scales = normal(heads, D, m).abs().half()
        out = torch.empty(heads, GROUP, m * BLOCK, device=DEVICE)
        for name, plan in plans(heads).items():
            for size in (64, 128) if name == "fathom B=48" else (128,):
                op = partial(plane_scan, query, words, scales, plan, out=out, size=size)
                row(f"device scan {what} {name} size={size}", op, plan_bytes(plan, m))
        few = scales[:, :32].contiguous()
        packed = torch.randint(-(2**31), 2**31 - 1, (heads, 32, 8 * m), dtype=torch.int32, device=DEVICE)
        for size in (64, 128, 256):
            op = partial(nibbles.nibble_scan, labels, packed, few, out=out, size=size)
            row(f"device nibble scan {what}, 32 channels size={size}", op, heads * 32 * 34 * m)


def time_selection() -> None:
    """Top-k and the union for one layer, 32 query heads."""
    window = {"sink": 4, "local": 32}
    for n in (1 << 20, 1 << 17):
        scores = normal(32, n)
        lengths = torch.tensor([n], dtype=torch.int32, device=DEVICE)
        peaks = scores.unflatten(-1, (-1, BLOCK)).amax(-1)
        for k in (512, 2048):
            space = topk.workspace(32, n, DEVICE, k)
            select = partial(topk.select_ids, lengths=lengths, k=k, **window, space=space)
            out = torch.empty(32, k, dtype=torch.int32, device=DEVICE)
            row(f"top-{k} of 32 x {n >> 10}k from scores alone", partial(select, scores, out=out), 4.0 * 32 * n)
            row(f"top-{k} of 32 x {n >> 10}k with the scan's maxima", partial(select, scores, peaks=peaks, out=out))
            selected = select(scores).view(8, GROUP, k)
            work, into = rows.workspace(8, GROUP, k, DEVICE), rows.empty(8, GROUP, k, DEVICE)
            row(f"union of 8 x 4 x {k} of {n >> 10}k", partial(rows.union, selected, n, work, into))
        flat = torch.zeros_like(scores)
        op = partial(topk.select_ids, flat, lengths, k=512, **window, space=space)
        row(f"top-512 of 32 x {n >> 10}k, constant rows", op, 4.0 * 32 * n)


def time_rows(link: float) -> None:
    """Row fetch from pinned host memory and attention, one layer of 8 KV heads at 1M."""
    heads, n = 8, 1 << 20
    host = torch.empty(heads, n, 2, D, dtype=torch.bfloat16, pin_memory=True)
    for head in range(heads):
        host[head].copy_(normal(n, 2, D, seed=head).bfloat16())
    generator = torch.Generator(DEVICE).manual_seed(0)
    common = torch.randperm(n, generator=generator, device=DEVICE)[:300]
    own = [torch.randperm(n, generator=generator, device=DEVICE)[:700] for _ in range(heads * GROUP)]
    selected = torch.stack([torch.cat([common, o]).unique()[:512].int() for o in own]).view(heads, GROUP, 512)
    union = rows.union(selected.contiguous(), n)
    tail = torch.empty(heads, 64, 2, D, dtype=torch.bfloat16, device=DEVICE)
    first, length = (torch.tensor([value], dtype=torch.int32, device=DEVICE) for value in (n, n + 64))
    records = torch.empty(heads, GROUP * 512, 2, D, dtype=torch.bfloat16, device=DEVICE)
    keys, values = host[:, :, 0], host[:, :, 1]
    total = int(union.count.sum())
    for many in (16, 32, 64):
        op = partial(rows.fetch_records, union, keys, values, tail, first, out=records, many=many)
        row(f"records of {total} tokens, many={many}", op, total * 4 * D, link)
    space = attention.workspace(heads, GROUP, D, 16, DEVICE)
    query, _ = queries(heads)
    out = torch.empty(heads, GROUP, D, device=DEVICE)
    op = partial(attention.attend, query, records[:, :, 0], records[:, :, 1], union, D**-0.5, space=space, out=out)
    row("attention over them", op, total * 4 * D)
    every = attention.workspace(heads, GROUP, D, 136, DEVICE)
    near = torch.empty(heads, 1 << 17, 2, D, dtype=torch.bfloat16, device=DEVICE).normal_()
    for where, stored in (("pinned host memory", host[:, : 1 << 17]), ("GPU memory", near)):
        first.fill_(1 << 17), length.fill_((1 << 17) + 64)
        far = stored[:, :, 0], stored[:, :, 1]
        op = partial(attention.attend_all, query, *far, tail, first, length, D**-0.5, space=every, out=out)
        nbytes = heads * 4.0 * D * (1 << 17)
        row(f"dense attention over 128k rows in {where}", op, nbytes, link if "host" in where else 0.0)
    op = partial(
        keyscan.key_scan, query, near[:, :, 0], first=first, out=torch.empty(heads, GROUP, 1 << 17, device=DEVICE)
    )
    row("key scan of 128k rows in GPU memory", op, heads * 2.0 * D * (1 << 17))


def time_plans_and_packing() -> None:
    """The plan, and packing 128k tokens of 8 heads."""
    query, variance = queries(8)
    depth, plan = waterfill.plan(query, variance, 48)
    row("water-filling plan of 8 heads", partial(waterfill.plan, query, variance, 48, depth, plan))
    keys = normal(8, 1 << 17, D).bfloat16()
    words, scales = planes.pack(keys)
    told = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    row("packing 8 x 128k x 128 bf16", partial(planes.pack, keys, words, scales, told), keys.numel() * 2)


def run_all() -> list[dict[str, Any]]:
    """Every time, as a list of records."""
    print(f"\n{'op':64s} {'median':>12s} {'payload':>14s}")
    link = link_rate()
    time_plans_and_packing()
    time_device_scans()
    time_selection()
    time_host_scans(link)
    time_landmarks(link)
    time_rows(link)
    return _TABLE
