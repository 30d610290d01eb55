"""Walks one session's branch points: a single dense prefill, continued from point to point (SPEC section 5).

The K/V rows of a branch point are a prefix of the session's. Where a template or a condensation broke the token prefix,
the rows are rewound to the longest common prefix and prefilled again from there. A resumed run walks through every
earlier point of the full specification, also those that are done, so that its chunks are cut as an uninterrupted run's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import torch

from leadline.model import LoadedModel
from leadline.prefill import extend
from leadline.rows import Rows
from leadline.sessions.render import BranchPoint, common_tokens
from leadline.sessions.tokens import Ids


class PrefixWalker:
    """The rows of one session under one prefill chunk size."""

    def __init__(self, model: LoadedModel, capacity: int, chunk: int, stops: Collection[int]) -> None:
        self._model = model
        self._chunk = chunk
        self._stops = tuple(stops)
        self._held: Ids = np.empty(0, dtype=np.int32)
        self.rows = Rows.for_model(model, capacity)

    def advance(
        self,
        point: BranchPoint,
        on_chunk: Callable[[int], None] | None = None,
        on_rewind: Callable[[int], None] | None = None,
    ) -> int:
        """Bring the rows to the first n - 1 tokens of the point's prompt; returns the position prefill went on from.

        `on_rewind` is called with that position before anything is prefilled, `on_chunk` as in `extend`.
        """
        wanted = point.prompt_ids[:-1]
        common = common_tokens(self._held, wanted)
        self.rows.rewind(common)
        if on_rewind is not None:
            on_rewind(common)
        prompt = torch.from_numpy(wanted.astype(np.int64))
        extend(self._model, self.rows, prompt, len(wanted), chunk=self._chunk, stops=self._stops, on_chunk=on_chunk)
        self._held = wanted
        return common
