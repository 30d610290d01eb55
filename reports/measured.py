"""What a database without a replay has to report: pages for every kind of measurement it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from leadline.database import Results
from leadline.reports import decode_page, fidelity_page, ruler_page
from leadline.reports.fidelity_figures import stored_fidelity
from leadline.reports.flat import Figure, fidelity_flat, ruler_figures
from leadline.reports.ruler_scores import ruler_scores


@dataclass(frozen=True)
class Pages:
    """One subject's report in every format, each written when it is asked for."""

    html: Callable[[], str]
    md: Callable[[], str]
    json: Callable[[], str]
    flat: Callable[[], Sequence[Figure]]


def measured(results: Results) -> dict[str, Pages]:
    """By kind those that the database holds: `decode` (timed steps), `ruler` (scores of tasks), `fidelity`."""
    found: dict[str, Pages] = {}
    timed = decode_page.gather_decode(results)
    if timed is not None:
        found["decode"] = Pages(
            partial(decode_page.decode_html, timed),
            partial(decode_page.decode_markdown, timed),
            partial(decode_page.decode_json, timed),
            partial(decode_page.decode_flat, timed),
        )
    scores = ruler_scores(results)
    if scores:
        name = Path(results.path).name
        found["ruler"] = Pages(
            partial(ruler_page.ruler_html, name, scores),
            partial(ruler_page.ruler_markdown, name, scores),
            partial(ruler_page.ruler_json, scores),
            partial(ruler_figures, 0, scores),
        )
    errors = stored_fidelity(results)
    if errors:
        found["fidelity"] = Pages(
            partial(fidelity_page.fidelity_html, errors),
            partial(fidelity_page.fidelity_markdown, errors),
            partial(fidelity_page.fidelity_json, errors),
            partial(fidelity_flat, 0, errors),
        )
    return found


def json_of(pages: Mapping[str, Pages]) -> str:
    """The figures as numbers: one subject's own, or several subjects' by kind."""
    if len(pages) == 1:
        return next(iter(pages.values())).json()
    return json.dumps({kind: json.loads(each.json()) for kind, each in pages.items()}, indent=2, allow_nan=False)
