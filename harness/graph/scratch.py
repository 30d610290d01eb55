"""What a step writes on its way: one set of buffers, shared by the layers and the scanners of a session.

Every buffer stands between two guards. In checked mode the buffers are filled with a pattern before each step, so that
a kernel that reads what nothing wrote shows, and the guards are compared after it, so that one that writes past its
end is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leadline.graph.cursor import Selection
from leadline.kernels.planes import BLOCK
from leadline.kernels.rows import Union

PROGRAMS = 128  # for attention over the rows of a union, about as many as a large GPU has multiprocessors
DENSE_SPLITS = 136  # of all rows
GUARD = 256  # bytes before and behind a buffer
_PATTERN = 0xA5


class GuardBroken(RuntimeError):  # noqa: N818
    """A kernel wrote outside one of its buffers; the message names the buffer."""


@dataclass
class Guarded:
    """Buffers by name, each with its guards."""

    device: torch.device
    raw: dict[str, tuple[Tensor, int]] = field(default_factory=dict)  # with the bytes between the guards

    def make(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of this shape, contiguous, its start at a multiple of 256 bytes."""
        nbytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
        padded = -(-nbytes // GUARD) * GUARD
        raw = torch.zeros(padded + 2 * GUARD, dtype=torch.uint8, device=self.device)
        raw[:GUARD] = raw[GUARD + nbytes :] = _PATTERN
        self.raw[name] = raw, nbytes
        return raw[GUARD : GUARD + nbytes].view(dtype).view(shape)

    def check(self) -> None:
        """GuardBroken unless every guard is as it was."""
        for name, (raw, nbytes) in self.raw.items():
            edges = (raw[:GUARD], raw[GUARD + nbytes :])
            if any(bool((edge != _PATTERN).any()) for edge in edges):
                raise GuardBroken(f"a kernel wrote outside the buffer {name!r} of {nbytes} bytes")


class Scratch:
    """Buffers for H rows of KV heads, G query heads each, up to `blocks` blocks and `tail` further tokens."""

    def __init__(
        self,
        heads: int,
        group: int,
        head_dim: int,
        blocks: int,
        tail: int,
        selection: Selection,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.heads, self.group, self.head_dim, self.blocks = heads, group, head_dim, blocks
        self.capacity = blocks * BLOCK + tail
        self.guarded = Guarded(device)
        make, k, d = self.guarded.make, selection.k, head_dim
        columns = self.columns = -(-self.capacity // BLOCK) * BLOCK
        self.query = make("query", heads, group, d)
        self.key = make("key", heads, d)
        self.scores = make("scores", heads, group, columns)
        self.maxima = make("maxima", heads, group, max(1, blocks))
        self.ids = make("ids", heads * group, k, dtype=torch.int32)
        self.records = make("records", heads, group * k, 2, d, dtype=dtype)
        self.attended = make("attended", heads, group, d, dtype=dtype)
        self.unions = [
            make("union ids", heads, group * k, dtype=torch.int32),
            make("union members", heads, group * k, dtype=torch.int32),
        ]
        self.spaces = _spaces(heads, group, d, columns, k, device)

    def union(self, count: Tensor) -> Union:
        """The union's buffers with a layer's own count, int32 `[H]`."""
        return Union(self.unions[0], self.unions[1], count)

    def poison(self) -> None:
        """Fill what a step must write before it reads: NaN, and positions that do not exist."""
        for tensor in (self.query, self.key, self.scores, self.maxima, self.records, self.attended):
            tensor.fill_(torch.nan)
        for tensor in (self.ids, *self.unions):
            tensor.fill_(-1)

    def check(self) -> None:
        """GuardBroken where a kernel wrote outside its buffer."""
        self.guarded.check()


@dataclass(frozen=True)
class Spaces:
    """What kernels keep between their launches: top-k, union, attention over fetched rows and over all."""

    topk: Any
    union: Any
    attention: Any
    dense: Any


def splits(heads: int) -> int:
    """Parts that the rows of one KV head's union are taken in, 16 to 64."""
    fill = 1 << (PROGRAMS // heads).bit_length() >> 1  # the largest power of two in it, 0 in 0
    return min(64, max(16, fill))


def _spaces(heads: int, group: int, d: int, columns: int, k: int, device: torch.device) -> Spaces:
    """Empty on a CPU, whose references need none."""
    if device.type != "cuda":
        return Spaces(None, None, None, None)
    from leadline.kernels.attention import triton as attention
    from leadline.kernels.rows import triton as rows
    from leadline.kernels.topk import triton as topk

    return Spaces(
        topk.workspace(heads * group, columns, device, k),
        rows.workspace(heads, group, k, device),
        attention.workspace(heads, group, d, splits(heads), device),
        attention.workspace(heads, group, d, DENSE_SPLITS, device),
    )
