"""The model shapes whose decode step is timed: sizes alone, since random weights take as long as trained ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from leadline.errors import UsageError, explain


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder-only model; `bias` on the joint projection, `tied` where the head is the embedding."""

    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    theta: float
    eps: float = 1e-6
    qk_norm: bool = False
    bias: bool = False
    tied: bool = False

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query_heads // self.kv_heads

    def row_bytes(self, element_size: int) -> int:
        """Bytes of one token's K and V in one layer, all KV heads."""
        return 2 * self.kv_heads * self.head_dim * element_size


_ALL = (
    Shape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 1e6, qk_norm=True),
    Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 5e5, eps=1e-5),
    Shape("qwen2.5-coder-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 1e6, bias=True, tied=True),
    Shape("tiny", 3, 64, 4, 2, 64, 96, 320, 1e4, qk_norm=True),
)
SHAPES = {shape.name: shape for shape in _ALL}


def find(name: str) -> Shape:
    """The shape of this name. UsageError for another, with what was meant."""
    if name in SHAPES:
        return SHAPES[name]
    near = difflib.get_close_matches(name, SHAPES, n=1)
    what = f"there is no shape {name!r}." + (f" Did you mean {near[0]}?" if near else "")
    raise UsageError(explain(what, field="shape", found=name, expected=", ".join(SHAPES), do="name one of these"))
