"""Selection: sinks, the local window and the best of the rest, ties to the smallest index, against a slow oracle."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.kernels.topk import select


def oracle(scores: list[float], visible: int, k: int, sink: int, local: int) -> list[int]:
    """The selected tokens of one query head, by the words of SPEC section 3."""
    if visible <= k:
        return list(range(visible))
    forced = set(range(sink)) | set(range(visible - local, visible))
    rest = sorted((i for i in range(visible) if i not in forced), key=lambda i: (-scores[i], i))
    return sorted(forced | set(rest[: k - sink - local]))


def picked(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


plateaus = st.sampled_from([0.0, 1.0, -1.0, 2.5, -math.inf, math.inf])
values = st.one_of(plateaus, st.floats(-100, 100, width=32))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_against_the_oracle(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 200), "n")
    sink, local = data.draw(st.integers(0, 6), "sink"), data.draw(st.integers(0, 40), "local")
    k = sink + local + data.draw(st.integers(1, 60), "rest")
    heads = data.draw(st.integers(1, 2), "heads")
    visible = data.draw(st.lists(st.integers(1, n), min_size=1, max_size=3), "visible")
    seed = data.draw(st.integers(0, 2**31), "seed")
    pool = data.draw(st.lists(values, min_size=1, max_size=8), "pool")  # few distinct values: many ties
    choice = torch.randint(len(pool), (len(visible), heads, 2, n), generator=torch.Generator().manual_seed(seed))
    scores = torch.tensor(pool)[choice]
    mask = select(scores, torch.tensor(visible), k=k, sink=sink, local=local)
    for t, seen in enumerate(visible):
        for h in range(heads):
            for g in range(2):
                assert picked(mask[t, h, g]) == oracle(scores[t, h, g].tolist(), seen, k, sink, local)


@pytest.mark.parametrize("n", [1, 2, 3, 35, 36, 37, 64, 99, 100, 101, 200])
@pytest.mark.parametrize("kind", ["constant", "rising", "falling", "minus-infinity"])
def test_lengths_around_the_window(n: int, kind: str) -> None:
    scores = {
        "constant": torch.zeros(n),
        "rising": torch.arange(n).float(),
        "falling": -torch.arange(n).float(),
        "minus-infinity": torch.full((n,), -math.inf),
    }[kind]
    mask = select(scores.view(1, 1, 1, n), torch.tensor([n]), k=40, sink=4, local=32)
    assert picked(mask[0, 0, 0]) == oracle(scores.tolist(), n, 40, 4, 32)


def test_ties_break_to_the_smallest_index() -> None:
    mask = select(torch.zeros(1, 1, 1, 100), torch.tensor([100]), k=40, sink=4, local=32)
    assert picked(mask[0, 0, 0]) == [*range(8), *range(68, 100)]


def test_every_position_sees_its_own_past() -> None:
    scores = torch.arange(12).float().expand(3, 1, 1, 12)
    mask = select(scores, torch.tensor([10, 11, 12]), k=3, sink=1, local=1)
    assert [picked(mask[t, 0, 0]) for t in range(3)] == [[0, 8, 9], [0, 9, 10], [0, 10, 11]]


def test_heads_choose_for_themselves() -> None:
    scores = torch.stack([torch.arange(9).float(), -torch.arange(9).float()]).view(1, 1, 2, 9)
    mask = select(scores, torch.tensor([9]), k=2, sink=0, local=0)
    assert picked(mask[0, 0, 0]) == [7, 8]
    assert picked(mask[0, 0, 1]) == [0, 1]


@pytest.mark.parametrize(
    "scores", [[1.0, 1.0, math.nan, 1.0, 1.0, 1.0], [math.nan] * 6, [5.0, 4.0, 3.0, math.nan, 2.0, 1.0]]
)
def test_nan_is_an_error(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN"):
        select(torch.tensor(scores).view(1, 1, 1, 6), torch.tensor([6]), k=2, sink=0, local=0)


def test_scores_of_unseen_tokens_do_not_matter() -> None:
    scores = torch.tensor([0.0, 3.0, 1.0, 2.0, math.nan, math.inf]).view(1, 1, 1, 6)
    assert picked(select(scores, torch.tensor([4]), k=2, sink=0, local=0)[0, 0, 0]) == [1, 3]


def test_k_below_what_it_counts_is_an_error() -> None:
    with pytest.raises(ValueError, match="sink"):
        select(torch.zeros(1, 1, 1, 100), torch.tensor([100]), k=35, sink=4, local=32)
