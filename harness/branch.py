"""One branch from a branch point: greedy decoding under an attention, or a given text fed through it (SPEC section 5).

Both start from rows that hold the first n - 1 prompt tokens and leave them as they were: the prompt's last token is the
first decode step, so every generated token, the first included, is decided under the scanner.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.attention import Attend, forward
from leadline.model import LoadedModel
from leadline.rows import Rows


@dataclass(frozen=True)
class Decoded:
    """What greedy decoding gave: tokens without the stop token, top-1/top-2 logit margin and seconds of every step."""

    tokens: tuple[int, ...]
    stop_token: int | None
    margins: tuple[float, ...]
    step_seconds: tuple[float, ...]
    cpu_seconds: float

    @property
    def stopped(self) -> bool:
        """Whether the branch ended its turn before max_new_tokens."""
        return self.stop_token is not None

    @property
    def text_with_stop(self) -> tuple[int, ...]:
        """The tokens, and the stop token where one was reached."""
        return (*self.tokens, self.stop_token) if self.stop_token is not None else self.tokens


@torch.no_grad()
def decode(
    model: LoadedModel,
    rows: Rows,
    last_token: int,
    attend: Attend | None,
    *,
    max_new_tokens: int,
    stop: Collection[int],
) -> Decoded:
    """Greedy decoding (argmax of raw logits) of up to `max_new_tokens` from rows of n - 1 tokens and the n-th token."""
    start = rows.length
    tokens: list[int] = []
    margins: list[float] = []
    seconds: list[float] = []
    stop_token: int | None = None
    token = last_token
    cpu = time.process_time()
    try:
        for _ in range(max_new_tokens):
            begun = time.perf_counter()
            logits = forward(model, torch.tensor([token], device=model.device), rows, attend=attend)[0]
            best = logits.topk(2).values
            token = int(logits.argmax())
            margins.append(float(best[0] - best[1]))
            seconds.append(time.perf_counter() - begun)
            if token in stop:
                stop_token = token
                break
            tokens.append(token)
    finally:
        rows.rewind(start)
    return Decoded(tuple(tokens), stop_token, tuple(margins), tuple(seconds), time.process_time() - cpu)


@torch.no_grad()
def teacher_force(
    model: LoadedModel, rows: Rows, last_token: int, text: Sequence[int], attend: Attend | None
) -> Tensor:
    """Log-probabilities `[T, V]` (fp32) of every position of `text` (T tokens), in one causal pass.

    Row i predicts text[i] from the prompt and text[:i]; every position has its own plan and selection.
    """
    start = rows.length
    ids = torch.tensor([last_token, *text[:-1]], device=model.device)
    try:
        return torch.log_softmax(forward(model, ids, rows, attend=attend, logits="all").float(), dim=-1)
    finally:
        rows.rewind(start)


def divergence(base: Tensor, other: Tensor) -> Tensor:
    """KL(base || other) of log-probabilities `[T, V]`, nats per token `[T]`, accumulated in fp64."""
    return (base.exp() * (base - other)).sum(-1, dtype=torch.float64).clamp(min=0)
