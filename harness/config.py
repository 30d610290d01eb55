"""The specification of a run: everything that decides its numbers, frozen and hashed before any work starts.

`RunSpec` splits in two: the *protocol* (model, view, k, budgets of context and decode, chunks, declared comparisons) is
the identity of a run in a results database; sessions and scanners may be added to a run later without redoing any of it.
Values come from a TOML file, then `LEADLINE_*` environment variables, then flags, each overriding the one before.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_SCANNERS = (
    "exact",
    "dense",
    "fathom:budget=40",
    "fathom:budget=48",
    "fathom:budget=64",
    "fathom:budget=80",
    "fathom:budget=48,basis=rotated",
    "fathom:budget=48,statistics=session",
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "thumbnail",
    "landmarks",
    "quest",
    "streaming",
)


def default_k(max_context: int) -> int:
    """The selected tokens per query head for a run's longest context: one constant per run (SPEC section 3)."""
    for limit, k in ((4096, 128), (16384, 256), (32768, 512)):
        if max_context <= limit:
            return k
    return 2048


class RunSpec(BaseModel):
    """One run of `leadline replay`.

    `k` counts sinks and local tokens too. `family` lists the declared comparisons as (scanner label, baseline label);
    empty means every scanner against `baseline`. `margin` is the equivalence margin in agreement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sessions: tuple[str, ...]
    scanners: tuple[str, ...] = DEFAULT_SCANNERS
    limit: int | None = Field(default=None, ge=1)

    model: str = "embedded"
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    rope: str | None = None
    calibration: str | None = None
    view: Literal["condensed", "full"] = "condensed"
    max_context: int = Field(default=8192, ge=256)
    k: int | None = Field(default=None, ge=1)
    sink: int = Field(default=4, ge=0)
    local: int = Field(default=32, ge=0)
    steps: int = Field(default=2, ge=1)
    max_new_tokens: int = Field(default=64, ge=1)
    prefill_chunk: int = Field(default=512, ge=1)
    noise_chunk: int = Field(default=384, ge=0)
    dense_layers: tuple[int, ...] = ()
    baseline: str = "sparq:r=16"
    family: tuple[tuple[str, str], ...] = ()
    margin: float = Field(default=0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        k = self.selected
        if k <= self.sink + self.local:
            raise ValueError(f"k={k} must be larger than sink + local = {self.sink + self.local}, which it counts")
        if self.noise_chunk == self.prefill_chunk:
            raise ValueError(f"noise_chunk={self.noise_chunk} must differ from prefill_chunk; 0 runs no noise floor")
        if self.max_context <= self.max_new_tokens:
            raise ValueError(f"max_context={self.max_context} leaves no room for max_new_tokens={self.max_new_tokens}")
        return self

    @property
    def selected(self) -> int:
        """k, or its default for this max_context."""
        return self.k if self.k is not None else default_k(self.max_context)

    @property
    def protocol(self) -> dict[str, Any]:
        """The part that identifies a run: all but sessions, scanners and limit, with k resolved."""
        values = self.model_dump(mode="json", exclude={"sessions", "scanners", "limit"})
        values["k"] = self.selected
        return values

    @property
    def protocol_sha256(self) -> str:
        text = json.dumps(self.protocol, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
