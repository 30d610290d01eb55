"""What the times of one invocation say together: ratios to the baseline scanner, and ours beside the published."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.bench.published import FIGURES, STAGES, Published
from leadline.bench.records import DecodeTime
from leadline.records import Record

BASELINE = "fathom:budget=48"


class Ratio(Record):
    """A scanner's median step time over the baseline's, of one context, batch, placement and transfer."""

    label: str
    baseline: str
    context: int
    gpu_ratio: float | None
    wall_ratio: float
    event_ratio: float


class Beside(Record):
    """One published figure and ours; None where this invocation has none, `fused` where two of its stages are one."""

    context: int
    batch: int
    placement: str
    label: str
    quantity: str
    against: str | None
    published: float
    ours: float | None
    note: str


def ratios(times: Sequence[DecodeTime], baseline: str = BASELINE) -> list[Ratio]:
    """Every scanner over the baseline in the same setting; none for settings that it was not timed in."""
    base = {_setting(time): time for time in times if time.label == baseline}
    found = []
    for time in times:
        other = base.get(_setting(time))
        if other is not None:
            found.append(
                Ratio(
                    label=time.label,
                    baseline=baseline,
                    context=time.context,
                    # Times of two timers are not of one kind.
                    gpu_ratio=time.time.gpu_ms / other.time.gpu_ms if time.time.timer == other.time.timer else None,
                    wall_ratio=time.time.wall_ms / other.time.wall_ms,
                    event_ratio=time.time.event_ms / other.time.event_ms,
                )
            )
    return found


def beside_published(times: Sequence[DecodeTime]) -> list[Beside]:
    """The published figures of the settings that were timed: Qwen3-8B, k = 512."""
    found = []
    for figure in FIGURES:
        settings = {
            _setting(time): time
            for time in times
            if (time.shape, time.k) == ("qwen3-8b", 512)
            and (time.context, time.batch, time.placement) == (figure.context, figure.batch, figure.placement)
        }
        for setting in settings:
            ours = {time.label: time for time in times if _setting(time) == setting}
            if figure.label in ours and (figure.against is None or figure.against in ours):
                found.append(
                    Beside(
                        context=figure.context,
                        batch=figure.batch,
                        placement=figure.placement,
                        label=figure.label,
                        quantity=figure.quantity,
                        against=figure.against,
                        published=figure.value,
                        ours=_ours(figure, ours),
                        note=figure.note,
                    )
                )
    return found


def _ours(figure: Published, times: dict[str, DecodeTime]) -> float | None:
    own = times[figure.label].time
    if figure.quantity == "gpu_ms":
        return own.gpu_ms
    if figure.against is not None:
        other = times[figure.against].time
        return own.wall_ms / other.wall_ms if figure.quantity == "wall_ratio" else own.gpu_ms / other.gpu_ms
    if own.stage_ms is None:
        return None
    if figure.quantity == "transfer" and "scan (fused)" in own.stage_ms:
        return own.stage_ms["scan (fused)"]
    if figure.quantity == "scan" and "scan (fused)" in own.stage_ms:
        return 0.0
    return sum(own.stage_ms.get(stage, 0.0) for stage in STAGES[figure.quantity])


def _setting(time: DecodeTime) -> tuple[object, ...]:
    return (time.shape, time.context, time.batch, time.placement, time.transfer, time.k, time.seed)
