"""`leadline share`: a results database to pass on, without the recorded sessions' text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def share(
    database: Annotated[Path, typer.Argument(metavar="DB", help="Results database; read-only.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to make; an existing one is not overwritten.")],
    by_token: Annotated[
        bool,
        typer.Option("--by-token/--no-by-token", help="With the divergences of single tokens, or their means alone."),
    ] = True,
) -> None:
    """Copy a results database without the recorded steps and the ends of prompts.

    What the scanners decoded stays, and so does every figure of a report.
    """
    from leadline.sharing import share as copy

    found = copy(database, out, by_token)
    tokens = "" if by_token else ", divergences of single tokens too"
    sizes = f"{found.bytes_before / 1e6:.1f} MB to {found.bytes_after / 1e6:.1f} MB"
    print(f"{out}: the recorded text of {found.points} branch points left out{tokens}, {sizes}")
    if found.decoded:
        print(
            f"What scanners decoded in {found.decoded} branches is in it, and so are the names of sessions, files and "
            "sources and the runs' commands: read them before you pass the copy on, they may quote what is not yours."
        )
