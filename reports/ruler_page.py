"""Scores of RULER-style tasks by themselves, for a database that holds no replay: Markdown, HTML, plain numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from leadline.reports.json_report import plain
from leadline.reports.markdown import cell, table_parts
from leadline.reports.pages import environment, shared
from leadline.reports.ruler_scores import RulerScores
from leadline.reports.ruler_tables import ruler, title
from leadline.reports.words import number, plural, signed

HEADING = "How each scanner answers RULER-style tasks"


def ruler_summary(found: Sequence[RulerScores]) -> list[str]:
    """What was found, in a sentence per protocol: dense first."""
    sentences = []
    for scores in found:
        by_role = {each.role: each for each in reversed(scores.scanners)}
        said = [f"{role} {number(by_role[key].overall.mean)}" for role, key in _ROLES if key in by_role]
        apart = [
            f"{each.label} {signed(each.difference.difference)}"
            for each in scores.scanners
            if each.role == "scanner" and each.difference is not None and (each.holm_p or 1) <= 0.05
        ]
        told = f"from exact top-k differ (Holm p at most 0.05): {', '.join(apart)}" if apart else "no scanner differs "
        told += "" if apart else "from exact top-k beyond chance (Holm p above 0.05)"
        sentences.append(f"{title(scores)}, {plural(scores.samples, 'sample')}: {'; '.join(said)}; {told}.")
    return sentences


def ruler_markdown(database: str, found: Sequence[RulerScores]) -> str:
    """GitHub-flavoured Markdown."""
    parts = [
        f"# {HEADING}",
        cell(database),
        *map(cell, ruler_summary(found)),
        *(part for table in ruler(found) if table.rows for part in table_parts(table)),
    ]
    return "\n\n".join(parts) + "\n"


def ruler_html(database: str, found: Sequence[RulerScores]) -> str:
    """A complete HTML document that loads nothing."""
    return (
        environment()
        .get_template("measured.html.j2")
        .render(
            title=f"RULER-style tasks, {database}",
            heading=HEADING,
            meta=database,
            summary=ruler_summary(found),
            tables=[table for table in ruler(found) if table.rows],
            **shared(),
        )
    )


def ruler_json(found: Sequence[RulerScores]) -> str:
    """The figures as numbers."""
    return json.dumps({"summary": ruler_summary(found), "ruler": plain(tuple(found))}, indent=2, allow_nan=False)


_ROLES = (("dense", "dense"), ("exact top-k", "reference"))
