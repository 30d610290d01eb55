"""What a model must be before a number is taken from it: an accepted architecture, plain attention, sensible output."""

from __future__ import annotations

import math
from typing import Any

import torch

from leadline import rope
from leadline.errors import UsageError, explain

ACCEPTED_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

# Text any language model predicts well: 4.5 to 5.4 per token for three real models of 135M to 500M parameters, 25 and
# more for each of them with one layer's weights lost or its query rows in the wrong order.
_PLAIN_TEXT = (
    "The sun rises in the east and sets in the west. Water freezes at zero degrees Celsius and boils at one hundred "
    "degrees Celsius. "
    "There are seven days in a week: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."
)
_HIGHEST_PERPLEXITY = 20.0


def check_type(model_type: object, source: object) -> None:
    """UsageError unless the architecture is one whose attention is known to pass through the hook unchanged."""
    if model_type not in ACCEPTED_TYPES:
        raise UsageError(
            explain(
                "models of this architecture are not supported",
                file=source,
                field="model_type",
                found=repr(model_type),
                expected=" or ".join(ACCEPTED_TYPES),
                do="choose a text model of the Llama, Mistral, Qwen2, Qwen3 or Gemma 3 family",
            )
        )


def check_config(config: Any, source: object) -> None:
    """UsageError for an architecture, a score function or positions that exact top-k attention could not reproduce."""
    check_type(config.model_type, source)
    known = config.to_dict()
    refused = [name for name in ("attn_logit_softcapping", "final_logit_softcapping") if known.get(name) is not None]
    refused += [name for name in ("use_bidirectional_attention",) if known.get(name)]
    refused += [name for name in known if "sink" in name and known[name]]
    if refused:
        raise UsageError(
            explain(
                "the model's attention is not a plain causal softmax",
                file=source,
                field=refused[0],
                found=repr(known[refused[0]]),
                expected="no soft cap, no attention sink, no bidirectional attention",
                do="choose another model",
            )
        )
    rope.check(config, source)


def scanned_layers(config: Any, source: object) -> tuple[int, ...]:
    """The layers that attend to the whole context. Sliding-window layers keep their own attention and are not scanned.

    A model with none of the former is a UsageError: there would be nothing to compare.
    """
    count = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if slides else "full_attention"] * count
    found = tuple(layer for layer in range(count) if kinds[layer] == "full_attention")
    if not found:
        raise UsageError(
            explain(
                "every layer of the model has a sliding window, so no layer can be scanned",
                file=source,
                field="sliding_window",
                found=repr(getattr(config, "sliding_window", None)),
                expected="at least one layer of full attention",
                do="choose a model, or a version of this one, with full attention",
            )
        )
    return found


@torch.no_grad()
def check_output(network: Any, tokenizer: Any, source: object) -> float:
    """Perplexity per token of a plain English text; a UsageError if it is not finite or above any sound model's.

    This catches weights that were read wrongly (other order, other convention, missing), which nothing else shows.
    """
    device = next(network.parameters()).device
    ids = torch.tensor([tokenizer(_PLAIN_TEXT).input_ids], device=device)
    logits = network(input_ids=ids, use_cache=False).logits[0].float()
    loss = float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]))
    perplexity = math.exp(loss) if math.isfinite(loss) and loss < 700 else math.inf
    if not torch.isfinite(logits).all() or perplexity > _HIGHEST_PERPLEXITY:
        raise UsageError(
            explain(
                "the model does not predict plain English text, so its weights were not read as they were meant",
                file=source,
                field="perplexity of a fixed text",
                found=f"{perplexity:.4g}",
                expected=f"at most {_HIGHEST_PERPLEXITY:g} (sound models: about 5)",
                do="check that file and tokenizer belong together, and try another conversion of the model",
            )
        )
    return perplexity
