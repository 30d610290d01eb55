"""Sequences that share a store: a session's branches decoded side by side from the same rows and planes.

A step of N sequences has N H rows of queries, tails and scores, sequence by sequence. Where what it reads holds only H
rows, all sequences read those: row h of the queries reads row h % H. Counters then count the first sequence alone.
"""

from __future__ import annotations

from torch import Tensor


def for_each(stored: Tensor, heads: int) -> Tensor:
    """`stored` `[H, ...]` for `heads` = N H rows of queries: itself, or a copy N times as large (for references).

    ValueError where `heads` is no multiple of H.
    """
    if heads % len(stored):
        raise ValueError(f"{heads} rows of queries do not share a store of {len(stored)} KV heads")
    return stored if len(stored) == heads else stored.repeat(heads // len(stored), *[1] * (stored.dim() - 1))
