"""Charts of lines: unit by unit slopes of the declared pairs, agreement surviving by token, bytes by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from leadline.reports.contents import Contents
from leadline.reports.query import METRICS
from leadline.reports.stats import TIE
from leadline.reports.svg import ACCENT, BAD, BASE, GOOD, INK, MUTED, draw, plain_axes, spread
from leadline.reports.words import number, visible

MOST_PANELS = 6


@dataclass(frozen=True)
class Line:
    """A labelled line."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str


def slopes(contents: Contents) -> str | None:
    """Agreement of every unit under the baseline and under the scanner, for the first six declared pairs."""
    found = [each for each in contents.comparisons.of(METRICS[0]) if each.declared][:MOST_PANELS]
    if not found:
        return None

    def paint(figure: Figure, _canvas: Any) -> None:
        panels = figure.subplots(-(-len(found) // 3), 3, sharey=True, squeeze=False)
        for axes in panels.flat[len(found) :]:
            axes.set_visible(False)
        for axes, each in zip(panels.flat, found, strict=False):
            for unit in each.units:
                gain = unit.value - unit.baseline
                colour = MUTED if abs(gain) <= TIE else GOOD if gain > 0 else BAD
                axes.plot([0, 1], [unit.baseline, unit.value], color=colour, linewidth=1, alpha=0.55)
            means = [each.difference.baseline_mean, each.difference.mean]
            axes.plot([0, 1], means, "o-", color=INK, linewidth=2.4, markersize=5)
            d = each.difference
            axes.set_title(f"{d.wins} up, {d.ties} level, {d.losses} down", color=MUTED, fontsize=9)
            axes.set_xticks([0, 1], [visible(each.baseline), visible(each.scanner)], fontsize=8, parse_math=False)
            axes.set_xlim(-0.3, 1.3)
            plain_axes(axes)
        for axes in panels[:, 0]:
            axes.set_ylabel("agreement by unit", color=INK)

    height = 0.4 + 2.9 * -(-len(found) // 3)
    return draw("slopes", "Agreement of every unit, baseline to scanner", (8.4, height), paint)


def survival(contents: Contents) -> str | None:
    """The share of steps whose tokens are still the reference's, by token; None where nothing is stored."""
    longest = contents.spec.max_new_tokens
    strong = _declared(contents)
    lines = []
    for figures in contents.scanners:
        starts = [row.first_divergence for row in contents.steps if row.scanner == figures.line.sha256]
        if not starts or figures.line.role == "reference":
            continue
        y = tuple(sum(start is None or start >= t for start in starts) / len(starts) for t in range(longest + 1))
        label = "noise floor" if figures.line.role == "noise-floor" else visible(figures.line.shown)
        lines.append(Line(label, tuple(range(longest + 1)), y, strong.get(figures.line.shown, MUTED)))
    if not lines:
        return None
    lines.sort(key=lambda line: sum(line.y))  # of lines that end alike, the one that lasted longer is named higher

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        axes.set_ylim(-0.02, 1.04)
        axes.set_xlabel("tokens decoded", color=INK)
        axes.set_ylabel("share of steps still identical", color=INK)
        _labelled(axes, lines, 0.052, digits=2, steps=True)

    return draw("survival", "Share of steps still identical to exact top-k, by token", (8.4, 4.6), paint)


def layers(contents: Contents) -> str | None:
    """Scan kilobytes per decoded token by scanned layer; None where nothing was scanned."""
    strong = _declared(contents)
    scanned = contents.model.scanned_layers
    lines = []
    for figures in contents.scanners:
        found = [layer for layer in contents.layers if layer.scanner == figures.line.sha256]
        if figures.line.role != "scanner" or not found or max(layer.scan_bytes for layer in found) == 0:
            continue
        x = tuple(float(scanned[layer.place]) for layer in found)
        y = tuple(layer.scan_bytes / 1000 for layer in found)
        lines.append(Line(visible(figures.line.shown), x, y, strong.get(figures.line.shown, MUTED)))
    if not lines:
        return None

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        axes.set_ylim(0, max(max(line.y) for line in lines) * 1.06)
        axes.set_xlabel("layer", color=INK)
        axes.set_ylabel("scan kB per decoded token", color=INK)
        _labelled(axes, lines, 0.05, digits=0, steps=False)

    return draw("layers", "Scan bytes by layer", (8.4, 4.6), paint)


def _declared(contents: Contents) -> dict[str, str]:
    """The colours of the scanners that the declared family names; all others stay muted."""
    found = [each for each in contents.comparisons.of(METRICS[0]) if each.declared]
    return {each.baseline: BASE for each in found} | {each.scanner: ACCENT for each in found}


def _labelled(axes: Any, lines: Sequence[Line], gap: float, *, digits: int, steps: bool) -> None:
    """Draw the lines, each with its name and last value at the right, names kept apart."""
    low, high = axes.get_ylim()
    start, end = lines[0].x[0], max(lines[0].x[-1], lines[0].x[0] + 1)
    places = spread([line.y[-1] for line in lines], gap * (high - low), low + 0.01, high)
    reach = end - start
    for line, place in zip(lines, places, strict=True):
        strong = line.colour != MUTED
        width = 2.0 if strong else 0.9
        draw_line = axes.step if steps else axes.plot
        extra = {"where": "post"} if steps else {}
        draw_line(line.x, line.y, color=line.colour, linewidth=width, zorder=3 if strong else 2, **extra)
        axes.plot([line.x[-1], end + 0.035 * reach], [line.y[-1], place], color=line.colour, linewidth=0.5, alpha=0.7)
        colour = line.colour if strong else INK
        said = f"{line.label}  {number(line.y[-1], digits)}"
        axes.text(end + 0.045 * reach, place, said, color=colour, fontsize=8.5, va="center", parse_math=False)
    axes.set_xlim(start, end + 0.5 * reach)
    axes.set_xticks([tick for tick in axes.get_xticks() if start <= tick <= end])
    plain_axes(axes)
    axes.spines["bottom"].set_bounds(start, end)
