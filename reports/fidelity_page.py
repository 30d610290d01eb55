"""Fidelity measurements by themselves, as Markdown, as one HTML file that loads nothing, and as plain numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from leadline.reports.fidelity_charts import fidelity_drawings
from leadline.reports.fidelity_figures import FidelityFigures
from leadline.reports.fidelity_tables import fidelity_sections
from leadline.reports.json_report import plain
from leadline.reports.markdown import cell, table_parts
from leadline.reports.pages import environment, shared
from leadline.reports.words import number, plural

TITLE = "How far each scanner's attention lies from dense attention"


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


def fidelity_markdown(stored: Sequence[FidelityFigures]) -> str:
    """Measurements as GitHub-flavoured Markdown."""
    parts = [
        f"# {TITLE}",
        *(cell(line) for figures in stored for line in (_head(figures), *fidelity_summary(figures))),
        *(part for table in fidelity_sections(stored) if table.rows for part in table_parts(table)),
    ]
    return "\n\n".join(parts) + "\n"


def fidelity_html(stored: Sequence[FidelityFigures]) -> str:
    """Measurements as a complete HTML document."""
    drawings: dict[str, list[tuple[str, Markup, str]]] = {}
    for table, id, svg, note in fidelity_drawings(stored):
        drawings.setdefault(table, []).append((id, Markup(svg), note))
    return (
        environment()
        .get_template("fidelity.html.j2")
        .render(
            title=TITLE,
            parts=[(_head(figures), fidelity_summary(figures)) for figures in stored],
            tables=[table for table in fidelity_sections(stored) if table.rows],
            drawings=drawings,
            **shared(),
        )
    )


def fidelity_values(figures: FidelityFigures) -> dict[str, Any]:
    """Protocol, windows, lines and equal-error bits as plain values."""
    return {
        "measurement": figures.measurement,
        "spec": plain(figures.result.spec),
        "windows": plain(figures.result.windows),
        "lines": plain(figures.lines),
        "equal_error": [{**plain(each), "saving": each.saving} for each in figures.equal],
    }


def fidelity_json(stored: Sequence[FidelityFigures]) -> str:
    """Measurements as a JSON document."""
    return json.dumps({"fidelity": list(map(fidelity_values, stored))}, indent=2, allow_nan=False)


def _head(figures: FidelityFigures) -> str:
    spec = figures.result.spec
    return f"{spec.model} · {spec.length:,} tokens · k = {spec.k} · {spec.dtype} on {spec.device}"
