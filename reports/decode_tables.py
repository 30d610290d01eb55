"""The section "Decode time": what `leadline bench decode` stored, one row per scanner and setting, stages, the paper's
figures beside ours. Without stored times there is no such section.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.bench.comparing import BASELINE, Ratio, beside_published, ratios
from leadline.bench.printing import length
from leadline.bench.published import MACHINE
from leadline.bench.records import DecodeTime
from leadline.meter_stages import STAGES
from leadline.reports.decode_rows import DECODE, Timed
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, megabytes, number, significant

_TIMERS = {
    "cupti": "GPU ms are the durations of all kernels, copies and fills of a step, from the profiler (CUPTI).",
    "events": "The profiler was refused where the timer is events: GPU ms are then CUDA events around the step, and "
    "stages are unknown.",
}


def decode(found: Sequence[Timed]) -> list[Table]:
    """The tables of the section, those without rows left out."""
    if not found:
        return []
    return [table for table in (_times(found), _stages(found), _published(found)) if table.rows]


def setting(time: DecodeTime) -> str:
    """Shape, length, batch, placement, transfer and k in a few words."""
    return (
        f"{time.shape}, {length(time.context)} x {time.batch}, {time.placement}, {time.transfer}, k = {time.k}"
        + (f", seed {time.seed}" if time.seed else "")
    )  # fmt: skip


def by_measurement(found: Sequence[Timed]) -> dict[int, list[DecodeTime]]:
    """The times of each invocation: ratios are taken within one, never between two."""
    groups: dict[int, list[DecodeTime]] = {}
    for each in found:
        groups.setdefault(each.measurement, []).append(each.time)
    return groups


def found_ratios(found: Sequence[Timed]) -> dict[tuple[int, str, str], Ratio]:
    """Ratios to the baseline scanner by (measurement, setting, label)."""
    made: dict[tuple[int, str, str], Ratio] = {}
    for measurement, times in by_measurement(found).items():
        for name in dict.fromkeys(setting(time) for time in times):
            same = [time for time in times if setting(time) == name]
            made |= {(measurement, name, ratio.label): ratio for ratio in ratios(same)}
    return made


def _times(found: Sequence[Timed]) -> Table:
    against = found_ratios(found)

    def row(each: Timed) -> tuple[str, ...]:
        time, own = each.time, each.time.time
        ratio = against.get((each.measurement, setting(time), time.label))
        return (
            time.label,
            setting(time),
            number(time.moved.bits_per_token, 1),
            megabytes(time.moved.scan_planned_bytes),
            megabytes(time.moved.row_bytes),
            _with_range(own.gpu_ms, own.gpu_iqr_ms),
            _with_range(own.event_ms, own.event_iqr_ms),
            _with_range(own.wall_ms, own.wall_iqr_ms),
            number(ratio.gpu_ratio if ratio else None, 2),
            number(ratio.wall_ratio if ratio else None, 2),
            number(time.scan_gb_per_second, 1),
            number((time.link_before_gb_per_second + time.link_after_gb_per_second) / 2, 1),
            number(time.scan_link_share, 2),
            own.timer,
            str(each.measurement),
        )

    machines = {each.measurement: each.machine for each in found}
    stored = {(each.time.distinct_rows_layers, each.time.distinct_index_layers, each.time.layers) for each in found}
    notes = [
        "Measurements: " + "; ".join(f"{name} on {machine}" for name, machine in machines.items()) + ".",
        *(_TIMERS[timer] for timer in _TIMERS if any(each.time.time.timer == timer for each in found)),
        "Events and wall-clock are taken in rounds of their own, without the profiler; steps of all scanners are "
        "interleaved. In brackets the interquartile range.",
        f"GPU × and wall ×: over those of {BASELINE} in the same measurement and setting.",
        "Scan GB/s: planned bytes over the stages that move and score them; copy GB/s: a pinned copy of 1 GiB, mean of "
        "before and after; of copy: their ratio, where the index lies in host memory.",
        "Contents are synthetic (SPEC section 8): random weights, keys and queries; every byte that was planned was "
        "counted in the kernels. Layers stored: "
        + ", ".join(f"rows of {rows}, indexes of {index} of {of}" for rows, index, of in sorted(stored))
        + "; the others read those again.",
    ]
    columns = (
        "scanner", "setting", "bits per token", "scan MB", "row MB", "GPU ms", "events ms", "wall ms", "GPU ×",
        "wall ×", "scan GB/s", "copy GB/s", "of copy", "timer", "measurement",
    )  # fmt: skip
    return Table(
        "decode-time",
        "Decode time",
        columns,
        tuple(map(row, found)),
        intro="One decode step of all layers: medians over steps. Not a part of the replay above: its own contents.",
        notes=tuple(notes),
        queries=(DECODE,),
    )


def _stages(found: Sequence[Timed]) -> Table:
    named = [stage for stage in STAGES if any(stage in (each.time.time.stage_ms or {}) for each in found)]
    rows = [
        (each.time.label, setting(each.time), *(number(known.get(stage), 3) for stage in named))
        for each in found
        if (known := each.time.time.stage_ms)
    ]
    return Table(
        "decode-stages",
        "Decode time by stage",
        ("scanner", "setting", *(f"{stage}, ms" for stage in named)),
        tuple(rows),
        intro="GPU milliseconds of a step by what they did, medians over steps.",
        notes=(
            "A fused scan reads its planes over the link and scores them in one kernel: transfer and scan are one.",
        ),
        queries=(DECODE,),
        folded=len(rows) > 40,
    )


def _published(found: Sequence[Timed]) -> Table:
    machines = {each.measurement: each.machine for each in found}
    rows = [
        (
            row.label,
            f"{length(row.context)} x {row.batch}, {row.placement}",
            _figure(row.quantity, row.against),
            f"{row.published:g}",
            significant(row.ours) if row.ours != 0 else "in transfer",
            machines[measurement],
            row.note or NOTHING,
        )
        for measurement, times in by_measurement(found).items()
        for row in beside_published(times)
    ]
    return Table(
        "decode-published",
        "Published decode times beside ours",
        ("scanner", "setting", "figure", f"published ({MACHINE})", "ours", "our machine", "note"),
        tuple(rows),
        intro="The Fathom paper's figures and ours in the same settings. The machines differ: compare ratios.",
        queries=(DECODE,),
        folded=len(rows) > 40,
    )


def _figure(quantity: str, against: str | None) -> str:
    if against is not None:
        return f"{'wall-clock' if quantity == 'wall_ratio' else 'GPU time'} over {against}"
    return "GPU time, ms" if quantity == "gpu_ms" else f"{quantity}, ms"


def _with_range(value: float, spread: float) -> str:
    return f"{number(value, 3)} ({number(spread, 3)})"
