"""Rotary position settings of a model: which kinds are accepted, how a context is stretched, how they are recorded.

Keys are stored after RoPE, so the frequencies must not change while the rows of one sequence fill: a kind whose base
depends on the current length ("dynamic", "longrope") would mix frequencies in a chunked prefill and is refused.
"""

from __future__ import annotations

import math
from typing import Any

from leadline.errors import UsageError, explain

ACCEPTED_KINDS = ("default", "linear", "llama3", "yarn")
_STRETCHABLE = ("default", "yarn")


def parse(text: str) -> float:
    """The factor of a `yarn:FACTOR` option, a finite number above 1. Anything else is a UsageError."""
    kind, _, number = text.partition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if kind != "yarn" or not math.isfinite(factor) or factor <= 1:
        raise UsageError(
            explain(
                "cannot use this RoPE setting",
                field="rope",
                found=repr(text),
                expected="yarn:FACTOR with a finite FACTOR above 1, for example yarn:2",
                do="leave it out to keep the model's own positions",
            )
        )
    return factor


def settings(config: Any) -> dict[str, dict[str, Any]]:
    """The RoPE parameters by layer type; a model with one set for all layers has the single key "full_attention"."""
    parameters: dict[str, Any] = config.rope_parameters
    if any(isinstance(value, dict) for value in parameters.values()):
        return {kind: value for kind, value in parameters.items() if value is not None}
    return {"full_attention": parameters}


def check(config: Any, source: object) -> None:
    """Refuse (UsageError) a model whose frequencies depend on the length of the sequence so far."""
    for layer_type, parameters in settings(config).items():
        if parameters["rope_type"] not in ACCEPTED_KINDS:
            raise UsageError(
                explain(
                    "the model's positions are of a kind that a chunked prefill cannot serve",
                    file=source,
                    field=f"rope_parameters ({layer_type})",
                    found=repr(parameters["rope_type"]),
                    expected=" or ".join(ACCEPTED_KINDS),
                    do="set rope_type to default or yarn in the model's config.json",
                )
            )


def stretch(config: Any, factor: float, source: object) -> None:
    """Set YaRN with `factor` on the layers that see the whole context, in place; theta and the original length stay.

    Sliding-window layers keep their own positions: the distances they see do not grow. The accepted length becomes
    factor times the original one. A model with another scaling already in place is a UsageError.
    """
    parameters = settings(config)["full_attention"]
    if parameters["rope_type"] not in _STRETCHABLE:
        raise UsageError(
            explain(
                "the model's positions are already scaled in another way",
                file=source,
                field="rope",
                found=f"rope_type {parameters['rope_type']!r}",
                expected=" or ".join(_STRETCHABLE),
                do="leave the RoPE option out for this model",
            )
        )
    original = int(parameters.get("original_max_position_embeddings") or config.max_position_embeddings)
    stretched = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "rope_theta": parameters["rope_theta"],
    }
    nested = parameters is not config.rope_parameters
    config.rope_parameters = {**config.rope_parameters, "full_attention": stretched} if nested else stretched
    config.max_position_embeddings = int(original * factor)


def describe(config: Any, factors: bool = False) -> str:
    """One line that tells two settings apart: the kind and every parameter, by layer type where they differ.

    `factors` says that per-frequency factors of a GGUF file divide the frequencies on top.
    """
    lines = []
    for layer_type, parameters in sorted(settings(config).items()):
        rest = (f"{name}={value:g}" for name, value in sorted(parameters.items()) if isinstance(value, int | float))
        lines.append((layer_type, " ".join([parameters["rope_type"], *rest])))
    text = lines[0][1] if len(lines) == 1 else "; ".join(f"{kind}: {line}" for kind, line in lines)
    return text + " + frequency factors" if factors else text
