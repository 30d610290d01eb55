"""The worked example of SPEC section 2: six tokens, four channels, two query heads, two rows to choose.

Budgets there are literal; scanners scale theirs by d / 128, so at d = 4 a literal 8 is written 256 and 2 is written 64.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.kernels.planes import codes, decode, pack
from leadline.kernels.topk import select
from leadline.kernels.waterfill import depths, depths_by_bisection
from leadline.registry import create
from leadline.scanners.base import ReadPlan
from leadline.scanners.calibration import Accumulator
from leadline.scanners.fathom import Fathom
from leadline.scanners.statistics import LayerStatistics
from leadline.scanners.transfer import fetch

KEYS = torch.tensor(
    [
        [1.8, -1.1, 0.3, 1.2, -0.6, 0.9],
        [0.4, 0.9, -1.2, 0.7, -0.3, 1.1],
        [-0.2, 0.3, 0.1, 0.4, -0.5, -0.3],
        [0.04, 0.0, 0.04, 0.0, 0.04, -0.04],
    ]
).T.unsqueeze(0)  # [1, 6, 4]
Q_A, Q_B = [3.0, 1.0, 2.0, 0.1], [1.0, 2.0, -1.0, 0.2]
QUERY = torch.tensor([[[Q_A, Q_B]]])  # [1, 1, 2, 4]
A, B = 0, 1


def statistics() -> LayerStatistics:
    """Of the six keys, with q_A and q_B as the queries of every position; no position is skipped."""
    sums = Accumulator(skip=0)
    sums.add(QUERY[0, 0].unsqueeze(1).expand(2, 6, 4), KEYS, 0)
    return sums.statistics()


def answer(spec: str) -> tuple[Tensor, ReadPlan]:
    """Scores `[G, 6]` of the scanner, and its plan."""
    scanner = create(spec)
    state = scanner.calibrate(None if scanner.needs == "nothing" else statistics())
    index = scanner.build(KEYS, state, block=6)
    plan = scanner.plan(QUERY, state, index)
    return scanner.score(QUERY, fetch(index, plan).reads, state)[0, 0], plan


def top2(scores: Tensor) -> set[int]:
    """The selected pair; no sink, no local window."""
    return set(select(scores.view(1, 1, 1, 6), torch.tensor([6]), k=2, sink=0, local=0).nonzero()[:, -1].tolist())


def test_variance_and_importance() -> None:
    assert statistics().variance[0].tolist() == pytest.approx([1.222, 0.755, 0.127, 0.001], abs=6e-4)
    fathom = create("fathom")
    assert isinstance(fathom, Fathom)
    g = fathom.importance(QUERY, fathom.calibrate(statistics()))[0, 0]
    assert g[:3].tolist() == pytest.approx([12.22, 3.77, 0.63], abs=0.006)
    assert 0 < float(g[3]) < 1e-4


def test_water_line_settles() -> None:
    fathom = create("fathom")
    assert isinstance(fathom, Fathom)
    g = fathom.importance(QUERY, fathom.calibrate(statistics()))[0, 0]
    for theta, expected in ((0.1, [3, 3, 1, 0]), (0.01, [4, 4, 3, 0])):
        assert torch.log(g / theta).div(torch.log(torch.tensor(4.0))).round().clamp(0, 4).tolist() == expected
    for budget, expected in ((8, [4, 3, 1, 0]), (6, [3, 2, 1, 0])):
        found, theta = depths_by_bisection(g, budget)
        assert depths(g, budget).tolist() == found.tolist() == expected
    assert float(depths_by_bisection(g, 8)[1]) == pytest.approx(0.079, abs=0.001)


def test_codes_and_one_plane_values_of_channel_2() -> None:
    code, scales = codes(KEYS, block=6)
    assert float(scales[0, 0, 2]) == 0.5
    assert code[0, :, 2].tolist() == [4, 12, 9, 14, 0, 3]
    planes, _ = pack(KEYS, block=6)
    values = decode(planes, torch.ones(1, 4, dtype=torch.int64), block=6)[0, 2] * 0.5
    assert values.tolist() == [-0.25, 0.25, 0.25, 0.25, -0.25, -0.25]
    assert torch.equal(values.sign(), KEYS[0, :, 2].sign())


@pytest.mark.parametrize(("budget", "expected"), [(256, [4, 3, 1, 0]), (192, [3, 2, 1, 0])])
def test_the_plan_of_the_group(budget: int, expected: list[int]) -> None:
    _, plan = answer(f"fathom:budget={budget}")
    assert plan.depth["planes"].tolist() == [[expected]]
    assert plan.depth["scales"].tolist() == [[[1, 1, 1, 0]]]


def test_scores_of_head_b_to_two_decimals() -> None:
    scores, _ = answer("fathom:budget=256")
    assert [round(x, 2) for x in scores[B].tolist()] == [2.84, 0.24, -2.01, 2.49, -0.61, 3.36]
    exact, _ = answer("exact")
    assert [round(x, 2) for x in exact[B].tolist()] == [2.81, 0.40, -2.19, 2.20, -0.69, 3.39]


@pytest.mark.parametrize("spec", ["exact", "fathom:budget=256"])
def test_both_heads_find_their_two_rows_with_eight_bits(spec: str) -> None:
    scores, _ = answer(spec)
    assert top2(scores[A]) == {0, 3}
    assert top2(scores[B]) == {5, 0}


def test_six_bits_get_head_b_wrong() -> None:
    scores, _ = answer("fathom:budget=192")
    assert top2(scores[B]) != {5, 0}


@pytest.mark.parametrize("spec", ["loki:r=64", "double_sparsity:channels=64", "sparq:r=64"])
def test_two_channels_at_full_depth_answer_t5_t3_for_head_b(spec: str) -> None:
    scores, plan = answer(spec)
    assert int((plan.depth["planes"] > 0).sum()) == 2
    assert int(plan.depth["planes"].sum()) == 8, "the same eight bits"
    assert top2(scores[B]) == {5, 3}


def test_sparq_breaks_its_tie_to_the_smallest_channel() -> None:
    _, plan = answer("sparq:r=64")
    assert QUERY.abs().sum(-2)[0, 0, 1:3].tolist() == [3.0, 3.0]
    assert plan.depth["planes"].tolist() == [[[4, 4, 0, 0]]]


def test_the_thumbnail_gets_both_heads_wrong() -> None:
    scores, plan = answer("thumbnail")
    assert int(plan.depth["planes"].sum()) == 8, "the same eight bits"
    assert top2(scores[A]) != {0, 3}
    assert top2(scores[B]) != {5, 0}
