"""Charts of a fidelity measurement: error against bits by family, and error by layer as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from leadline.reports.fidelity_figures import FidelityFigures, FidelityLine
from leadline.reports.fidelity_tables import heat_lines, prefix_of
from leadline.reports.svg import BASE, INK, MUTED, SERIES, draw, plain_axes, spread

# The heat map's shades are opacities of one colour of the page, so that it follows the page's light and dark.
_SHADES = 5
CURVES = (
    "Mean over windows, with 95% t intervals; both axes logarithmic. Families join the budgets of one scanner. The "
    "dashed line is exact top-k, which no scan of the same k goes far below."
)
MAP = "Mean over windows, heads and positions of a layer; five shades of equal ratio."
_FAMILIES = ("fathom", "fathom rotated", "sparq", "loki", "double_sparsity", "uniform depth", "landmarks", "quest")


def fidelity_drawings(stored: Sequence[FidelityFigures]) -> list[tuple[str, str, str, str]]:
    """(table id, figure id, SVG, note) of every measurement's figures."""
    drawn = []
    for figures in stored:
        prefix = prefix_of(figures, stored)
        for table, kind, make, note in (
            (f"{prefix}-errors", "curves", error_curves, CURVES),
            (f"{prefix}-layers", "map", layer_map, MAP),
        ):
            svg = make(figures, f"{prefix}-{kind}")
            if svg is not None:
                drawn.append((table, f"figure-{prefix}-{kind}", svg, note))
    return drawn


def error_curves(figures: FidelityFigures, name: str = "fidelity-curves") -> str | None:
    """Error against scan bits, both logarithmic, a line per family of two or more budgets; None without one."""
    families: dict[str, list[FidelityLine]] = {}
    for line in figures.main:
        if line.bits > 0 and line.label != "exact":
            families.setdefault(line.family, []).append(line)
    shown = [family for family in _FAMILIES if len(families.get(family, ())) > 1]
    shown = shown or [family for family, lines in families.items() if len(lines) > 1][:8]
    if not shown:
        return None
    exact = next(line for line in figures.main if line.label == "exact")
    colours = dict(zip(shown, (*SERIES, INK), strict=False))

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = {}
        for family in shown:
            lines = sorted(families[family], key=lambda line: line.bits)
            bits, errors = [line.bits for line in lines], [line.error.mean for line in lines]
            axes.plot(bits, errors, "o-", color=colours[family], linewidth=1.6, markersize=3.5)
            for line in lines:
                if line.error.low is not None and line.error.high is not None and line.error.low > 0:
                    axes.plot([line.bits] * 2, [line.error.low, line.error.high], color=colours[family], linewidth=0.8)
            ends[family] = (bits[-1], errors[-1])
        axes.axhline(exact.error.mean, color=MUTED, linewidth=1, linestyle="--")
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * 2.6)
        bottom, top = np.log(axes.get_ylim())
        places = spread([float(np.log(y)) for _, y in ends.values()], 0.05 * (top - bottom), bottom, top)
        for (family, (x, y)), place in zip(ends.items(), places, strict=True):
            axes.plot([x, high * 1.05], [y, np.exp(place)], color=colours[family], linewidth=0.5, alpha=0.7)
            axes.text(high * 1.08, np.exp(place), family, color=colours[family], fontsize=8.5, va="center")
        axes.text(low * 1.05, exact.error.mean, "exact top-k", color=INK, fontsize=8, va="bottom")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())
        axes.set_xticks([tick for tick in (16, 32, 64, 128, 256, 512, 1024) if low <= tick <= high])
        axes.set_yticks(
            [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1) if np.exp(bottom) <= tick <= np.exp(top)]
        )
        axes.set_xlabel("scan bits per token per KV head", color=INK)
        axes.set_ylabel("attention error", color=INK)
        plain_axes(axes)

    return draw(name, "Attention error against scan bits, by family", (8.4, 4.8), paint)


def layer_map(figures: FidelityFigures, name: str = "fidelity-map") -> str | None:
    """Error by layer and scanner, darker for larger, on a logarithmic scale; None for a single layer."""
    lines = heat_lines(figures)
    layers = figures.result.spec.layers
    if len(layers) < 2 or not lines:
        return None
    errors = np.array([line.by_layer for line in lines])
    positive = errors[errors > 0]
    if not positive.size:
        return None
    norm = LogNorm(float(positive.min()), float(positive.max()) * 1.0001)

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        for y, row in enumerate(errors):
            for x, error in enumerate(row):
                shade = float(norm(max(error, positive.min())))
                level = min(_SHADES, 1 + int(shade * _SHADES)) / _SHADES
                axes.add_patch(_cell(x, y, level))
        axes.set_xlim(0, len(layers))
        axes.set_ylim(len(lines), 0)
        axes.set_yticks([y + 0.5 for y in range(len(lines))], [line.label for line in lines], fontsize=8)
        every = max(1, len(layers) // 16)
        ticks = list(range(0, len(layers), every))
        axes.set_xticks([x + 0.5 for x in ticks], [str(layers[x]) for x in ticks], fontsize=8)
        axes.set_xlabel("layer", color=INK)
        edges = np.geomspace(positive.min(), positive.max(), _SHADES + 1)
        steps = ", ".join(f"{a:.2g}-{b:.2g}" for a, b in pairwise(edges))
        axes.set_title(f"light to dark: {steps}", color=MUTED, fontsize=8.5, loc="left")
        plain_axes(axes)

    return draw(name, "Attention error by layer", (8.4, 1.0 + 0.3 * len(lines)), paint)


def _cell(x: int, y: int, level: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, facecolor=BASE, alpha=level, linewidth=0)
