"""One table of a report as plain text for a terminal or a pipe: columns set under each other, notes below."""

from __future__ import annotations

import textwrap

from leadline.reports.table import Table
from leadline.reports.words import visible

WIDTH = 100  # characters of notes; rows are as wide as they are


def text_table(table: Table) -> str:
    """Title, introduction, rows and notes."""
    lines = [table.title, *_wrapped(table.intro), ""]
    cells = [[visible(cell).replace("\n", " ") for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        rest = (text.rjust(width) if table.numeric else text.ljust(width) for text, width in others)
        lines.append("  ".join([first[0].ljust(first[1]), *rest]).rstrip())
    if not table.rows:
        lines.append(table.empty)
    for note in table.notes:
        lines += ["", *_wrapped(note)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH) if text else []
