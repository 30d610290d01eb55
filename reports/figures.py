"""The figures of a report, by the table that each stands above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from leadline.reports.contents import Contents
from leadline.reports.fidelity_charts import fidelity_drawings
from leadline.reports.line_charts import layers, slopes, survival
from leadline.reports.pareto import pareto, pareto_gpu
from leadline.reports.row_charts import divergences, forest, stages


@dataclass(frozen=True)
class Drawing:
    """One figure: its SVG and the line of text below it; `narrow` ones are legible on a phone without scrolling."""

    id: str
    svg: Markup
    note: str
    narrow: bool


_PARETO = (
    "Mean over units with its 95% t interval where there is one. The line joins the scanners that no other beats on "
    "both axes. The square is the baseline."
)
FIGURES: tuple[tuple[str, str, Callable[[Contents], str | None], str], ...] = (
    ("agreement", "figure-pareto", pareto, _PARETO),
    ("agreement", "figure-pareto-gpu", pareto_gpu, _PARETO),
    (
        "difference-agreement",
        "figure-forest",
        forest,
        "Scanner minus baseline with 95% t intervals over units. Squares: declared; circles, below: exploratory.",
    ),
    (
        "difference-agreement",
        "figure-slopes",
        slopes,
        "The declared pairs, one thin line per unit, the heavy line the means: up is better than the baseline.",
    ),
    (
        "teacher-forced",
        "figure-kl",
        divergences,
        "Teacher-forced on the recorded text, with 95% t intervals over units: farther left is closer.",
    ),
    (
        "divergence",
        "figure-survival",
        survival,
        "Share of steps whose tokens are still the reference's. Past its first differing token a branch is its own "
        "text, and no longer evidence about single choices. In colour: scanners of the declared pairs.",
    ),
    ("layers", "figure-layers", layers, "Scan bytes per decoded token by layer, all KV heads of a layer together."),
    ("stages", "figure-stages", stages, "Where the GPU time of a decode step goes, mean over branches."),
)


NARROW = ("figure-forest", "figure-kl", "figure-stages")


def figures(contents: Contents) -> dict[str, list[Drawing]]:
    """Every figure that the run has figures for, by table id."""
    drawn: dict[str, list[Drawing]] = {}
    for table, id, make, note in FIGURES:
        svg = make(contents)
        if svg is not None:
            drawn.setdefault(table, []).append(Drawing(id, Markup(svg), note, id in NARROW))
    for table, id, svg, note in fidelity_drawings(contents.fidelity):
        drawn.setdefault(table, []).append(Drawing(id, Markup(svg), note, narrow=False))
    return drawn
