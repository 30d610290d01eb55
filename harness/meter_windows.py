"""From a profiler's events to what each timed step launched: pure functions over plain records.

A window is the host's annotation around one step and the synchronisation after it. Device activities are matched with
the host's launch by their correlation, and the launch lies in a window or in none (work that prepares a step). Only an
activity without a launch on record is placed by its own time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from leadline.errors import MachineError, explain

WINDOW = "leadline step "
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}


@dataclass(frozen=True)
class Activity:
    """One event of the profiler. `kind` is kineto's activity type: "kernel", "gpu_memcpy", "cuda_runtime", ..."""

    name: str
    kind: str
    start_ns: int
    duration_ns: int
    correlation: int
    stream: int


def by_window(found: Iterable[Activity], count: int) -> list[list[Activity]]:
    """The device activities of windows 0..count-1, each in order of time; what belongs to no window is left out.

    Raises MachineError where a window's annotation is missing: the profiler then lost more than that.
    """
    spans: dict[int, tuple[int, int]] = {}
    launched: dict[int, int] = {}  # correlation -> when
    device = []
    for event in found:
        if event.kind in ON_DEVICE:
            device.append(event)
        elif event.kind in LAUNCHES:
            launched[event.correlation] = event.start_ns
        elif event.kind == "user_annotation" and event.name.startswith(WINDOW):
            spans[int(event.name.removeprefix(WINDOW))] = (event.start_ns, event.start_ns + event.duration_ns)
    if sorted(spans) != list(range(count)):
        raise MachineError(
            explain(
                "the profiler lost events",
                found=f"{len(spans)} of {count} timed steps",
                do="time fewer steps or scanners at once",
            )
        )
    starts = [spans[place][0] for place in range(count)]
    windows: list[list[Activity]] = [[] for _ in range(count)]
    for event in sorted(device, key=lambda event: event.start_ns):
        moment = launched.get(event.correlation, event.start_ns + event.duration_ns // 2)
        place = bisect_right(starts, moment) - 1
        if place >= 0 and moment <= spans[place][1]:
            windows[place].append(event)
    return windows
