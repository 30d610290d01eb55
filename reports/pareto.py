"""The agreement-against-cost plots: bits per token, and GPU milliseconds where they were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from leadline.reports.contents import Contents
from leadline.reports.rows import ScannerCost
from leadline.reports.stats_ratios import quartiles
from leadline.reports.svg import ACCENT, BASE, INK, MUTED, draw, plain_axes
from leadline.reports.words import number, visible

TICKS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Point:
    """One scanner: its cost (with a range where it has one), mean agreement, and its 95% interval where it has one."""

    label: str
    cost: float
    agreement: float
    low: float | None
    high: float | None
    baseline: bool
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Level:
    """A horizontal line: something that has an agreement but ranks nothing at a cost that could be placed."""

    label: str
    agreement: float


def pareto(contents: Contents) -> str | None:
    """Agreement against bits per token for every scanner with results, as SVG; None where there are none."""
    points, levels = _points(contents, lambda cost: cost.bits_per_token, {"scanner"})
    if not points:
        return None
    return plot(points, levels, "pareto", "bits per token, per KV head per layer", _bits_axis)


def pareto_gpu(contents: Contents) -> str | None:
    """Agreement against GPU milliseconds per decoded token; None where no scanner was timed on a GPU."""
    points, levels = _points(contents, lambda cost: cost.gpu_ms, {"scanner", "dense"})
    if not points:
        return None
    return plot(points, levels, "pareto-gpu", "GPU ms per decoded token; bars: quartiles over steps", _time_axis)


def _points(
    contents: Contents, cost: Callable[[ScannerCost], float | None], placed: set[str]
) -> tuple[list[Point], list[Level]]:
    points, levels = [], []
    for figures in contents.scanners:
        mean, line = figures.agreement, figures.line
        x = None if figures.cost is None else cost(figures.cost)
        if mean is None or line.role == "reference":
            continue
        if line.role in placed:
            if x is None:
                continue
            times = quartiles([row.gpu_ms for row in contents.steps if row.scanner == line.sha256 and row.gpu_ms])
            around = (times.low, times.high) if times and placed != {"scanner"} else None
            baseline = line.label == contents.spec.baseline
            points.append(Point(visible(line.shown), x, mean.mean, mean.low, mean.high, baseline, around))
        else:
            name = "noise floor" if line.role == "noise-floor" else visible(line.shown)
            levels.append(Level(f"{name} {number(mean.mean, 2)}", mean.mean))
    return points, levels


def plot(
    points: Sequence[Point], levels: Sequence[Level], name: str, unit: str, scale: Callable[[Any, float], None]
) -> str:
    """Agreement against a cost with interval bars, the frontier, and a label beside every point."""

    def paint(figure: Figure, canvas: Any) -> None:
        axes = figure.add_subplot()
        scale(axes, max(max((point.cost, *(point.range or ()))) for point in points))
        axes.set_xlabel(unit, color=INK)
        _frame(axes, points, levels)
        for point in points:
            colour = BASE if point.baseline else ACCENT
            if point.low is not None and point.high is not None:
                axes.plot([point.cost] * 2, [point.low, point.high], color=colour, linewidth=1.2, alpha=0.55)
            if point.range is not None:
                axes.plot(point.range, [point.agreement] * 2, color=colour, linewidth=1.2, alpha=0.55)
            axes.plot([point.cost], [point.agreement], "s" if point.baseline else "o", color=colour, markersize=6)
        frontier = _frontier(points)
        axes.step([p.cost for p in frontier], [p.agreement for p in frontier], where="post", color=MUTED, linewidth=1)
        canvas.draw()
        _label(axes, canvas.get_renderer(), points, levels)

    return draw(name, f"Agreement with exact top-k against {unit.split(',')[0].split(';')[0]}", (8.4, 5.2), paint)


def _bits_axis(axes: Any, most: float) -> None:
    axes.set_xscale("symlog", base=2, linthresh=16, linscale=1)
    ticks = [tick for tick in TICKS if tick <= most * 1.5] or [0, 8]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-2, max(most * 1.9, 24))


def _time_axis(axes: Any, most: float) -> None:
    axes.set_xlim(0, most * 1.15)


def _frame(axes: Any, points: Sequence[Point], levels: Sequence[Level]) -> None:
    seen = [p.agreement for p in points] + [p.low for p in points if p.low is not None]
    lowest = min([*seen, *(level.agreement for level in levels)])
    axes.set_ylim(max(-0.02, min(lowest - 0.06, 0.9)), 1.0 + 0.12 * (1.02 - max(0.0, min(lowest - 0.06, 0.9))))
    axes.set_ylabel("step agreement with exact top-k", color=INK)
    plain_axes(axes)
    axes.axhline(1.0, color=MUTED, linewidth=0.8)
    for level in levels:
        axes.axhline(level.agreement, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))


def _frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats on both axes, by rising cost."""
    frontier: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.agreement)):
        if not frontier or point.agreement > frontier[-1].agreement:
            frontier.append(point)
    return frontier


def _label(axes: Any, renderer: Any, points: Sequence[Point], levels: Sequence[Level]) -> None:
    """Place each label at the offset that covers the least of markers, bars and labels placed before."""
    to_pixels = axes.transData.transform
    boxed = Bbox.from_extents
    left, right = axes.get_xlim()
    lines = [Level("exact top-k 1.00", 1.0), *levels]
    taken: list[Any] = []
    for line in lines:
        (x0, y), (x1, _) = to_pixels((left, line.agreement)), to_pixels((right, line.agreement))
        taken.append(boxed(x0, y - 1, x1, y + 1))
    for level in sorted(lines, key=lambda each: -each.agreement):
        for shift in (3, -12, 15, -24):
            text = axes.annotate(
                level.label, (right, level.agreement), (0, shift), textcoords="offset points", parse_math=False
            )
            text.set(color=MUTED, fontsize=8.5, ha="right")
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            axes.add_artist(text)
        taken.append(box)
    frontier = _frontier(points)
    for here, there in pairwise(frontier):
        (x0, y0), (x1, y1) = to_pixels((here.cost, here.agreement)), to_pixels((there.cost, there.agreement))
        taken += [boxed(x0, y0 - 1, x1, y0 + 1), boxed(x1 - 1, y0, x1 + 1, y1)]
    for point in points:
        x, y = to_pixels((point.cost, point.agreement))
        taken.append(boxed(x - 5, y - 5, x + 5, y + 5))
        if point.low is not None and point.high is not None:
            (_, bottom), (_, top) = to_pixels((point.cost, point.low)), to_pixels((point.cost, point.high))
            taken.append(boxed(x - 1, bottom, x + 1, top))
    frame = axes.get_window_extent(renderer)
    for point in sorted(points, key=lambda each: -each.agreement):
        best = None
        for offset, align in _offsets():
            text = axes.annotate(
                point.label,
                (point.cost, point.agreement),
                offset,
                textcoords="offset points",
                parse_math=False,
                va="center",
                ha=align,
            )
            text.set(color=INK, fontsize=9)
            box = text.get_window_extent(renderer)
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 + 20 or box.y0 < frame.y0 or box.y1 > frame.y1
            cost = (
                sum(_overlap(box, other) for other in taken)
                + 1e4 * outside
                + abs(offset[1]) * 0.5
                + abs(offset[0]) * 0.2
            )
            text.remove()
            if best is None or cost < best[0]:
                best = (cost, offset, align, box)
        assert best is not None
        _, offset, align, box = best
        far = abs(offset[1]) > 14
        axes.annotate(
            point.label, (point.cost, point.agreement), offset, textcoords="offset points",
            parse_math=False, va="center", ha=align, color=INK, fontsize=9,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6} if far else None,
        )  # fmt: skip
        taken.append(box)


def _offsets() -> list[tuple[tuple[int, int], str]]:
    """Label offsets in points, nearest first, with their horizontal alignment."""
    near = [(8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center")]
    far = [(x, y, align) for y in (9, -9, 20, -20, 31, -31, 44, -44) for x, align in ((10, "left"), (-10, "right"))]
    return [((x, y), align) for x, y, align in near + far]


def _overlap(a: Any, b: Any) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(width * height) if width > 0 and height > 0 else 0.0
