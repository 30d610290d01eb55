"""`leadline plan`: the dry run of a replay, printed before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from leadline.plan_records import RunPlan
    from leadline.planning import Given

_GIB = 1 << 30


def plan(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(help="Directories or files of recorded sessions, or hf:OWNER/NAME.", show_default=False),
    ] = None,
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
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda[:N]; default: a GPU where there is one.")
    ] = None,
    placement: Annotated[
        Literal["device", "rows-host", "host"] | None,
        typer.Option("--placement", help="Where stores and rows lie: GPU memory, rows on the host, both there."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option("--rates", metavar="LINK,MEMORY", help="GB/s of the link and of GPU memory to predict for."),
    ] = None,
    like: Annotated[
        Path | None, typer.Option("--like", help="Results database whose measured times predict this run's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what `leadline replay` with the same options would do: branch points, bytes, memory, time. No weights are
    loaded.

    Exits 3 where the memory would not be enough. Further fields of a run stand in the TOML file, as for a replay.
    """
    from leadline.config import load_spec
    from leadline.errors import MachineError, explain
    from leadline.planning import plan as work_out

    flags = {
        "sessions": tuple(sessions) if sessions else None,
        "scanners": tuple(scanner) if scanner else None,
        "calibration": str(calibration.resolve()) if calibration else None,
        "model": model,
        "view": view,
        "max_context": max_context,
        "k": k,
        "steps": steps,
        "max_new_tokens": max_new_tokens,
        "limit": limit,
        "device": device,
        "placement": placement,
    }
    found = work_out(load_spec(flags, config), _given(rates, like))
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        _print(found)
    if found.memory.shortages:
        raise MachineError(
            explain(
                "the run does not fit the memory",
                found="; ".join(found.memory.shortages),
                expected="weights, rows and stores of the longest session at once",
                do="lower --max-context, leave out scanners with stores of their own, or choose another --placement",
            )
        )


def _given(rates: str | None, like: Path | None) -> Given:
    from leadline.errors import UsageError, explain
    from leadline.planning import Given

    if rates is None:
        return Given(like=like)
    try:
        link, memory = (float(part) for part in rates.split(","))
    except ValueError:
        link = memory = 0.0
    if not (0 < link < float("inf") and 0 < memory < float("inf")):
        raise UsageError(
            explain("the rates cannot be read", field="--rates", found=repr(rates), expected="LINK,MEMORY, as 55,3900")
        )
    return Given(link, memory, like)


def _print(found: RunPlan) -> None:
    from collections import Counter

    from leadline.cli.session_output import add, console, table

    show = console()
    sessions = table("session", right=("steps", "points", "prompt tokens", "prefilled"))
    for session in found.sessions:
        tokens = ", ".join(str(point.prompt_tokens) for point in session.points)
        new = sum(point.prefilled_tokens for point in session.points)
        add(sessions, session.id, session.steps, len(session.points), tokens, new)
    show.print(sessions)
    for reason, count in Counter(_kind(one.reason) for one in found.exclusions).items():
        print(f"left out: {count} x {reason}")
    print()
    scanners = table(
        "scanner", "bits from", right=("bits", "branches", "scan MB", "rows MB", "step MB", "store GiB", "GPU ms")
    )
    for one in found.scanners:
        shared = one.index_shared_with
        store = "as " + shared if shared else f"{one.index_bytes / _GIB:.3f}" if one.index_bytes else "-"
        ms = "-" if one.gpu_ms_per_step is None else f"{one.gpu_ms_per_step:.2f}"
        sizes = (one.scan_bytes_per_step, one.row_bytes_per_step, one.bytes_per_step)
        cells = (f"{size / 1e6:.2f}" for size in sizes)
        add(scanners, one.label, one.bits_from, f"{one.bits_per_token:.1f}", one.branches, *cells, store, ms)
    show.print(scanners)
    print(
        f"\nper decode step at {found.longest_prompt_tokens} tokens, k = {found.k}, {found.union_rows} rows a KV head; "
        f"weights {found.weight_bytes_per_step / 1e6:.0f} MB of it; rates: {_rates(found)}"
    )
    memory = found.memory
    print(
        f"model:    {found.model} in {found.dtype} on {found.device}, {found.layers} layers, {found.kv_heads} x "
        f"{found.query_heads_per_kv_head} heads of {found.head_dim}\n"
        f"memory:   weights {memory.weight_bytes / _GIB:.2f} GiB, K/V rows {memory.rows_bytes / _GIB:.2f} GiB, "
        f"stores {memory.index_bytes / _GIB:.2f} GiB, rows on the host {memory.row_store_bytes / _GIB:.2f} GiB\n"
        f"          on the model's device {_of(memory.device_bytes, memory.device_available_bytes)}, "
        f"pinned on the host {_of(memory.host_bytes, memory.host_available_bytes)}\n"
        f"work:     {found.branch_points} branch points, {found.branches} branches of up to {found.max_new_tokens} "
        f"tokens, {found.prefill_tokens} tokens of prefill\n"
        f"time:     about {_duration(found.seconds)} ({found.seconds_from})"
    )


def _kind(reason: str) -> str:
    """A reason without the numbers of one step, so that like ones are counted together."""
    if reason.startswith("prompt of "):
        return "step, prompt" + reason.partition("tokens")[2]
    head, _, tail = reason.partition(" + ")
    return f"step, prompt + {tail}" if head.isdigit() else reason


def _rates(found: RunPlan) -> str:
    rates = found.rates
    if rates.link_gb_per_second is None or rates.memory_gb_per_second is None:
        return f"{rates.source}, so no GPU time"
    return f"{rates.link_gb_per_second:.1f} and {rates.memory_gb_per_second:.0f} GB/s ({rates.source})"


def _of(needed: int, there: int | None) -> str:
    room = "an unknown amount" if there is None else f"{there / _GIB:.2f} GiB"
    return f"{needed / _GIB:.2f} of {room}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
