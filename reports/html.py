"""The report as one HTML file that loads nothing: style, script, figures and the session viewer inside."""

from __future__ import annotations

from leadline.reports.contents import Contents
from leadline.reports.figures import figures
from leadline.reports.pages import environment, shared
from leadline.reports.summary import summary
from leadline.reports.tables import background, tables
from leadline.reports.viewer import embedded


def html(contents: Contents, *, texts: bool = True) -> str:
    """The report of one run as a complete HTML document, with the session viewer in it or without any step's text."""
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            contents=contents,
            summary=summary(contents),
            tables=tables(contents),
            background=background(contents),
            figures=figures(contents),
            viewer=embedded(contents) if texts else None,
            has_baseline=any(figures.line.label == contents.spec.baseline for figures in contents.scanners),
            same_page=lambda _: "",
            **shared(),
        )
    )
