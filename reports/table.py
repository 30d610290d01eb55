"""One table of a report: finished text, printed alike by HTML and Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.reports.query import Query

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    The first column names the row; `numeric` tables set the others to the right; `folded` ones open on demand; `empty`
    stands in the place of no rows.
    """

    id: str
    title: str
    columns: tuple[str, ...]
    rows: Rows
    intro: str = ""
    notes: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()
    numeric: bool = True
    folded: bool = False
    empty: str = "Nothing to show yet."
