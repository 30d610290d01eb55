"""A fidelity measurement by itself, as Markdown, as one HTML file that loads nothing, and as plain numbers."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from leadline.reports.fidelity_charts import error_curves, layer_map
from leadline.reports.fidelity_figures import FidelityFigures
from leadline.reports.fidelity_tables import fidelity_tables
from leadline.reports.json_report import plain
from leadline.reports.markdown import cell
from leadline.reports.pages import environment, shared
from leadline.reports.table import Table
from leadline.reports.words import number, plural

CURVES = (
    "Mean over windows, with 95% t intervals; both axes logarithmic. Families join the budgets of one scanner. The "
    "dashed line is exact top-k, which no scan of the same k goes far below."
)
MAP = "Mean over windows, heads and positions of a layer; five shades of equal ratio."


def fidelity_summary(figures: FidelityFigures) -> list[str]:
    """What was found, in sentences."""
    spec, windows = figures.result.spec, len(figures.result.windows)
    by_label = {line.label: line for line in figures.main}
    exact = by_label["exact"]
    found = [
        f"Over {plural(windows, 'window')} of {spec.length:,} tokens, exact top-{spec.k} attention lies "
        f"{number(exact.error.mean, 3)} from dense attention; every scanner's error is read against that."
    ]
    savings = [each for each in figures.equal if each.family == "fathom" and each.saving is not None]
    if savings:
        said = "; ".join(
            f"{number(each.mean, 0)} bits for {each.target}'s {number(each.target_bits, 0)}" for each in savings
        )
        found.append(f"Flat Fathom on the raw store reaches the same error with {said}.")
    if spec.basis_choice is not None:
        found.append(f"The calibration's held-out text chose the {spec.basis_choice} store.")
    return found


def fidelity_markdown(figures: FidelityFigures) -> str:
    """The measurement as GitHub-flavoured Markdown."""
    spec = figures.result.spec
    parts = [
        f"# Fidelity of {cell(spec.model)} at {spec.length:,} tokens",
        *map(cell, fidelity_summary(figures)),
        *(part for table in fidelity_tables(figures) if table.rows for part in _table(table)),
    ]
    return "\n\n".join(parts) + "\n"


def fidelity_html(figures: FidelityFigures) -> str:
    """The measurement as a complete HTML document."""
    made = (
        ("fidelity-errors", "figure-fidelity-curves", error_curves(figures), CURVES),
        ("fidelity-layers", "figure-fidelity-map", layer_map(figures), MAP),
    )
    return (
        environment()
        .get_template("fidelity.html.j2")
        .render(
            spec=figures.result.spec,
            summary=fidelity_summary(figures),
            tables=[table for table in fidelity_tables(figures) if table.rows],
            drawings={table: [(id, Markup(svg), note)] for table, id, svg, note in made if svg is not None},
            **shared(),
        )
    )


def fidelity_json(figures: FidelityFigures) -> dict[str, Any]:
    """Protocol, windows, lines and equal-error bits as plain values."""
    return {
        "spec": plain(figures.result.spec),
        "windows": plain(figures.result.windows),
        "lines": plain(figures.lines),
        "equal_error": [{**plain(each), "saving": each.saving} for each in figures.equal],
    }


def _table(table: Table) -> list[str]:
    rule = ["---", *("---:" if table.numeric else "---" for _ in table.columns[1:])]
    lines = [list(map(cell, table.columns)), rule, *(list(map(cell, row)) for row in table.rows)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return [f"## {cell(table.title)}", *([cell(table.intro)] if table.intro else []), body, *map(cell, table.notes)]
