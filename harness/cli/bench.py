"""`leadline bench decode`: how long a decode step takes under every scanner, on synthetic contents of any length."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline.bench.records import DecodeSpec, DecodeTime, Regime, Transfer
from leadline.errors import UsageError, explain
from leadline.records import Environment

app = typer.Typer(no_args_is_help=True, help="Timings without a model's weights or a prefill.")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


@app.callback()
def _bench() -> None:
    """Timings without a model's weights or a prefill."""


@app.command()
def decode(
    shape: Annotated[str, typer.Option(help="qwen3-8b, llama-3.1-8b, qwen2.5-coder-1.5b or tiny.")] = "qwen3-8b",
    context: Annotated[str, typer.Option(help="Tokens a step sees, separated by commas.")] = "128k,256k,512k,1M",
    scanner: Annotated[
        list[str] | None, typer.Option("--scanner", help="name:key=value,...; repeatable. Default: ten scanners.")
    ] = None,
    placement: Annotated[
        Regime, typer.Option(help="Rows and indexes in host memory, rows alone, or neither.")
    ] = "host",
    transfer: Annotated[
        Transfer, typer.Option(help="The scan kernel reads over the link itself, or a copy is staged before it.")
    ] = "fused",
    batch: Annotated[int, typer.Option(min=1, help="Sequences of equal length.")] = 1,
    k: Annotated[int, typer.Option("--k", min=1, help="Selected tokens per query head.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each scanner, each with its own queries.")] = 10,
    seed: Annotated[int, typer.Option(help="Of weights, contents and queries.")] = 0,
    distinct: Annotated[
        int | None, typer.Option(min=1, help="Layers whose rows and indexes are stored; default: what memory holds.")
    ] = None,
    db: Annotated[Path | None, typer.Option("--db", help="Results database; made where it is missing.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="JSON file to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Time one decode step of every scanner, GPU time by stage and wall-clock, with the bytes it reads.

    Weights are random, keys and queries synthetic (SPEC section 8); the scanners' own plans decide what is read. Prints
    the published figures beside ours. Needs an NVIDIA GPU.
    """
    spec = DecodeSpec(
        shape=shape,
        contexts=parse_contexts(context),
        scanners=tuple(scanner or ()),
        placement=placement,
        transfer=transfer,
        batch=batch,
        k=k,
        steps=steps,
        seed=seed,
        distinct=distinct,
    )
    if out is not None and not out.parent.is_dir():
        raise UsageError(explain("no such directory", file=out.parent, do="create it, or name another file"))
    _run(spec, db, out, as_json)


def parse_contexts(text: str) -> tuple[int, ...]:
    """ "128k,1M" -> (131072, 1048576). UsageError for what is no length."""
    found = []
    for part in text.split(","):
        digits = part.strip().rstrip("kKmM")
        unit = part.strip()[len(digits) :].lower()
        if not digits.isascii() or not digits.isdigit() or unit not in _UNITS or int(digits) == 0:
            raise UsageError(
                explain(
                    "not a context length", field="context", found=repr(part), expected="such as 131072, 128k or 1M"
                )
            )
        found.append(int(digits) * _UNITS[unit])
    return tuple(dict.fromkeys(found))


def _run(spec: DecodeSpec, db: Path | None, out: Path | None, as_json: bool) -> None:
    from leadline.bench import storage
    from leadline.bench.decode import completed, require_gpu, run
    from leadline.bench.printing import print_context, print_published
    from leadline.bench.shapes import find
    from leadline.database import Results
    from leadline.environment import capture, command_line

    find(spec.shape)
    spec = completed(spec)
    device = require_gpu()
    environment = capture(str(device))
    command = command_line()
    results = None if db is None else Results.open(db, create=True)
    times: list[DecodeTime] = []
    try:
        measurement = None if results is None else results.start_measurement(storage.KIND, spec, environment, command)
        for found in run(spec, lambda text: print(text, file=sys.stderr, flush=True)):
            times += found
            if results is not None and measurement is not None:
                storage.save(results, measurement, found)
            if out is not None:
                _write(out, document(spec, environment, command, times))
            if not as_json:
                print_context(found, environment)
        if results is not None and measurement is not None:
            results.finish_measurement(measurement)
    finally:
        if results is not None:
            results.close()
    if as_json:
        print(json.dumps(document(spec, environment, command, times), indent=1))
    else:
        print_published(times, environment)


def _write(path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UsageError(
            explain("cannot write the figures", file=path, found=error.strerror, do="name another file")
        ) from None


def document(spec: DecodeSpec, environment: Environment, command: str, times: Sequence[DecodeTime]) -> dict[str, Any]:
    """Everything an invocation found, as JSON values."""
    from leadline.bench.comparing import beside_published, ratios

    return {
        "command": command,
        "spec": spec.model_dump(mode="json"),
        "environment": environment.model_dump(mode="json"),
        "times": [time.model_dump(mode="json") for time in times],
        "ratios": [ratio.model_dump(mode="json") for ratio in ratios(times)],
        "beside_published": [row.model_dump(mode="json") for row in beside_published(times)],
    }
