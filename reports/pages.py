"""What every HTML page of ours shares: the template environment, the style, the script, and the policy for both.

Session text is untrusted: jinja escapes it, characters that act on the page are made visible, and should either ever
fail, the page's Content-Security-Policy allows no address, no form, and no style or script but these, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leadline import __version__
from leadline.reports.words import visible

_PARTS = re.compile(r"[^:,=/]*[:,=/]|[^:,=/]+")
VERDICTS = ("better", "worse", "equivalent", "inconclusive")


def breakable(text: str) -> Markup:
    """`text`, escaped, with places to break a line after the signs of a scanner's label or a path."""
    return Markup("").join(
        Markup("{}<wbr>").format(part) if part[-1] in ":,=/" else part for part in _PARTS.findall(text)
    )


@cache
def environment() -> Environment:
    """The templates beside this file: escaped by default, undefined names are errors."""
    made = Environment(
        loader=PackageLoader("leadline.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["visible"] = visible
    made.filters["breakable"] = breakable
    made.filters["is_verdict"] = lambda cell: cell.split(" ")[0] in VERDICTS
    return made


def shared() -> dict[str, Any]:
    """Template values of every page: `css` and `script` (our own text, byte for byte what is hashed), `policy`."""
    css, script = _text("report.css"), _text("viewer.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    return {"css": Markup(css), "script": Markup(script), "policy": policy, "version": __version__}


def _text(name: str) -> str:
    return resources.files("leadline.reports").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
