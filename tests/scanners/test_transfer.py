"""The metered transfer delivers what a plan names, zeros elsewhere, and counts the bytes it hands over."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.scanners.base import Index, ReadPlan
from leadline.scanners.transfer import SECTOR, fetch

H, D, LEVELS, ITEMS = 2, 6, 4, 3


def index() -> Index:
    """Every stored word tells where it stood: head, channel, level, item."""
    words = torch.arange(1, H * D * LEVELS * ITEMS + 1).view(H, D, LEVELS, ITEMS)
    scales = torch.arange(1, H * D * ITEMS + 1).view(H, D, 1, ITEMS).to(torch.float16)
    return Index({"words": words, "scales": scales}, {"words": 64, "scales": 64}, 64 * ITEMS)


def plan(depth: Tensor) -> ReadPlan:
    return ReadPlan({"words": depth, "scales": (depth > 0).long()})


depths = st.lists(st.integers(0, LEVELS), min_size=H * D, max_size=H * D).map(lambda v: torch.tensor(v).view(1, H, D))


@settings(max_examples=150, deadline=None)
@given(st.lists(depths, min_size=1, max_size=3).map(torch.cat))
def test_delivers_the_union_and_nothing_else(depth: Tensor) -> None:
    built = index()
    delivery = fetch(built, plan(depth))
    union = depth.amax(0)
    reads = delivery.reads
    seen = torch.zeros(H, D, LEVELS, ITEMS, dtype=torch.int64)
    for h in range(H):
        for slot, channel in enumerate(reads.channel[h].tolist()):
            deepest = int(reads.depth["words"][:, h, slot].max())
            assert deepest in (int(union[h, channel]), 0)
            got = reads.fields["words"][h, slot]
            assert not bool(got[deepest:].any()), "levels past the plan arrive as zeros"
            seen[h, channel, :deepest] = got[:deepest]
            for t in range(depth.shape[0]):
                own = int(reads.depth["words"][t, h, slot])
                assert own in (int(depth[t, h, channel]), 0)
    wanted = torch.arange(LEVELS) < union.unsqueeze(-1)
    assert torch.equal(seen, built.fields["words"] * wanted.unsqueeze(-1))
    levels, touched = int(union.sum()), int((union > 0).sum())
    assert delivery.nbytes == levels * ITEMS * 8 + touched * ITEMS * 2
    assert delivery.runs == levels + touched
    assert delivery.sector_bytes == SECTOR * (levels + touched), "24 and 6 bytes each occupy one sector"


@settings(max_examples=60, deadline=None)
@given(depths)
def test_one_position_costs_what_its_plan_says(depth: Tensor) -> None:
    built = index()
    bits = plan(depth).bits_per_token(built)
    assert isinstance(bits, Tensor)
    assert float(bits.sum()) * built.tokens / 8 == fetch(built, plan(depth)).nbytes


def test_slots_past_a_heads_count_are_dead() -> None:
    depth = torch.zeros(1, H, D, dtype=torch.int64)
    depth[0, 0, [1, 4, 5]] = 2
    depth[0, 1, 3] = 4
    reads = fetch(index(), plan(depth)).reads
    assert reads.channel.tolist() == [[1, 4, 5], [3, 0, 0]]
    assert reads.depth["words"].tolist() == [[[2, 2, 2], [4, 0, 0]]]
    assert not bool(reads.fields["words"][1, 1:].any())
    query = torch.arange(D).float().expand(1, H, 1, D)
    assert reads.query(query)[0, :, 0].tolist() == [[1, 4, 5], [3, 0, 0]]


def test_a_plan_of_nothing_delivers_zeros_and_costs_nothing() -> None:
    delivery = fetch(index(), plan(torch.zeros(1, H, D, dtype=torch.int64)))
    assert (delivery.nbytes, delivery.runs, delivery.sector_bytes) == (0, 0, 0)
    assert delivery.reads.fields["words"].shape == (H, 1, 1, ITEMS)
    assert not bool(delivery.reads.fields["words"].any())


def test_a_plan_without_fields_delivers_none() -> None:
    delivery = fetch(index(), ReadPlan({}, tail="position"))
    assert delivery.nbytes == 0
    assert dict(delivery.reads.fields) == {}
    assert delivery.reads.tokens == 64 * ITEMS


@pytest.mark.parametrize("shared", [True, False])
def test_every_channel_at_every_level_is_the_store_itself(shared: bool) -> None:
    built = index()
    depth = torch.full((H, D) if shared else (1, H, D), LEVELS)
    delivery = fetch(built, plan(depth))
    assert torch.equal(delivery.reads.fields["words"], built.fields["words"])
    assert delivery.nbytes == built.nbytes
