"""Charts with one row per comparison or scanner: the forest of paired differences, teacher-forced KL, GPU stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from leadline.reports.comparisons import Comparison
from leadline.reports.contents import Contents
from leadline.reports.query import METRICS
from leadline.reports.stats import Mean
from leadline.reports.svg import ACCENT, BAD, BASE, CARD, GOOD, INK, MUTED, SERIES, draw, plain_axes
from leadline.reports.words import signed, visible

COLOURS = {"better": GOOD, "worse": BAD, "equivalent": ACCENT, "inconclusive": MUTED}
WIDTH = 5.2


def forest(contents: Contents) -> str | None:
    """Paired differences in the primary metric with 95% intervals and the margin's band; None where there are none."""
    found = contents.comparisons.of(METRICS[0])
    if not found:
        return None

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        margin = contents.spec.margin
        axes.axvspan(-margin, margin, color=MUTED, alpha=0.12, linewidth=0)
        axes.axvline(0, color=MUTED, linewidth=1)
        for place, each in enumerate(found):
            _difference(axes, place, each)
        names = [visible(f"{each.scanner} − {each.baseline}") for each in found]
        _rows(axes, names, [INK if each.declared else MUTED for each in found])
        split = sum(each.declared for each in found)
        if 0 < split < len(found):
            axes.axhline(split - 0.64, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.set_xlabel(f"difference in agreement; band: ±{margin:g}, the margin of equivalence", color=INK)
        for place, each in enumerate(found):
            said = f"{signed(each.difference.difference)} {each.verdict}"
            _text(axes, 1, place, said, COLOURS[each.verdict])

    return draw("forest", "Paired differences in agreement with 95% intervals", _size(len(found)), paint)


def _difference(axes: Any, place: int, each: Comparison) -> None:
    d, colour = each.difference, COLOURS[each.verdict]
    if d.low is not None and d.high is not None:
        axes.plot([d.low, d.high], [place, place], color=colour, linewidth=2.2 if each.declared else 1.2)
    marker, size = ("s", 7) if each.declared else ("o", 5)
    axes.plot([d.difference], [place], marker, color=colour, markersize=size)


def divergences(contents: Contents) -> str | None:
    """KL(dense‖·) and KL(exact‖·) on the recorded text, on a log scale with 95% intervals; None where not stored."""
    found = [
        (figures.line.shown, figures.recorded_kl_dense, figures.recorded_kl_exact)
        for figures in contents.scanners
        if figures.recorded_kl_dense is not None and figures.line.role != "dense"
    ]
    if not any(kl.mean > 0 for _, *both in found for kl in both if kl is not None):
        return None
    found.sort(key=lambda row: row[1].mean if row[1] else 0.0)
    floor = min(kl.mean for _, *both in found for kl in both if kl is not None and kl.mean > 0) / 3

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        for place, (_, dense, exact) in enumerate(found):
            _nats(axes, place - 0.13, dense, ACCENT, "o", floor)
            _nats(axes, place + 0.13, exact, BASE, "s", floor)
        _rows(axes, [visible(name) for name, _, _ in found])
        axes.plot([], [], "o", color=ACCENT, label="KL(dense‖·)")
        axes.plot([], [], "s", color=BASE, label="KL(exact‖·)")
        axes.legend(frameon=False, labelcolor=INK, fontsize=9, loc="upper right")
        axes.set_xlabel("nats per token on the recorded text, log scale (at the left edge: 0)", color=INK)

    return draw("kl", "Teacher-forced KL by scanner", _size(len(found)), paint)


def _nats(axes: Any, place: float, mean: Mean | None, colour: str, marker: str, floor: float) -> None:
    if mean is None:
        return
    axes.plot([max(mean.mean, floor)], [place], marker, color=colour, markersize=5)
    if mean.low is not None and mean.high is not None and mean.high > floor:
        axes.plot([max(mean.low, floor), mean.high], [place, place], color=colour, linewidth=1.2, alpha=0.6)


def stages(contents: Contents) -> str | None:
    """GPU milliseconds per decoded token by stage, stacked; None where no branch was timed by stage."""
    names = list(dict.fromkeys(stage.stage for stage in contents.stages))
    by_scanner = {(stage.scanner, stage.stage): stage.ms for stage in contents.stages}
    timed = {scanner for scanner, _ in by_scanner}
    lines = [figures.line for figures in contents.scanners if figures.line.sha256 in timed]
    if not lines:
        return None

    def paint(figure: Figure, _canvas: Any) -> None:
        axes = figure.add_subplot()
        left = [0.0] * len(lines)
        for number, name in enumerate(names):
            widths = [by_scanner.get((line.sha256, name), 0.0) for line in lines]
            colour = SERIES[number % len(SERIES)]
            axes.barh(range(len(lines)), widths, 0.42, left=left, color=colour, label=visible(name), linewidth=0)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        _rows(axes, [visible(line.shown) for line in lines])
        axes.set_xlabel("GPU ms per decoded token", color=INK)
        axes.legend(frameon=False, labelcolor=INK, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))

    return draw("stages", "GPU time by stage", _size(len(lines) + 1), paint)


def _rows(axes: Any, names: Sequence[str], colours: Sequence[str] | None = None) -> None:
    """One row per name, the first on top; the name stands over its row, so that a narrow page has room for the row."""
    for place, name in enumerate(names):
        _text(axes, 0, place, name, colours[place] if colours else INK)
    axes.set_yticks([])
    axes.set_ylim(len(names) - 0.5, -0.75)
    plain_axes(axes)
    axes.spines["left"].set_visible(False)


def _text(axes: Any, side: int, place: int, text: str, colour: str) -> None:
    """Text over row `place`, at the left (0) or the right (1) end."""
    where = {"transform": axes.get_yaxis_transform(), "ha": "right" if side else "left", "va": "center"}
    box = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}  # lines end where words stand
    axes.text(side, place - 0.4, text, color=colour, fontsize=9, parse_math=False, bbox=box, **where)


def _size(rows: int) -> tuple[float, float]:
    return WIDTH, 0.9 + 0.4 * max(rows, 2)
