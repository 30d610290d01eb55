"""What the timed steps of one contender come to: medians and interquartile ranges, by stage where stages are known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leadline.meter_stages import STAGES, stage_of
from leadline.meter_windows import Activity
from leadline.records import Record


class StepTime(Record):
    """Times of a decode step, medians over `steps` of them; `*_iqr_ms` is the third quartile less the first.

    gpu_ms: what every kernel, copy and fill took together, whatever its stream, from `timer` "cupti"; with "events" the
    same as event_ms, and stages, kernels and streams are unknown. stage_ms: medians by stage. event_ms: CUDA events
    around the step on its stream. wall_ms: the host's clock from before the launch until the device is done, without a
    profiler. kernels: device activities of a step; `uneven` where they were not the same number in every step.
    """

    gpu_ms: float
    gpu_iqr_ms: float
    stage_ms: dict[str, float] | None
    event_ms: float
    event_iqr_ms: float
    wall_ms: float
    wall_iqr_ms: float
    steps: int
    timer: Literal["cupti", "events"]
    kernels: int | None
    uneven: bool | None
    streams: int | None


@dataclass(frozen=True)
class TimedStep:
    """One step: its wall-clock and event time in ms, and what a profiler saw of the same step in a round of its own."""

    wall_ms: float
    event_ms: float
    launched: tuple[Activity, ...] | None


def summarise(found: Sequence[TimedStep], *, fused: bool) -> StepTime:
    """Medians over steps; `fused` names the scan so, where the scan kernel itself reads over the link."""
    wall, event = [step.wall_ms for step in found], [step.event_ms for step in found]
    seen = [step.launched for step in found if step.launched is not None]
    known = len(seen) == len(found)
    gpu = [sum(each.duration_ns for each in step) / 1e6 for step in seen] if known else event
    counts = [len(step) for step in seen]
    return StepTime(
        gpu_ms=statistics.median(gpu),
        gpu_iqr_ms=spread(gpu),
        stage_ms=_stages([stages(step, fused=fused) for step in seen]) if known else None,
        event_ms=statistics.median(event),
        event_iqr_ms=spread(event),
        wall_ms=statistics.median(wall),
        wall_iqr_ms=spread(wall),
        steps=len(found),
        timer="cupti" if known else "events",
        kernels=int(statistics.median(counts)) if known else None,
        uneven=len(set(counts)) > 1 if known else None,
        streams=len({each.stream for step in seen for each in step}) if known else None,
    )


def stages(launched: Sequence[Activity], *, fused: bool) -> dict[str, float]:
    """Milliseconds by stage of one step, in the order of a step; stages that did not occur are left out."""
    sums: dict[str, int] = {}
    for each in launched:
        stage = stage_of(each.name)
        stage = "scan (fused)" if fused and stage == "scan" else stage
        sums[stage] = sums.get(stage, 0) + each.duration_ns
    return {stage: sums[stage] / 1e6 for stage in STAGES if stage in sums}


def spread(values: Sequence[float]) -> float:
    """The interquartile range; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def _stages(found: Sequence[dict[str, float]]) -> dict[str, float]:
    named = [stage for stage in STAGES if any(stage in step for step in found)]
    return {stage: statistics.median(step.get(stage, 0.0) for step in found) for stage in named}
