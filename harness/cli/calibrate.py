"""`leadline calibrate`: key and query statistics of a model on text, for the scanners that need them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    model: Annotated[str, typer.Argument(help="Hub id, folder or .gguf file, or `embedded`.")],
    text: Annotated[
        Path, typer.Option("--text", help="A text file, or a directory of sessions that will not be replayed.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Artifact to write (.safetensors; its provenance lies beside it as .json).")
    ],
    length: Annotated[
        int, typer.Option("--length", help="Tokens of a window: the context length it will be used at.")
    ] = 4096,
    rope: Annotated[str | None, typer.Option("--rope", help="yarn:FACTOR, as in the replay.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda[:N].")] = None,
) -> None:
    """Measure key variance, covariance and query moments on text, and write them as an artifact."""
    from leadline.calibrating import calibrate as measure
    from leadline.calibrating import windows
    from leadline.model import load_model
    from leadline.scanners.calibration import save

    loaded = load_model(model, device=device, rope=rope)
    texts = windows(loaded, text, length)
    layers, provenance = measure(loaded, texts, length, str(text))
    save(out, layers, provenance)
    print(f"calibration: {out}")
    print(f"{provenance.windows} windows, {provenance.positions} positions, {len(layers)} layers of {provenance.model}")
