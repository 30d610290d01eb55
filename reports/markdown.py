"""The report as Markdown: the same tables and sentences as the HTML, for a pull request or a terminal.

Untrusted text stands in code fences longer than any run of backticks in it, or is escaped sign by sign in table cells.
"""

from __future__ import annotations

import re

from leadline.reports.branches import Branch, Point, by_session
from leadline.reports.contents import Contents
from leadline.reports.summary import summary
from leadline.reports.table import Table
from leadline.reports.tables import background, tables
from leadline.reports.words import plural, visible


def markdown(contents: Contents, *, texts: bool = True) -> str:
    """The report of one run as GitHub-flavoured Markdown, with or without the text of every branch."""
    run = contents.run
    parts = [
        "# How well each scanner agrees with exact top-k",
        f"{cell(contents.model.id)} · run {run.id} of {cell(contents.database)} · {run.status} · {run.updated} UTC",
        *(cell(sentence) for sentence in summary(contents)),
        *(part for table in tables(contents) for part in table_parts(table)),
        *_excluded(contents),
        *(["## Step texts", *_steps(contents)] if texts else []),
        *(part for table in background(contents) for part in table_parts(table)),
    ]
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """Untrusted text on one line of Markdown, every sign that could act on it escaped."""
    line = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", visible(text).replace("\n", " ").replace("\t", " "))
    # At its start a heading, a rule or a list; anywhere an address that would become a link.
    line = re.sub(r"^([-+#])(?=[-+#\s]|$)", r"\\\1", line.strip())
    line = re.sub(r"^(\d{1,9})([.)])(?=\s|$)", r"\1\\\2", line).replace("://", "\\://")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fence(text: str, language: str = "text") -> str:
    """Untrusted text as a code block that it cannot close."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{shown}\n{ticks}"


def table_parts(table: Table) -> list[str]:
    """A table with its title, notes and queries, as paragraphs."""
    parts = [f"## {cell(table.title)}"]
    if table.intro:
        parts.append(cell(table.intro))
    if table.rows:
        rule = ["---"] + ["---:" if table.numeric else "---"] * (len(table.columns) - 1)
        lines = [_line(table.columns), "| " + " | ".join(rule) + " |", *(_line(row) for row in table.rows)]
        parts.append("\n".join(lines))
    else:
        parts.append(cell(table.empty))
    parts += [cell(note) for note in table.notes]
    if table.queries:
        sql = "\n\n".join(f"-- {query.name}\n{query.sql};" for query in table.queries)
        parts.append(_folded("SQL", [fence(sql, "sql")]))
    return parts


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell(text) for text in cells) + " |"


def _folded(title: str, parts: list[str]) -> str:
    body = "\n\n".join(parts)
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _excluded(contents: Contents) -> list[str]:
    if not contents.exclusions:
        return []
    lines = []
    for item in contents.exclusions:
        step = "" if item.step is None else f", step {item.step}"
        lines.append(f"- {cell(item.path)}{step}: {cell(item.reason)}")
    return [_folded(f"All {plural(len(lines), 'excluded item')}", ["\n".join(lines)])]


def _steps(contents: Contents) -> list[str]:
    return [
        _folded(cell(group.session.id), [part for point in group.points for part in _point(point)])
        for group in by_session(contents)
    ]


def _point(point: Point) -> list[str]:
    head = [
        f"### Step {point.step}, {plural(point.prompt_tokens, 'prompt token')}",
        *(("End of the prompt:", fence(point.prompt_tail)) if point.prompt_tail else ()),
        "Recorded:",
        fence(point.recorded),
    ]
    return head + [part for branch in point.branches for part in _branch(branch)]


def _branch(branch: Branch) -> list[str]:
    return [f"{cell(branch.label)} ({cell('; '.join(branch.facts))}):", fence(branch.text)]
