"""The protocol of a run in words: its parameters, and every choice made where the method's sources are silent.

A reader can redo the numbers from this list alone; each line names what it decides.
"""

from __future__ import annotations

from leadline.config import PRIMARY_PAIRS, RunSpec
from leadline.records import ModelRecord
from leadline.reports.stats import ALPHA, FLIPS

CHOICES = (
    (
        "keys",
        "A block whose largest |key| in a channel is 0, or below fp32's normal range, gets code 8 there; above 65504 "
        "is an error.",
    ),
    (
        "tail",
        "The last 1 to 64 prompt tokens and every generated token stay in model precision for every scanner alike; "
        "they are scored on the plan's channels or coordinates, by q.k where a plan has none. Their bytes are "
        "the tail, not part of b.",
    ),
    ("budget", "Budgets are given per 128 channels and scale with head_dim / 128."),
    (
        "plan",
        "Fathom's depths come from sorting the marginal values in fp32; the water line stands above the first that "
        "does not fit, and what equals it stays out.",
    ),
    ("ties", "Every top-r and top-k breaks ties to the smallest index."),
    (
        "first token",
        "Prefill is dense over all but the last prompt token; that token is the first decode step under the scanner, "
        "so every generated token is decided by sparse attention.",
    ),
    (
        "agreement",
        "2 * LCS(words) / (sum of lengths) on whitespace-separated words of the text without its end of turn; both "
        "empty gives 1, one empty gives 0. The reference is exact top-k.",
    ),
    (
        "teacher-forced",
        "KL in nats per token from fp32 softmax, every position with its own plan and selection; the recorded text is "
        "cut at max_new_tokens.",
    ),
    (
        "degenerate",
        "A step is repeating where some 8-token window occurs 3 times or more; a session is flagged where more than "
        "half of its dense steps are empty or repeating. Flagged sessions stay in the means.",
    ),
    (
        "unit",
        "Sessions that share a source are one unit; its value is the mean over its steps. Intervals are 95% Student t "
        "over units.",
    ),
    (
        "p",
        "Two-sided sign-flip permutation test over units: all flips up to 16 non-zero differences, else "
        f"{FLIPS:,} flips with seed 0; Holm-adjusted over the declared family, one family per metric.",
    ),
)


def verdict_rule(margin: float) -> str:
    """The rule behind the four verdicts, in one sentence."""
    return (
        "better or worse: the 95% t interval of the difference excludes 0 and the p (Holm-adjusted in the declared "
        f"family) is at most {ALPHA}; else equivalent: two one-sided t tests put the difference inside ±{margin:g} at "
        f"{ALPHA} (the 90% interval lies inside the margin); else inconclusive."
    )


def protocol(spec: RunSpec, model: ModelRecord) -> list[tuple[str, str]]:
    """The parameters that identify the run, as (name, value); nothing that decides a number is left out."""
    family = "; ".join(f"{a} against {b}" for a, b in spec.family)
    primary = "; ".join(f"{a} against {b}" for a, b in PRIMARY_PAIRS)
    family = family or f"{primary}, where both take part; where none do, every scanner against {spec.baseline}"
    heads = f"{model.query_heads} query heads, {model.kv_heads} KV heads, head_dim {model.head_dim}"
    scanned = len(model.scanned_layers)
    layers = "all" if scanned == model.layers else f"{scanned} of {model.layers}: {_list(model.scanned_layers)}"
    ranked = spec.selected - spec.sink - spec.local
    return [
        ("model", f"{model.id} ({model.architecture}, {model.layers} layers, {heads})"),
        ("scanned layers", layers),
        ("dense layers asked for", _list(spec.dense_layers) or "none"),
        ("dtype, device", f"{model.dtype}, {model.device}"),
        ("rope", model.rope or "the model's own"),
        ("weights sha256", model.weights_sha256),
        ("chat template sha256", model.template_sha256),
        ("calibration", spec.calibration or "the model's bundled artifact, where it has one"),
        ("k (sink + local + ranked)", f"{spec.selected} ({spec.sink} + {spec.local} + {ranked})"),
        ("max context, max new tokens", f"{spec.max_context}, {spec.max_new_tokens}"),
        ("steps per session", f"{spec.steps}, spread evenly over the eligible ones (n >= 8k, within max context)"),
        ("view", spec.view),
        ("prefill chunk; noise floor's", f"{spec.prefill_chunk}; {spec.noise_chunk or 'none'}"),
        ("placement while a GPU decodes", f"{spec.placement}; {spec.timed_steps or 'no'} timed steps a branch"),
        ("decoding", "greedy, argmax of raw logits; every step starts from the recorded context"),
        ("baseline", spec.baseline),
        ("declared family", family),
        ("equivalence margin", f"±{spec.margin:g} in agreement"),
    ]


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(str(value) for value in values)
