"""The report as one HTML file that loads nothing: style and plot inside, and a policy that forbids everything else.

Session text is untrusted: jinja escapes it, characters that act on the page are made visible, and should either ever
fail, the page's Content-Security-Policy allows no script, no address, no form and no style but its own (by its hash).
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leadline import __version__
from leadline.reports.branches import by_session
from leadline.reports.contents import Contents
from leadline.reports.pareto import pareto
from leadline.reports.summary import summary
from leadline.reports.tables import background, tables
from leadline.reports.words import visible

_PARTS = re.compile(r"[^:,=/]*[:,=/]|[^:,=/]+")
VERDICTS = ("better", "worse", "equivalent", "inconclusive")


def breakable(text: str) -> Markup:
    """`text`, escaped, with places to break a line after the signs of a scanner's label or a path."""
    return Markup("").join(
        Markup("{}<wbr>").format(part) if part[-1] in ":,=/" else part for part in _PARTS.findall(text)
    )


def html(contents: Contents) -> str:
    """The report of one run as a complete HTML document."""
    css = resources.files("leadline.reports").joinpath("report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("leadline.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.filters["breakable"] = breakable
    environment.filters["is_verdict"] = lambda cell: cell.split(" ")[0] in VERDICTS
    plot = pareto(contents)
    return environment.get_template("report.html.j2").render(
        contents=contents,
        summary=summary(contents),
        tables=tables(contents),
        background=background(contents),
        groups=by_session(contents),
        plot=None if plot is None else Markup(plot),
        has_baseline=any(figures.line.label == contents.spec.baseline for figures in contents.scanners),
        # Both are our own text, and the style must match its hash byte for byte.
        css=Markup(css),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        version=__version__,
    )
