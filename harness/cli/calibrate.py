"""`leadline calibrate`: key and query statistics of a model on text, and what they decide about its store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leadline.errors import UsageError, explain

if TYPE_CHECKING:
    from leadline.scanners.calibration import Provenance

LIBRARY_WINDOWS = 4


def calibrate(
    model: Annotated[str, typer.Argument(help="Hub id, folder or .gguf file, or `embedded`.")],
    out: Annotated[
        Path, typer.Option("--out", help="Artifact to write (.safetensors; its provenance lies beside it as .json).")
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            help="A text file, or a directory of text files or of sessions that will not be replayed; default: sources "
            "of Python's standard library.",
        ),
    ] = None,
    length: Annotated[
        int, typer.Option("--length", min=64, help="Tokens of a window: the context length it will be used at.")
    ] = 4096,
    most: Annotated[
        int | None,
        typer.Option("--windows", min=1, help="Stop reading text at this many windows of the full length."),
    ] = None,
    plans: Annotated[
        str, typer.Option("--plans", help="Mean budgets of per-layer plans, as 48,64; `none` makes none.")
    ] = "48,64",
    basis: Annotated[
        bool, typer.Option("--basis/--no-basis", help="Measure both stores and record which one is better.")
    ] = True,
    k: Annotated[
        int | None, typer.Option("--k", help="Selected tokens of the measurements; default by --length.")
    ] = None,
    rope: Annotated[str | None, typer.Option("--rope", help="yarn:FACTOR, as in the replay.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda[:N].")] = None,
) -> None:
    """Measure key and query statistics on text; choose the store and per-layer budgets on a held-out part of it."""
    from leadline.calibrating import calibrate as measure
    from leadline.calibrating import windows
    from leadline.config import default_k
    from leadline.fidelity.deciding import decide
    from leadline.fidelity.standard_text import library_windows
    from leadline.model import load_model
    from leadline.scanners.calibration import save
    from leadline.scanners.decisions import check_means

    means = _means(plans)
    check_means(means, 1)
    if means and not basis:
        raise UsageError(
            explain("per-layer plans are made with the basis", field="--plans", found=plans, expected="none")
        )
    loaded = load_model(model, device=device, rope=rope)
    if text is None:
        texts = library_windows(loaded.tokenizer, length, most or LIBRARY_WINDOWS, "calibration")
    else:
        texts = windows(loaded, text, length, most)
    layers, provenance = measure(loaded, texts, length, "standard library" if text is None else str(text))
    if basis:
        chosen = default_k(length) if k is None else k
        decisions = decide(loaded, texts, means=means, k=chosen, tell=lambda line: print(line, file=sys.stderr))
        provenance = provenance.model_copy(update={"decisions": decisions})
    save(out, layers, provenance)
    print(f"calibration: {out}")
    print(f"{provenance.windows} windows, {provenance.positions} positions, {len(layers)} layers of {provenance.model}")
    for line in decided(provenance):
        print(line)


def decided(provenance: Provenance) -> list[str]:
    """What was decided, in a line each."""
    found = provenance.decisions
    if found is None:
        return []
    held = f"{len(found.held_out)} held-out windows, k = {found.k}"
    errors = [
        f"{budget} bits: raw {raw:.4f}, rotated {rotated:.4f}"
        for budget, raw, rotated in zip(found.basis.budgets, found.basis.raw, found.basis.rotated, strict=True)
        if budget in (48, 64)
    ]
    lines = [f"basis: {found.basis.choice} (attention error on {held}; {'; '.join(errors)})"]
    lines += [
        f"per-layer plan, mean {plan.mean}, {path.basis} store: error {plan.error:.4f}, flat {plan.flat_error:.4f}; "
        f"budgets {' '.join(map(str, plan.budgets))}"
        for path in found.paths
        for plan in path.plans
    ]
    return lines


def _means(plans: str) -> tuple[int, ...]:
    if plans.strip().lower() == "none":
        return ()
    try:
        return tuple(int(part) for part in plans.split(","))
    except ValueError:
        raise UsageError(
            explain("not a list of budgets", field="--plans", found=plans, expected="48,64 or none")
        ) from None
