"""The tables that `leadline bench decode` prints: one per context, and the published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from leadline.bench.comparing import BASELINE, beside_published, ratios
from leadline.bench.published import MACHINE
from leadline.bench.records import DecodeTime
from leadline.meter_stages import STAGES
from leadline.records import Environment

_DASH = "-"


def length(tokens: int) -> str:
    """131072 -> "128k"; what is no whole number of units stays as it is."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def named_machine(environment: Environment) -> str:
    """GPU and link in a few words."""
    generation, width = environment.pcie_generation, environment.pcie_width
    link = f", PCIe {generation} x{width}" if generation and width else ""
    return f"{environment.gpu or 'no GPU'}{link}"


def print_context(times: Sequence[DecodeTime], environment: Environment) -> None:
    """Every scanner at one context: times in ms, medians and interquartile ranges, then stages."""
    first = times[0]
    by_label = {ratio.label: ratio for ratio in ratios(times)}
    title = (
        f"{first.shape}, {length(first.context)} tokens x {first.batch}, {first.placement}, {first.transfer}, "
        f"k = {first.k}: decode step on {named_machine(environment)}; copy "
        f"{first.link_before_gb_per_second:.1f} and {first.link_after_gb_per_second:.1f} GB/s"
    )
    table = _table(title, "scanner", "bits", "scan MB", "row MB", f"GPU ms ({first.time.timer})", "IQR", "events ms",
                   "wall ms", "IQR", "GPU x", "wall x", "scan GB/s", "of copy", "kernels")  # fmt: skip
    for time in times:
        ratio, own = by_label.get(time.label), time.time
        table.add_row(
            time.label,
            f"{time.moved.bits_per_token:.1f}",
            f"{time.moved.scan_planned_bytes / 1e6:,.1f}",
            f"{time.moved.row_bytes / 1e6:,.1f}",
            f"{own.gpu_ms:.3f}",
            f"{own.gpu_iqr_ms:.3f}",
            f"{own.event_ms:.3f}",
            f"{own.wall_ms:.3f}",
            f"{own.wall_iqr_ms:.3f}",
            _number(ratio.gpu_ratio if ratio else None, 2),
            _number(ratio.wall_ratio if ratio else None, 2),
            _number(time.scan_gb_per_second, 1),
            _number(time.scan_link_share, 3),
            str(own.kernels or _DASH) + ("!" if own.uneven else ""),
        )
    _console().print(table, f"x: times over those of {BASELINE}. Contents are synthetic; rows of "
                     f"{first.distinct_rows_layers} and indexes of {first.distinct_index_layers} of {first.layers} "
                     "layers are stored, the others read those again.", sep="\n")  # fmt: skip
    named = [stage for stage in STAGES if any(stage in (time.time.stage_ms or {}) for time in times)]
    if named:
        table = _table("GPU ms by stage", "scanner", *named)
        for time in times:
            table.add_row(time.label, *(_number((time.time.stage_ms or {}).get(stage), 3) for stage in named))
        _console().print(table)


def print_published(times: Sequence[DecodeTime], environment: Environment) -> None:
    """The published figures beside ours, each labelled with its machine; nothing where none was timed."""
    rows = beside_published(times)
    if not rows:
        return
    table = _table(
        "Published figures beside ours", "context", "scanner", "figure", MACHINE, named_machine(environment), "note"
    )
    for row in rows:
        figure = f"{row.quantity} / {row.against}" if row.against else f"{row.quantity}, ms".replace("_ms, ms", ", ms")
        table.add_row(
            f"{length(row.context)} x {row.batch}, {row.placement}",
            row.label,
            figure.replace("gpu_ratio", "GPU time").replace("wall_ratio", "wall-clock").replace("gpu,", "GPU time,"),
            f"{row.published:g}",
            _number(row.ours, 2),
            row.note,
        )
    _console().print(table)


def _number(value: float | None, digits: int) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"


def _table(title: str, first: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    made.add_column(first, overflow="fold")
    for column in columns:
        made.add_column(column, justify="right")
    return made


def _console() -> Console:
    made = Console()
    return made if made.is_terminal else Console(width=240)
