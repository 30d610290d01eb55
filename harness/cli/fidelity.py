"""`leadline fidelity`: how far attention over each scanner's selected set lies from dense attention, on any model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from leadline.errors import UsageError, explain

INTERRUPTED = 130

if TYPE_CHECKING:
    from leadline.fidelity.records import FidelityResult


def fidelity(
    model: Annotated[str, typer.Argument(help="Hub id, folder or .gguf file, or `embedded`.")] = "embedded",
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            help="A text file, or a directory of text files or of sessions; default: sources of Python's standard "
            "library that a default calibration does not read.",
        ),
    ] = None,
    length: Annotated[int, typer.Option("--length", min=256, help="Tokens of a window.")] = 4096,
    windows: Annotated[int, typer.Option("--windows", min=1, help="Windows to measure; intervals need two.")] = 3,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k", help="Selected tokens; repeat for a sweep, the first is the main one. Default by --length."
        ),
    ] = None,
    scanner: Annotated[
        list[str] | None, typer.Option("--scanner", help="Measure these instead of a grid; repeatable.")
    ] = None,
    grid: Annotated[
        Literal["full", "quick"], typer.Option("--grid", help="Every family and ablation, or one look.")
    ] = "full",
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Artifact of `leadline calibrate`; the embedded model brings its own."),
    ] = None,
    rope: Annotated[str | None, typer.Option("--rope", help="yarn:FACTOR, for windows past the model's own.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda[:N]; default: a GPU where there is one.")
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", help="Results database to store the figures in; made where missing.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for fidelity.html and fidelity.md.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure attention error against scan bits: every scanner over a grid of budgets, on held-out text."""
    from leadline.environment import command_line
    from leadline.fidelity.setup import prepare
    from leadline.reports.fidelity_figures import fidelity_figures
    from leadline.reports.fidelity_page import fidelity_values

    job = prepare(
        model=model,
        text=text,
        length=length,
        windows=windows,
        ks=tuple(k or ()),
        specs=tuple(scanner or ()),
        grid=grid,
        calibration=calibration,
        rope=rope,
        device=device,
    )
    for note in job.spec.notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        result = job.run(db, command_line(), lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        kept = f"windows measured so far are kept in {db}" if db is not None else "nothing was stored, for want of --db"
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(fidelity_values(fidelity_figures(result)), indent=2, allow_nan=False))
    else:
        show(result)
    if out is not None:
        write(result, out)


def show(result: FidelityResult) -> None:
    """Print the errors and the bits of equal error as plain tables."""
    from leadline.reports.fidelity_figures import fidelity_figures
    from leadline.reports.fidelity_page import fidelity_summary
    from leadline.reports.fidelity_tables import equal_error, errors, sweep

    figures = fidelity_figures(result)
    for table in (errors(figures), sweep(figures), equal_error(figures)):
        if not table.rows:
            continue
        print(f"\n{table.title}")
        widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(len(table.columns))]
        for row in (table.columns, *table.rows):
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print()
    for sentence in fidelity_summary(figures):
        print(sentence)


def write(result: FidelityResult, out: Path) -> None:
    """Write the measurement's pages."""
    from leadline.reports.fidelity_figures import fidelity_figures
    from leadline.reports.fidelity_page import fidelity_html, fidelity_markdown

    figures = [fidelity_figures(result)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in (
            (out / "fidelity.html", fidelity_html(figures)),
            (out / "fidelity.md", fidelity_markdown(figures)),
        ):
            path.write_text(text, encoding="utf-8")
            print(path, file=sys.stderr)
    except OSError as error:
        raise UsageError(
            explain("cannot write the pages", file=out, found=error.strerror, do="name another directory")
        ) from None
