"""`leadline report`: one run of a results database as HTML, Markdown, JSON, one flat table, or a viewer's pages."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
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

    A database that holds no run gives a report of its timed decode steps, its RULER-style scores, or its fidelity.
    """
    from leadline.database import Results
    from leadline.errors import UsageError, explain
    from leadline.reports import decode_page, fidelity_page, ruler_page
    from leadline.reports.contents import gather
    from leadline.reports.fidelity_figures import FidelityFigures, stored_fidelity
    from leadline.reports.flat import fidelity_flat, flat, ruler_figures, to_csv, to_parquet
    from leadline.reports.html import html
    from leadline.reports.json_report import report_json
    from leadline.reports.markdown import markdown
    from leadline.reports.ruler_scores import ruler_scores
    from leadline.reports.viewer import write_pages

    with Results.open(database, read_only=True) as results:
        alone = run is None and not results.runs()
        timed = decode_page.gather_decode(results) if alone else None
        answered = ruler_scores(results) if alone and timed is None else ()
        measured: tuple[FidelityFigures, ...] = ()
        if alone and timed is None and not answered:
            measured = stored_fidelity(results)
        contents = gather(results, run) if timed is None and not answered and not measured else None
    writers: dict[Format, Callable[[], str | bytes]]
    if contents is not None:
        replayed = contents
        writers = {
            Format.html: lambda: html(replayed, texts=texts),
            Format.md: lambda: markdown(replayed, texts=texts),
            Format.json: lambda: report_json(replayed),
            Format.csv: lambda: to_csv(flat(replayed)),
            Format.parquet: lambda: to_parquet(flat(replayed)),
        }
    elif timed is not None:
        steps = timed
        writers = {
            Format.html: lambda: decode_page.decode_html(steps),
            Format.md: lambda: decode_page.decode_markdown(steps),
            Format.json: lambda: decode_page.decode_json(steps),
            Format.csv: lambda: to_csv(decode_page.decode_flat(steps)),
            Format.parquet: lambda: to_parquet(decode_page.decode_flat(steps)),
        }
    elif measured:
        writers = {
            Format.html: lambda: fidelity_page.fidelity_html(measured),
            Format.md: lambda: fidelity_page.fidelity_markdown(measured),
            Format.json: lambda: fidelity_page.fidelity_json(measured),
            Format.csv: lambda: to_csv(fidelity_flat(0, measured)),
            Format.parquet: lambda: to_parquet(fidelity_flat(0, measured)),
        }
    else:
        name = database.name
        writers = {
            Format.html: lambda: ruler_page.ruler_html(name, answered),
            Format.md: lambda: ruler_page.ruler_markdown(name, answered),
            Format.json: lambda: ruler_page.ruler_json(answered),
            Format.csv: lambda: to_csv(ruler_figures(0, answered)),
            Format.parquet: lambda: to_parquet(ruler_figures(0, answered)),
        }
    if viewer is not None and contents is None:
        raise UsageError(explain("there are no sessions to view", file=database, found="measurements without a run"))
    if as_json:
        print(writers[Format.json]())
        return
    folder = out or database.parent
    chosen = formats or ([] if viewer is not None else [Format.html, Format.md])
    path = folder
    try:
        for kind in dict.fromkeys(chosen):
            path = folder / f"report.{kind}"
            data = writers[kind]()
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
