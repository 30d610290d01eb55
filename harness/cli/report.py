"""`leadline report`: one run of a results database as HTML, Markdown, JSON, one flat table, or a viewer's pages."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What to write."""

    html = "html"
    md = "md"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def report(
    database: Annotated[
        Path, typer.Argument(metavar="DB", help="Results database; read-only, also while a run writes.")
    ],
    run: Annotated[int | None, typer.Option(help="Run id; the one updated last where left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to; beside DB where left out.")] = None,
    formats: Annotated[
        list[Format] | None, typer.Option("--format", help="What to write, repeatable; html and md where left out.")
    ] = None,
    viewer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the session viewer there, a page per session; no report unless asked."),
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="HTML and Markdown with the texts of steps, or tables alone.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, write nothing.")] = False,
) -> None:
    """Write the report of a run and print the paths of the files.

    A database that holds no run gives a report of its timed decode steps, its RULER-style scores or its fidelity; one
    that holds several of them, a report of each.
    """
    from leadline.database import Results
    from leadline.errors import UsageError, explain
    from leadline.reports.contents import gather
    from leadline.reports.flat import flat, to_csv, to_parquet
    from leadline.reports.html import html
    from leadline.reports.json_report import report_json
    from leadline.reports.markdown import markdown
    from leadline.reports.measured import Pages, json_of, measured
    from leadline.reports.viewer import write_pages

    with Results.open(database, read_only=True) as results:
        pages = measured(results) if run is None and not results.runs() else {}
        contents = None if pages else gather(results, run)
    if contents is not None:
        pages["run"] = Pages(
            partial(html, contents, texts=texts),
            partial(markdown, contents, texts=texts),
            partial(report_json, contents),
            partial(flat, contents),
        )
    if viewer is not None and contents is None:
        raise UsageError(explain("there are no sessions to view", file=database, found="measurements without a run"))
    if as_json:
        print(json_of(pages))
        return

    def files(kind: Format) -> Iterator[tuple[str, str | bytes]]:
        if kind in (Format.html, Format.md):
            for subject, page in pages.items():
                name = "report" if len(pages) == 1 else f"report-{subject}"
                yield name, page.html() if kind is Format.html else page.md()
        elif kind is Format.json:
            yield "report", json_of(pages)
        else:
            rows = [row for page in pages.values() for row in page.flat()]
            yield "report", to_csv(rows) if kind is Format.csv else to_parquet(rows)

    folder = out or database.parent
    chosen = formats or ([] if viewer is not None else [Format.html, Format.md])
    path = folder
    try:
        for kind in dict.fromkeys(chosen):
            for name, data in files(kind):
                path = folder / f"{name}.{kind}"
                folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data.encode() if isinstance(data, str) else data)
                print(path)
        if viewer is not None and contents is not None:
            path = viewer
            print(write_pages(contents, viewer))
    except OSError as error:
        raise UsageError(
            explain("cannot write the report", file=path, found=error.strerror, do="name another directory")
        ) from None
