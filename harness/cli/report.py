"""`leadline report`: one run of a results database as HTML, Markdown or JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What to write."""

    html = "html"
    md = "md"
    json = "json"


def report(
    database: Annotated[
        Path, typer.Argument(metavar="DB", help="Results database; read-only, also while a run writes.")
    ],
    run: Annotated[int | None, typer.Option(help="Run id; the one updated last where left out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write to; beside DB where left out.")] = None,
    formats: Annotated[
        list[Format] | None, typer.Option("--format", help="What to write, repeatable; html and md where left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, write nothing.")] = False,
) -> None:
    """Write the report of a run and print the paths of the files."""
    from leadline.database import Results
    from leadline.errors import UsageError, explain
    from leadline.reports.contents import gather
    from leadline.reports.html import html
    from leadline.reports.json_report import report_json
    from leadline.reports.markdown import markdown

    with Results.open(database, read_only=True) as results:
        contents = gather(results, run)
    if as_json:
        print(report_json(contents))
        return
    folder = out or database.parent
    writers = {Format.html: html, Format.md: markdown, Format.json: report_json}
    for name in dict.fromkeys(formats or (Format.html, Format.md)):
        path = folder / f"report.{name}"
        text = writers[name](contents)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                explain(
                    "cannot write the report", file=path, found=error.strerror, do="name another directory with --out"
                )
            ) from None
        print(path)
