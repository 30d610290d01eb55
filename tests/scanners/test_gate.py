"""A gated plan: items are chosen from what was delivered; nothing else arrives; bytes, runs and sectors count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.scanners.base import Gate, Index, ReadPlan, Reads
from leadline.scanners.transfer import SECTOR, fetch

H, D, LEVELS, ITEMS = 2, 3, 4, 9


def index() -> Index:
    """Words that tell where they stood, and one score of every item ahead of them."""
    words = torch.arange(1, H * D * LEVELS * ITEMS + 1).view(H, D, LEVELS, ITEMS)
    ahead = torch.randn(H, D, 1, ITEMS, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    return Index({"ahead": ahead, "words": words}, {"ahead": 64, "words": 64}, 64 * ITEMS)


def plan(depth: Tensor, chosen: Tensor, items: int) -> ReadPlan:
    """A plan whose gate ranks the items that `chosen` `[T, H, m]` marks before the others."""
    every = torch.ones(H, D, dtype=torch.int64)
    return ReadPlan({"ahead": every, "words": depth}, gate=Gate(("words",), items, lambda reads: chosen.float()))


depths = st.lists(st.integers(0, LEVELS), min_size=H * D, max_size=H * D).map(lambda v: torch.tensor(v).view(1, H, D))
choices = st.permutations(range(ITEMS)).map(lambda order: torch.tensor(order))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, ITEMS))
def test_bytes_runs_and_sectors_are_those_of_the_chosen_items(data: st.DataObject, positions: int, items: int) -> None:
    built = index()
    depth = torch.cat([data.draw(depths) for _ in range(positions)])
    order = torch.stack([torch.stack([data.draw(choices) for _ in range(H)]) for _ in range(positions)])
    chosen = order < items
    delivery = fetch(built, plan(depth, chosen, items))
    assert delivery.reads.items is not None
    assert torch.equal(delivery.reads.items, chosen)
    nbytes = runs = sectors = 0
    expected = torch.zeros(H, D, LEVELS, ITEMS, dtype=torch.int64)
    for h in range(H):
        union = [i for i in range(ITEMS) if bool(chosen[:, h, i].any())]
        levels = depth[:, h].amax(0)
        for j in range(D):
            expected[h, j, : levels[j]][:, union] = built.fields["words"][h, j, : levels[j]][:, union]
        read = int(levels.sum())
        nbytes += read * len(union) * 8
        runs += read * sum(i - 1 not in union for i in union)
        sectors += read * len({8 * i // SECTOR for i in union})
    ahead = H * D
    deepest = max(1, int(depth.max()))
    assert torch.equal(delivery.reads.fields["words"], expected[:, :, :deepest])
    assert delivery.nbytes == nbytes + ahead * ITEMS * 2
    assert delivery.runs == runs + ahead
    assert delivery.sector_bytes == SECTOR * (sectors + ahead), "18 bytes ahead of the gate occupy one sector"


@settings(max_examples=60, deadline=None)
@given(depths, st.integers(0, ITEMS))
def test_one_position_costs_what_its_plan_says(depth: Tensor, items: int) -> None:
    built = index()
    made = plan(depth, torch.zeros(1, H, ITEMS), items)
    bits = made.bits_per_token(built)
    assert isinstance(bits, Tensor)
    assert float(bits.sum()) * built.tokens / 8 == pytest.approx(fetch(built, made).nbytes, abs=1e-6)


def test_the_gate_sees_what_was_delivered_ahead_of_it_and_no_more() -> None:
    built = index()
    seen: list[Reads] = []

    def propose(reads: Reads) -> Tensor:
        seen.append(reads)
        return reads.fields["ahead"].float().sum((1, 2))

    every = torch.ones(H, D, dtype=torch.int64)
    delivery = fetch(built, ReadPlan({"ahead": every, "words": every}, gate=Gate(("words",), 2, propose)))
    (reads,) = seen
    assert set(reads.fields) == {"ahead"}
    best = built.fields["ahead"].float().sum((1, 2)).topk(2).indices
    assert delivery.reads.items is not None
    assert torch.equal(delivery.reads.items, torch.zeros(H, ITEMS, dtype=torch.bool).scatter(-1, best, True))


def test_ties_go_to_the_smallest_item() -> None:
    every = torch.ones(H, D, dtype=torch.int64)
    delivery = fetch(index(), plan(every, torch.zeros(H, ITEMS), 3))
    assert delivery.reads.items is not None
    assert delivery.reads.items[0].tolist() == [True] * 3 + [False] * 6
    assert delivery.runs == H * D * 2, "three neighbours are one run"


def test_a_store_without_tokens_opens_no_gate() -> None:
    empty = Index(
        {"ahead": torch.zeros(H, D, 1, 0), "words": torch.zeros(H, D, LEVELS, 0, dtype=torch.int64)},
        {"ahead": 64, "words": 64},
        0,
    )
    made = plan(torch.ones(1, H, D, dtype=torch.int64), torch.zeros(1, H, 0), 0)
    assert fetch(empty, made).nbytes == 0
    assert float(torch.as_tensor(made.bits_per_token(empty)).sum()) >= 0
