"""The agreement-against-bits plot, as inline SVG that a page with a strict content policy can show.

matplotlib writes style attributes, namespaces and metadata; here they become plain presentation attributes, so that the
page needs neither inline styles nor any address, and colours become variables of the page (light and dark).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leadline.reports.contents import Contents
from leadline.reports.words import number, visible

# Stand-ins that matplotlib draws with, and the page's variables that replace them.
INK, MUTED, ACCENT, BASE = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", ACCENT: "var(--accent)", BASE: "var(--base)"}
TICKS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Point:
    """One scanner: bits per token, mean agreement, and its 95% interval where there is one."""

    label: str
    bits: float
    agreement: float
    low: float | None
    high: float | None
    baseline: bool


@dataclass(frozen=True)
class Level:
    """A horizontal line: something that has an agreement but ranks nothing at a cost that could be placed."""

    label: str
    agreement: float


def pareto(contents: Contents) -> str | None:
    """The plot of every scanner with results as SVG text; None where there are none."""
    points, levels = [], []
    for figures in contents.scanners:
        mean, cost, line = figures.agreement, figures.cost, figures.line
        if mean is None or cost is None or line.role == "reference":
            continue
        if line.role == "scanner":
            is_baseline = line.label == contents.spec.baseline
            points.append(Point(visible(line.shown), cost.bits_per_token, mean.mean, mean.low, mean.high, is_baseline))
        else:
            name = "noise floor" if line.role == "noise-floor" else visible(line.shown)
            levels.append(Level(f"{name} {number(mean.mean, 2)}", mean.mean))
    return plot(points, levels) if points else None


def plot(points: Sequence[Point], levels: Sequence[Level]) -> str:
    """Agreement against bits per token with interval bars, the frontier, and a label beside every point."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "leadline", "font.size": 10}):
        figure = Figure(figsize=(8.4, 5.2), dpi=100, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _frame(axes, points, levels)
        for point in points:
            colour = BASE if point.baseline else ACCENT
            if point.low is not None and point.high is not None:
                axes.plot([point.bits] * 2, [point.low, point.high], color=colour, linewidth=1.2, alpha=0.55)
            axes.plot([point.bits], [point.agreement], "s" if point.baseline else "o", color=colour, markersize=6)
        frontier = _frontier(points)
        axes.step([p.bits for p in frontier], [p.agreement for p in frontier], where="post", color=MUTED, linewidth=1)
        canvas.draw()
        _label(axes, canvas.get_renderer(), points, levels)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True)
    return page_svg(out.getvalue(), "Agreement with exact top-k against bits per token")


def _frame(axes: Any, points: Sequence[Point], levels: Sequence[Level]) -> None:
    axes.set_xscale("symlog", base=2, linthresh=16, linscale=1)
    most = max([point.bits for point in points])
    ticks = [tick for tick in TICKS if tick <= most * 1.5] or [0, 8]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-2, max(most * 1.9, 24))
    seen = [p.agreement for p in points] + [p.low for p in points if p.low is not None]
    lowest = min([*seen, *(level.agreement for level in levels)])
    axes.set_ylim(max(-0.02, min(lowest - 0.06, 0.9)), 1.0 + 0.12 * (1.02 - max(0.0, min(lowest - 0.06, 0.9))))
    axes.set_xlabel("bits per token, per KV head per layer", color=INK)
    axes.set_ylabel("step agreement with exact top-k", color=INK)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.axhline(1.0, color=MUTED, linewidth=0.8)
    for level in levels:
        axes.axhline(level.agreement, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))


def _frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats on both axes, by rising bits."""
    frontier: list[Point] = []
    for point in sorted(points, key=lambda p: (p.bits, -p.agreement)):
        if not frontier or point.agreement > frontier[-1].agreement:
            frontier.append(point)
    return frontier


def _label(axes: Any, renderer: Any, points: Sequence[Point], levels: Sequence[Level]) -> None:
    """Place each label at the offset that covers the least of markers, bars and labels placed before."""
    to_pixels = axes.transData.transform
    boxed = matplotlib.transforms.Bbox.from_extents
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
        (x0, y0), (x1, y1) = to_pixels((here.bits, here.agreement)), to_pixels((there.bits, there.agreement))
        taken += [boxed(x0, y0 - 1, x1, y0 + 1), boxed(x1 - 1, y0, x1 + 1, y1)]
    for point in points:
        x, y = to_pixels((point.bits, point.agreement))
        taken.append(boxed(x - 5, y - 5, x + 5, y + 5))
        if point.low is not None and point.high is not None:
            (_, bottom), (_, top) = to_pixels((point.bits, point.low)), to_pixels((point.bits, point.high))
            taken.append(boxed(x - 1, bottom, x + 1, top))
    frame = axes.get_window_extent(renderer)
    for point in sorted(points, key=lambda each: -each.agreement):
        best = None
        for offset, align in _offsets():
            text = axes.annotate(
                point.label,
                (point.bits, point.agreement),
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
            point.label, (point.bits, point.agreement), offset, textcoords="offset points",
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


def page_svg(svg: str, title: str) -> str:
    """matplotlib's SVG as an element of a page: no style attribute, no namespace, no metadata, the page's colours."""
    svg = svg[svg.index("<svg") :]
    for pattern in (r"<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<!--.*?-->", r' xmlns(:\w+)?="[^"]*"'):
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\s+style="([^"]*)"', lambda match: _attributes(match[1]), svg)
    svg = re.sub(r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', svg)
    for stand_in, variable in VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    return svg


def _attributes(style: str) -> str:
    found = []
    for declaration in filter(str.strip, style.split(";")):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # the shorthand is no presentation attribute; the page sets the family
            size = re.search(r"[\d.]+px", value)
            name, value = "font-size", size[0] if size else "10px"
        if name != "font-family":
            found.append(f' {name}="{value}"')
    return "".join(found)
