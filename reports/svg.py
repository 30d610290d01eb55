"""matplotlib figures as inline SVG that a page with a strict content policy can show.

matplotlib writes style attributes, namespaces, metadata and ids; here they become plain presentation attributes, so
that the page needs neither inline styles nor any address, ids stay unique on a page of many figures, and colours become
variables of the page (light and dark).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Stand-ins that matplotlib draws with, and the page's variables that replace them.
INK, MUTED, ACCENT, BASE, GOOD, BAD, CARD = (f"#0{number}0{number}0{number}" for number in range(1, 8))
SERIES = tuple(f"#0a0a0{number}" for number in range(1, 8))
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    ACCENT: "var(--accent)",
    BASE: "var(--base)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    CARD: "var(--card)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
}
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "leadline", "font.size": 10}


def draw(name: str, title: str, size: tuple[float, float], paint: Callable[[Figure, FigureCanvasAgg], None]) -> str:
    """A figure of `size` inches that `paint` fills, as an SVG element; `name` keeps its ids apart from others'."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, dpi=100, layout="constrained")
        paint(figure, FigureCanvasAgg(figure))
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True)
    return page_svg(out.getvalue(), name, title)


def page_svg(svg: str, name: str, title: str) -> str:
    """matplotlib's SVG as an element of a page: no style attribute, no namespace, no metadata, the page's colours."""
    svg = svg[svg.index("<svg") :]
    for pattern in (r"<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<!--.*?-->", r' xmlns(:\w+)?="[^"]*"'):
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\s+style="([^"]*)"', lambda match: _attributes(match[1]), svg)
    svg = re.sub(r'^<svg[^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', svg)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r"<g>\s*</g>", "", svg)
    for stand_in, variable in VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    return re.sub(r"\n\s*", "\n", svg)


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


def plain_axes(axes: Any) -> None:
    """Axes in the page's colours with only the left and bottom spine."""
    axes.tick_params(colors=INK, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """`places` moved by a simple sweep so that neighbours are `gap` apart, within low..high if they fit."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = [places[index] for index in order]
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = high
        for index in range(len(moved) - 2, -1, -1):
            moved[index] = min(moved[index], moved[index + 1] - gap)
    if moved and moved[0] < low and len(moved) * gap <= high - low:
        return spread([max(place, low) for place in places], gap, low, high)
    result = [0.0] * len(places)
    for index, place in zip(order, moved, strict=True):
        result[index] = place
    return result
