"""Compiles every kernel for a GPU that need not be there: `python tests/compile_kernels.py [CAPABILITY]` (90).

The interpreter runs kernels as Python, and accepts much that Triton's compiler does not. Here every launch is compiled
for the shape of Qwen2.5-Coder-1.5B (2 KV heads of 6 query heads, head_dim 128) and nothing is run. Prints a kernel a
line. A process of its own, since Triton is told of a GPU that does not exist.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

if __name__ == "__main__":  # before Triton is imported
    os.environ.pop("TRITON_INTERPRET", None)
    cache = tempfile.TemporaryDirectory()  # what an earlier run compiled says nothing of this one
    os.environ["TRITON_CACHE_DIR"] = cache.name

import torch

HEADS, GROUP, D = 2, 6, 128
BLOCKS, TAIL, K = 500, 192, 2048


class NoDriver:
    """What Triton asks of a driver before a launch, answered for a device that is not there."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        """The device that is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """Always the first."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0


def compile_only(capability: int) -> None:
    """From now on a launch compiles its kernel, says so, and does not happen."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(NoDriver(GPUTarget("cuda", capability, 32)))
    launch = JITFunction.run
    named: set[str] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        begun = time.perf_counter()
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        if self.fn.__name__ not in named:
            named.add(self.fn.__name__)
            print(self.fn.__name__, f"{time.perf_counter() - begun:.2f} s", flush=True)
        return kernel

    JITFunction.run = run


def launch_all() -> None:
    """Every kernel, as a decode step and a prefill launch it."""
    from leadline.graph.scratch import splits
    from leadline.kernels.attention import triton as attention
    from leadline.kernels.channels import triton as channels
    from leadline.kernels.entries import triton as entries
    from leadline.kernels.gate import triton as gate
    from leadline.kernels.gather import triton as gather
    from leadline.kernels.gather.dispatch import staging
    from leadline.kernels.heads import HeadForm
    from leadline.kernels.heads import triton as heads
    from leadline.kernels.keyscan import triton as keyscan
    from leadline.kernels.nibbles import triton as nibbles
    from leadline.kernels.norm import triton as norm
    from leadline.kernels.place import triton as place
    from leadline.kernels.planes import triton as planes
    from leadline.kernels.rows import triton as rows
    from leadline.kernels.scan import triton as scan
    from leadline.kernels.slots import triton as slots
    from leadline.kernels.tail import triton as tail
    from leadline.kernels.topk import triton as topk
    from leadline.kernels.waterfill import triton as waterfill

    cpu, n = torch.device("cpu"), 64 * BLOCKS
    number, counter, moved = int32(1), torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    query, scores, maxima = torch.zeros(HEADS, GROUP, D), torch.zeros(HEADS, GROUP, n + TAIL), rows_of(BLOCKS)
    depth, plan, active = int32(HEADS, D), slots.empty(HEADS, D, cpu), torch.zeros(HEADS, D)
    written = {"blocks": number, "out": scores, "maxima": maxima, "counter": counter}

    keys, values = (torch.zeros(HEADS, n, D, dtype=torch.bfloat16) for _ in range(2))
    store, scales = planes.pack(keys, invalid=number)
    place.place(scales, torch.empty_like(scales))
    waterfill.plan(query, torch.zeros(HEADS, D), 48, depth, plan, active)
    channels.largest(query, 16, depth, plan, active)
    slots.slots(depth, plan)
    scan.plane_scan(query, store, scales, plan, **written)
    staged = staging(HEADS, D, BLOCKS, cpu)
    gather.stage(store, scales, plan, staged.planes, staged.scales, counter=counter)
    means = torch.zeros(HEADS, D, n // 8, dtype=torch.float16)
    entries.entry_scan(query, means, None, 8, **written)
    entries.entry_scan(query, means, means, 8, **written)
    nibbles.nibble_scan(query[..., :32].contiguous(), int32(HEADS, 32, 8 * BLOCKS), scales[:, :32].contiguous())
    keyscan.key_scan(query, keys, first=number, out=scores, maxima=maxima, counter=counter)

    records = torch.zeros(HEADS, TAIL, 2, D, dtype=torch.bfloat16)
    vectors, turned = torch.zeros(HEADS, D, D), torch.zeros(HEADS, TAIL, D)
    tail.rotate_one(torch.zeros(HEADS, D), torch.zeros(HEADS, D), vectors, number, number, turned)
    tail.rotate_query(query, vectors, torch.empty_like(query))
    tail.tail_scores(query, records[:, :, 0], active, number, number, scores)

    for k, peaks in ((K, maxima), (128, None)):  # small blocks of its own; the store's blocks, their maxima to be taken
        space = topk.workspace(HEADS * GROUP, scores.shape[-1], cpu, k)
        given = None if peaks is None else peaks.flatten(0, 1)
        topk.select_ids(scores.flatten(0, 1), number, k=k, sink=4, local=32, space=space, peaks=given, covered=number)
    chosen = int32(HEADS, GROUP, K)
    wanted = rows.union(chosen, n + TAIL, rows.workspace(HEADS, GROUP, K, cpu), rows.empty(HEADS, GROUP, K, cpu))
    fetched = torch.zeros(HEADS, GROUP * K, 2, D, dtype=torch.bfloat16)
    rows.fetch_records(wanted, keys, values, records, number, out=fetched, counter=moved)
    out, parts = torch.zeros_like(query, dtype=torch.bfloat16), attention.workspace(HEADS, GROUP, D, splits(HEADS), cpu)
    attention.attend(query, fetched[:, :, 0], fetched[:, :, 1], wanted, D**-0.5, space=parts, out=out)
    whole = attention.workspace(HEADS, GROUP, D, 136, cpu)
    attention.attend_all(query, keys, values, records, number, number, D**-0.5, space=whole, out=out, counter=moved)

    width, weight = 1536, torch.zeros(1536, dtype=torch.bfloat16)
    hidden = torch.zeros(1, width, dtype=torch.bfloat16)
    norm.add_norm(hidden, weight, 1e-6, hidden)
    gate.gated(torch.zeros(1, 2 * 8960, dtype=torch.bfloat16))
    form = HeadForm(HEADS, GROUP, D, weight[:D], weight[:D])
    joint = torch.zeros(1, (GROUP + 2) * HEADS * D, dtype=torch.bfloat16)
    angle = torch.zeros(D, dtype=torch.bfloat16)
    heads.split_heads(joint, form, angle, angle, number, number, query, records, torch.zeros(HEADS, D))


def int32(*shape: int) -> torch.Tensor:
    """Zeros."""
    return torch.zeros(shape, dtype=torch.int32)


def rows_of(columns: int) -> torch.Tensor:
    """fp32 zeros, a row for each query head."""
    return torch.zeros(HEADS, GROUP, columns)


if __name__ == "__main__":
    compile_only(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
    launch_all()
