"""`leadline demo`: the main job on the bundled samples and the embedded model, and where the report is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the calibration, the results and the report.")] = Path(
        "demo-output"
    ),
) -> None:
    """Replay the bundled samples under every kind of scanner and write the report; a second call redoes nothing."""
    from leadline import demonstration
    from leadline.cli.replay import interrupted
    from leadline.cli.report import report
    from leadline.environment import command_line

    try:
        database, number, outcome = demonstration.run(out, command_line())
    except KeyboardInterrupt:
        raise interrupted(shlex.join(["leadline", "demo", "--out", str(out)])) from None
    print(
        f"run {number}: {outcome.written} branches decoded, {outcome.kept} were there already, {outcome.failed} failed"
    )
    report(database=database, run=number, out=out, formats=None, as_json=False)
    if outcome.failed:
        raise typer.Exit(1)
