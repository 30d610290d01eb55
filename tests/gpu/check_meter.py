"""Checks the meter on a GPU with steps whose work is known: `python tests/gpu/check_meter.py`.

Needs leadline installed. Prints one line a check, then the figures, and exits 1 if a check failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from kernel_setup import DEVICE, Report, normal, pinned, rows
from torch import Tensor

from leadline import meter
from leadline.meter_figures import StepTime

COPY = 1 << 30


def captured(op: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph of an op, as something to replay."""
    op()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op()

    def replay() -> None:
        graph.replay()

    return replay


def products(a: Tensor, b: Tensor, out: Tensor, times: int) -> None:
    """So many matrix products, one kernel each."""
    for _ in range(times):
        torch.mm(a, b, out=out)


def on_a_side_stream(op: Callable[[], object], side: torch.cuda.Stream) -> None:
    """Launch on another stream and do not wait for it."""
    with torch.cuda.stream(side):
        op()


def steps() -> tuple[dict[str, Callable[[], None]], dict[str, Callable[[], None]]]:
    """Steps by name, and what prepares them."""
    a, b = (normal(8192, 8192, seed=seed).bfloat16() for seed in (0, 1))
    out, side = torch.empty_like(a), torch.cuda.Stream()
    host = torch.empty(COPY, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY, dtype=torch.uint8, device=DEVICE)
    selected = torch.arange(512, dtype=torch.int32, device=DEVICE).repeat(8, 4, 1)
    union = rows.union(selected, 1 << 16)
    stored, tail = pinned(normal(8, 1 << 16, 128).bfloat16()), normal(8, 64, 128).bfloat16()
    fetched = torch.empty(8, 2048, 128, dtype=torch.bfloat16, device=DEVICE)

    def copy() -> None:
        device.copy_(host, non_blocking=True)

    def fetch() -> None:
        rows.fetch(union, stored, tail, 1 << 16, out=fetched)

    twenty = partial(products, a, b, out, 20)
    made: dict[str, Callable[[], None]] = {
        "graph of 20 products": captured(twenty),
        "20 products eagerly": twenty,
        "20 products on a side stream": partial(on_a_side_stream, twenty, side),
        "copy of 1 GiB": copy,
        "graph of a row fetch": captured(fetch),
    }
    return made, {"graph of 20 products": twenty}  # preparation that would show as 40 products


def main() -> int:
    """Measures, then checks; the number of failures decides the exit status."""
    report = Report()
    print("timer", meter.prime())
    made, before = steps()
    times = meter.measure(made, 5, 2, prepare=before)
    graph, eager, side, copy, fetch = times.values()

    def stage(time: StepTime, name: str) -> float:
        assert time.stage_ms is not None, "the profiler was refused"
        return time.stage_ms.get(name, 0.0)

    with report.check("twenty products, in a graph, eagerly and on another stream"):
        for time in (graph, eager, side):
            assert time.kernels is not None
            assert time.kernels >= 20, time  # the library may launch a fill beside a product
            assert stage(time, "GEMM") > 0.99 * time.gpu_ms, time
            assert not time.uneven
            assert abs(time.gpu_ms / graph.gpu_ms - 1) < 0.1, time
    with report.check("events agree within 5% on the stream they stand on"):
        for time in (graph, eager, copy):
            assert abs(time.event_ms / time.gpu_ms - 1) < 0.05, time
    with report.check("the events miss the side stream, the profiler and the clock do not"):
        assert side.event_ms < 0.5 * side.gpu_ms < side.wall_ms, side
    with report.check("a copy is transfer, and at the link's rate"):
        assert stage(copy, "transfer") == copy.gpu_ms
        assert 10 < COPY / copy.gpu_ms / 1e6 < 130, copy
    with report.check("a kernel of ours in a graph has its stage"):
        assert fetch.kernels == 1, fetch
        assert stage(fetch, "rows") == fetch.gpu_ms > 0, fetch
    with report.check("wall-clock without a profiler is near the GPU's time"):
        assert 1.0 <= graph.wall_ms / graph.event_ms < 1.05, graph
    for name, time in times.items():
        print(f"{name:32s} {time}")
    print(f"{report.passed} checks passed, {report.failed} failed", flush=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
