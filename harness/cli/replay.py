"""`leadline replay` and `leadline resume`: decode recorded sessions under every scanner and record what comes out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from leadline.config import RunSpec, load_spec
from leadline.errors import UsageError, explain

INTERRUPTED = 130


def replay(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(help="Directories or files of recorded sessions, or hf:OWNER/NAME.", show_default=False),
    ] = None,
    db: Annotated[
        Path, typer.Option("--db", envvar="LEADLINE_DB", help="Results database; made where it is missing.")
    ] = Path("results.sqlite"),
    config: Annotated[
        Path | None, typer.Option("--config", envvar="LEADLINE_CONFIG", help="TOML file with any field of the run.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Hub id, folder or .gguf file; default: the embedded SmolLM2-135M.")
    ] = None,
    scanner: Annotated[
        list[str] | None, typer.Option("--scanner", help="name:key=value,... or file.py:Name; repeatable.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option("--calibration", help="Artifact of `leadline calibrate`.")] = None,
    view: Annotated[
        Literal["condensed", "full"] | None, typer.Option("--view", help="As the model saw it, or the whole log.")
    ] = None,
    max_context: Annotated[int | None, typer.Option("--max-context", help="Longest prompt plus new tokens.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Selected tokens per query head; default by max-context.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Branch points per session.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", help="Longest branch.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Replay at most this many sessions.")] = None,
    rope: Annotated[str | None, typer.Option("--rope", help="yarn:FACTOR, for contexts past the model's own.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda[:N]; default: a GPU where there is one.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Scanner that paired differences are taken against.")
    ] = None,
    redact: Annotated[
        bool | None, typer.Option("--redact", help="Replace keys, addresses and home paths before anything is stored.")
    ] = None,
    part: Annotated[
        str, typer.Option("--part", envvar="LEADLINE_PART", help="I/N: this process's share of the sessions.")
    ] = "1/1",
) -> None:
    """Replay recorded sessions: one prefill per session, a greedy branch per scanner at each branch point.

    Every further field of a run (chunks, sinks, local window, dense layers, dtype, the declared family and margin)
    stands in the TOML file; every field also has an environment variable LEADLINE_<FIELD>. Run again, it does only what
    is missing.
    """
    flags = {
        "sessions": tuple(map(_absolute, sessions)) if sessions else None,
        "scanners": tuple(scanner) if scanner else None,
        "calibration": str(calibration.resolve()) if calibration else None,
        "model": model,
        "view": view,
        "max_context": max_context,
        "k": k,
        "steps": steps,
        "max_new_tokens": max_new_tokens,
        "limit": limit,
        "rope": rope,
        "device": device,
        "baseline": baseline,
        "redact": redact,
    }
    run(load_spec(flags, config), db, part)


def _absolute(path: str) -> str:
    """A run is resumed from anywhere; data sets on the hub are named, not placed."""
    return path if path.startswith("hf:") else str(Path(path).resolve())


def resume(
    db: Annotated[Path, typer.Argument(help="Results database of the run.")],
    number: Annotated[
        int | None, typer.Option("--run", help="Which run; default: the only one, or the latest.")
    ] = None,
    part: Annotated[
        str, typer.Option("--part", envvar="LEADLINE_PART", help="I/N: this process's share of the sessions.")
    ] = "1/1",
) -> None:
    """Go on with a run: do what its database does not hold yet."""
    from leadline.database import Results

    with Results.open(db) as results:
        runs = results.runs()
        if not runs:
            raise UsageError(explain("there is no run to resume", file=db, do="start one with `leadline replay`"))
        spec = results.spec(runs[-1].id if number is None else number)
    run(spec, db, part)


def run(spec: RunSpec, db: Path, part: str = "1/1") -> None:
    """Run and say what was done; exit 1 where something failed, 130 when interrupted."""
    from leadline.environment import command_line
    from leadline.replaying import WHOLE, Part, resume_command
    from leadline.replaying import replay as go

    share = Part.parse(part)
    try:
        number, outcome = go(spec, db, command_line(), share)
    except KeyboardInterrupt:
        raise interrupted(resume_command(db)) from None
    done = f"run {number}: {outcome.written} branches decoded, {outcome.kept} were there already"
    print(f"{done}, {outcome.failed} failed" if outcome.failed else done)
    if share != WHOLE:
        print(f"this was part {part}; when all are done: {resume_command(db)}")
    print(f"results: {db}\nreport:  {shlex.join(['leadline', 'report', str(db)])}")
    if outcome.failed:
        raise typer.Exit(1)


def interrupted(command: str) -> typer.Exit:
    """Say how to go on after Ctrl-C; the exit to raise."""
    print(f"\ninterrupted; everything decoded so far is kept. Go on with:\n  {command}", file=sys.stderr)
    return typer.Exit(INTERRUPTED)
