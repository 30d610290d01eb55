"""The reference (exact top-k over full keys), dense attention, the recency floor: what every scan stands between."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from leadline.kernels.planes import BLOCK
from leadline.kernels.scan import dot
from leadline.scanners.base import Index, ReadPlan, Reads, Scanner, State


class Exact(Scanner):
    """Reads full K rows and ranks by q.k: exact top-k, the reference. Its store is the rows themselves, not a copy."""

    name: ClassVar[str] = "exact"
    reads_rows: ClassVar[bool] = True

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return Index({"keys": keys.transpose(-1, -2).unsqueeze(-2)}, {"keys": 1}, keys.shape[-2], block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        every = torch.ones(index.fields["keys"].shape[:2], dtype=torch.int64, device=query.device)
        return ReadPlan({"keys": every}, tail="keys")

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        return dot(query, reads.fields["keys"].squeeze(-2))


class _NoScan(Scanner):
    """Shared by what reads no index at all."""

    def build(self, keys: Tensor, state: State, block: int = BLOCK) -> Index:
        return Index({}, {}, keys.shape[-2], block)

    def plan(self, query: Tensor, state: State, index: Index) -> ReadPlan:
        return ReadPlan({}, tail="position")

    def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
        position = torch.arange(reads.tokens, dtype=torch.float32, device=query.device)
        return position.expand(*query.shape[:-1], -1)


class Streaming(_NoScan):
    """The first 4 tokens and the last k - 4, StreamingLLM-like: the floor, with as many rows as the others."""

    name: ClassVar[str] = "streaming"


class Dense(_NoScan):
    """Dense attention over every row: no selection, so nothing to scan."""

    name: ClassVar[str] = "dense"
    kind: ClassVar[Literal["scanner", "dense"]] = "dense"
