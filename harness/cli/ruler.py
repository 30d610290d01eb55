"""`leadline ruler`: six RULER-style tasks at one length, answered under every scanner from one prefill a sample."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline.errors import UsageError, explain


def ruler(
    model: Annotated[str, typer.Argument(help="Hub id, folder or .gguf file, or `embedded`.")] = "embedded",
    length: Annotated[int, typer.Option("--length", help="Tokens of a prompt, chat template included.")] = 4096,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="single-needle,multi-key,multi-value,multi-query,variable-tracking,frequent-words."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="Prompts of every task.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Decides every prompt.")] = 0,
    scanner: Annotated[
        list[str] | None, typer.Option("--scanner", help="name:key=value,... or file.py:Name; repeatable.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Selected tokens per query head; default by length.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.")] = 96,
    calibration: Annotated[Path | None, typer.Option("--calibration", help="Artifact of `leadline calibrate`.")] = None,
    db: Annotated[
        Path, typer.Option("--db", envvar="LEADLINE_DB", help="Results database; made where it is missing.")
    ] = Path("results.sqlite"),
    rope: Annotated[str | None, typer.Option("--rope", help="yarn:FACTOR, for lengths past the model's own.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda[:N]; default: a GPU where there is one.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Find, follow and count things in a long text: scores of dense, exact top-k and every scanner, dense first.

    Prompts are made offline and seeded. Run again, it asks only what is missing; more samples, tasks or scanners add to
    what is there.
    """
    from leadline.database import Results
    from leadline.environment import command_line
    from leadline.reports.ruler_scores import ruler_scores
    from leadline.ruler.running import run

    spec = _spec(
        {
            "model": model,
            "length": length,
            "tasks": tuple(part.strip() for part in task.split(",") if part.strip()) if task is not None else None,
            "samples": samples,
            "seed": seed,
            "scanners": tuple(scanner) if scanner else None,
            "k": k,
            "max_new_tokens": max_new_tokens,
            "calibration": str(calibration.resolve()) if calibration else None,
            "rope": rope,
            "device": device,
            "dtype": dtype,
        }
    )
    command = command_line()
    try:
        outcome = run(spec, db, command)
    except KeyboardInterrupt:
        print(f"\ninterrupted; every answer so far is kept. Go on with:\n  {command}", file=sys.stderr)
        raise typer.Exit(130) from None
    with Results.open(db, read_only=True) as results:
        found = ruler_scores(results, outcome.protocol)
    done = f"{outcome.written} answers decoded, {outcome.kept} were there already"
    print(f"{done}, {outcome.failed} failed" if outcome.failed else done, file=sys.stderr)
    if as_json:
        from leadline.reports.json_report import plain

        print(json.dumps([plain(scores) for scores in found], indent=2, allow_nan=False))
    else:
        from leadline.reports.ruler_tables import ruler as tables
        from leadline.reports.text_table import text_table

        print("\n\n".join(text_table(table) for table in tables(found)))
    if outcome.failed:
        raise typer.Exit(1)


def _spec(flags: dict[str, Any]) -> Any:
    """The specification of these flags; those that are None were not given. UsageError naming what is wrong."""
    from pydantic import ValidationError

    from leadline.ruler.records import RulerSpec

    try:
        spec = RulerSpec.model_validate({name: value for name, value in flags.items() if value is not None})
        _ = spec.run
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        found = first.get("input") if field else None
        raise UsageError(explain(f"the tasks cannot be set up: {first['msg']}", field=field, found=found)) from None
    return spec
