"""Time of decode steps: GPU time by stage from CUPTI, CUDA events as a cross-check, wall-clock without a profiler.

GPU time is the sum of the durations of every kernel, copy and fill that a step launched, whatever its stream (SPEC
section 8). A step is one window between two synchronisations of the device; a kernel belongs to the window in which the
host launched it, which its correlation with the launch tells (one launch for all kernels of a CUDA graph). Steps of all
contenders are interleaved, A B A B. Wall-clock and events are taken in rounds of their own: a profiler slows the host.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from leadline.errors import MachineError, explain
from leadline.meter_figures import StepTime, TimedStep, summarise
from leadline.meter_windows import WINDOW, Activity, by_window

_RUNTIME_CALL = re.compile(r"cu(da)?[A-Z]")  # cudaGraphLaunch, cuLaunchKernelEx
L2_BYTES = 256 << 20  # several times the L2 of any GPU there is


def measure(
    steps: Mapping[str, Callable[[], None]],
    rounds: int = 10,
    warmup: int = 2,
    *,
    prepare: Mapping[str, Callable[[], None]] | None = None,
    fused: Collection[str] = (),
    cold: bool = True,
) -> dict[str, StepTime]:
    """Time every step `rounds` times after `warmup` untimed rounds, interleaved; medians and interquartile ranges.

    steps: by name, each launches the work of one step on the current stream (or on others) and need not wait for it.
    prepare: by the same names, what resets a step's state, run and waited for outside the timed windows. fused: the
    names of steps whose scan kernel reads over the link, whose stage is then called "scan (fused)". cold: fill the L2
    with something else before every step. Where the profiler is refused, `gpu_ms` is the events' time, `timer` says
    so, and stages are None. Raises MachineError without a CUDA device, ValueError for no rounds.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"{rounds} rounds after {warmup} warm-ups; at least one round is timed")
    if not torch.cuda.is_available():
        raise MachineError(
            explain("no GPU to time", found="no CUDA device", expected="an NVIDIA GPU", do="run this on one")
        )
    before = prepare or {}
    filler = torch.empty(L2_BYTES if cold else 0, dtype=torch.uint8, device="cuda")

    def reset(name: str) -> None:
        if name in before:
            before[name]()
        filler.zero_()
        torch.cuda.synchronize()

    with _no_collection():
        clocks = _on_the_clock(steps, rounds, warmup, reset)
        profiled = _under_the_profiler(steps, rounds, reset)
    timed: dict[str, list[TimedStep]] = {name: [] for name in steps}
    for place, (name, clock) in enumerate(clocks):
        timed[name].append(TimedStep(*clock, None if profiled is None else tuple(profiled[place])))
    return {name: summarise(found, fused=name in fused) for name, found in timed.items()}


def prime() -> Literal["cupti", "events"]:
    """Start the profiler once, before any graph is captured, and say which timer there will be.

    CUPTI reports the kernels of a graph one by one only if it was there when the graph was made.
    """
    if not torch.cuda.is_available():
        return "events"
    one = torch.zeros(1, device="cuda")

    def work() -> None:
        one.add_(1)

    return "events" if _under_the_profiler({"prime": work}, 1, lambda _: None) is None else "cupti"


def schedule(names: Collection[str], rounds: int) -> Iterator[str]:
    """The order of steps: every name once a round, A B A B."""
    for _ in range(rounds):
        yield from names


def _on_the_clock(
    steps: Mapping[str, Callable[[], None]], rounds: int, warmup: int, reset: Callable[[str], None]
) -> list[tuple[str, tuple[float, float]]]:
    """(name, (wall ms, event ms)) of every timed step, in order."""
    cuda: Any = torch.cuda  # its events carry no types
    found = []
    for name in schedule(steps, warmup + rounds):
        reset(name)
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start = time.perf_counter()
        first.record()
        steps[name]()
        last.record()
        torch.cuda.synchronize()
        wall = 1000 * (time.perf_counter() - start)
        found.append((name, (wall, float(first.elapsed_time(last)))))
    return found[warmup * len(steps) :]


def _under_the_profiler(
    steps: Mapping[str, Callable[[], None]], rounds: int, reset: Callable[[str], None]
) -> list[list[Activity]] | None:
    """What the device did in every step, in the order of `schedule`; None where the profiler shows no device."""
    kinds = torch.profiler.ProfilerActivity
    if kinds.CUDA not in torch.profiler.supported_activities():
        return None
    order = list(schedule(steps, 1 + rounds))  # the first round warms the profiler up
    try:
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
            for place, name in enumerate(order):
                reset(name)
                with torch.profiler.record_function(f"{WINDOW}{place}"):
                    steps[name]()
                    torch.cuda.synchronize()
    except RuntimeError as error:
        if "CUPTI" not in str(error) and "profil" not in str(error).lower():
            raise  # the step's own failure, not the profiler's
        return None
    windows = by_window(_activities(profiler), len(order))[len(steps) :]
    return windows if all(windows) else None


def _activities(profiler: Any) -> list[Activity]:
    return [
        Activity(
            name=event.name(),
            kind=_kind(event),
            start_ns=event.start_ns(),
            duration_ns=event.duration_ns(),
            correlation=event.correlation_id(),
            stream=event.device_resource_id(),
        )
        for event in profiler.profiler.kineto_results.events()
    ]


def _kind(event: Any) -> str:
    """Kineto's activity type, which torch tells by name only since 2.13; before, by where and how an event came."""
    if hasattr(event, "activity_type"):
        known: str = event.activity_type()
        return known
    name: str = event.name()
    on_host = event.device_type().name == "CPU"
    if event.is_user_annotation():  # on the device such an event spans the kernels of the annotation, and is none
        return "user_annotation" if on_host else "gpu_user_annotation"
    if not on_host:
        copies = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
        return copies.get(name[:6], "kernel")
    return "cuda_runtime" if _RUNTIME_CALL.match(name) else "cpu_op"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector stands still, so that no step pays for it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
