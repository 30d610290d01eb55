"""Scanners beyond the paper's: what they may read, what they choose, and where they meet the plans they start from."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import SCANNERS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.errors import UsageError
from leadline.kernels.planes import BLOCK, codes
from leadline.kernels.waterfill import depths
from leadline.registry import create
from leadline.scanners.base import State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.depth_statistics import LOG2_LINES, DepthMoments, line_of
from leadline.scanners.fathom_measured import hull_gains
from leadline.scanners.statistics import LayerStatistics
from leadline.scanners.transfer import fetch
from leadline.scanners.water_line import fill, modelled_values

H, G, D, N = 3, 2, 64, 320


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys() -> Tensor:
    """Channels spread over decades, and heads that differ from one another."""
    return draw(H, N, D, seed=1) * torch.exp(draw(H, 1, D, seed=2)) * torch.tensor([0.3, 1.0, 3.0]).view(H, 1, 1)


def statistics() -> LayerStatistics:
    sums = Accumulator()
    sums.add(draw(H * G, N, D, seed=3), keys(), 0)
    return sums.statistics()


def planes(spec: str, query: Tensor, state: State | None = None) -> Tensor:
    """Planes of every channel `[T, H, d]` that a scanner reads for queries `[T, H, G, d]`."""
    scanner = create(spec)
    state = scanner.calibrate(statistics()) if state is None else state
    return scanner.plan(query, state, scanner.build(keys()[:, :BLOCK], state)).depth["planes"]


queries = st.integers(0, 10_000).map(lambda seed: draw(2, H, G, D, seed=seed))


def test_the_cases_name_every_scanner_here() -> None:
    names = {spec.partition(":")[0] for spec in SCANNERS}
    assert {"fathom_global", "fathom_measured", "landmark_fathom"} <= names


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 16.0]), min_size=12, max_size=12), st.integers(0, 60))
def test_fill_draws_the_line_of_the_flat_plan(importance: list[float], budget: int) -> None:
    """Ties and zeros included: what equals the first value that does not fit stays out."""
    g = torch.tensor(importance)
    assert torch.equal(fill(modelled_values(g), torch.tensor(budget)), depths(g, budget))


@pytest.mark.parametrize("basis", ["raw", "rotated"])
@pytest.mark.parametrize("weight", ["absolute", "relative"])
@settings(max_examples=25, deadline=None)
@given(query=queries, budget=st.integers(2, 300), silent=st.integers(0, D))
def test_a_shared_line_never_reads_more_than_flat(
    basis: str, weight: str, query: Tensor, budget: int, silent: int
) -> None:
    """Also where a head cannot spend its budget, and another could."""
    query = query.clone()
    query[:, 0, :, :silent] = 0
    shared = planes(f"fathom_global:budget={budget},basis={basis},weight={weight}", query)
    flat = planes(f"fathom:budget={budget},basis={basis}", query)
    assert bool((shared.sum((-1, -2)) <= flat.sum((-1, -2))).all())


def test_a_shared_line_gives_depth_to_the_heads_that_need_it() -> None:
    """Head 2 holds the largest keys: it reads more than the flat plan gives it, and less error remains in all."""
    query = draw(50, H, G, D, seed=4)
    shared, flat = planes("fathom_global:budget=48", query), planes("fathom:budget=48", query)
    assert torch.equal(flat.sum(-1), torch.full((50, H), 24))
    assert torch.equal(shared.sum((-1, -2)), torch.full((50,), 24 * H)), "no values tie here, so all of it is spent"
    assert bool((shared[:, 2].sum(-1) > flat[:, 2].sum(-1)).all())
    g = query.square().sum(-2) * statistics().variance
    left = [(g * 4.0**-depth).sum((-1, -2)) for depth in (shared, flat)]
    assert bool((left[0] < left[1]).all()), "the modelled error is least under one line"


def test_a_line_for_the_model_meets_its_budget_in_the_mean_of_the_calibration() -> None:
    query = draw(H * G, N, D, seed=3)[:, 4:].unflatten(0, (H, G)).permute(2, 0, 1, 3)
    for budget in (32, 48, 96):
        read = planes(f"fathom_global:budget={budget},scope=model", query).sum(-1).double()
        assert float(read.mean()) == pytest.approx(budget * D / 128, rel=0.02)
        assert float(read.sum(-1).std()) > 0, "it is a mean, not a ceiling"


@pytest.mark.parametrize("option", ["basis=rotated", "weight=relative"])
def test_a_line_for_the_model_is_of_raw_channels_and_absolute_weights(option: str) -> None:
    with pytest.raises(UsageError, match="raw"):
        create(f"fathom_global:scope=model,{option}")


def test_relative_weights_give_depth_to_the_head_whose_variance_is_spread() -> None:
    """Scaling a head's queries changes nothing; a head of many equal channels reads more than one with few."""
    query = draw(20, H, G, D, seed=5)
    variance = torch.ones(H, D)
    variance[0, 8:] = 1e-4
    state = State(variance=variance)
    read = planes("fathom_global:budget=48,weight=relative", query, state)
    louder = query * torch.tensor([10.0, 1.0, 0.1]).view(H, 1, 1)
    assert torch.equal(planes("fathom_global:budget=48,weight=relative", louder, state), read)
    assert bool(read[:, 1:].sum(-1).double().mean() > read[:, 0].sum(-1).double().mean())


@pytest.mark.parametrize("spec", ["fathom_measured", "fathom_global:scope=model"])
def test_an_old_calibration_is_refused_with_the_remedy(spec: str) -> None:
    whole = statistics()
    old = LayerStatistics(whole.key_mean, whole.key_covariance, whole.query_moment, whole.abs_query, whole.abs_key)
    with pytest.raises(UsageError, match="make it again with `leadline calibrate`"):
        create(spec).calibrate(old)


def test_line_bits_are_those_of_the_plans_counted_one_by_one() -> None:
    query, moments = draw(H * G, N, D, seed=3), DepthMoments()
    for first in range(0, N, BLOCK):
        moments.add(query[:, first : first + BLOCK], keys()[:, first : first + BLOCK], first)
    variance = statistics().variance
    bits = moments.line_bits(variance)
    assert bool((bits.diff() <= 0).all())
    g = query[:, 4:].unflatten(0, (H, G)).square().sum(1) * variance.unsqueeze(1)
    for i in range(100, 240, 20):
        counted = (modelled_values(g) > 2.0 ** float(LOG2_LINES[i])).sum((-1, -2)).double().mean()
        assert float(bits[i]) == pytest.approx(float(counted), rel=0.02, abs=0.05)
    assert line_of(bits, 4.0 * D) == 0.0
    assert line_of(torch.zeros_like(bits), 1) == 0.0
    assert line_of(torch.full_like(bits, 9.0), 1) == 2.0 ** float(LOG2_LINES[-1])


def test_depth_error_is_the_variance_of_what_a_read_leaves() -> None:
    moments, k = DepthMoments(), keys()
    for first in range(0, N, BLOCK):
        moments.add(draw(H * G, BLOCK, D, seed=first), k[:, first : first + BLOCK], first)
    found = moments.depth_error()
    assert found is not None
    code, scale = codes(k)
    top = scale.float().repeat_interleave(BLOCK, -2)
    torch.testing.assert_close(found[..., 0], k[:, 4:].var(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[..., 4], (k - (code.float() - 7.5) * top / 8)[:, 4:].var(1), rtol=1e-4, atol=1e-7)
    sign = torch.where(code >= 8, 0.5, -0.5)
    torch.testing.assert_close(found[..., 1], (k - sign * top)[:, 4:].var(1), rtol=1e-4, atol=1e-7)


def test_measured_gains_that_follow_the_model_give_the_flat_plan() -> None:
    variance = statistics().variance
    error = variance.unsqueeze(-1) * 4.0 ** -torch.arange(5.0)
    state = State(extra={"gains": hull_gains(error)})
    query = draw(40, H, G, D, seed=6)
    found, flat = planes("fathom_measured:budget=48", query, state), planes("fathom:budget=48", query)
    differing = (found != flat).any(-1).double().mean()
    assert float(differing) <= 0.02, "two roundings of one order part only where values nearly tie"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=5))
def test_hull_gains_are_the_least_concave_curve_above_the_measured_one(errors: list[int]) -> None:
    error = torch.tensor(errors, dtype=torch.float32)
    gains = hull_gains(error)
    assert bool((gains >= 0).all())
    assert bool((gains.diff() <= 1e-5).all()), "gains never rise with depth"
    removed = (error[0] - error).double()
    for t in range(5):
        best = max(
            [
                float(removed[s]) + (float(removed[e]) - float(removed[s])) * (t - s) / (e - s)
                if e > s
                else float(removed[t])
                for s, e in itertools.product(range(t + 1), range(t, 5))
            ]
            + [float(removed[s]) for s in range(t + 1)]
        )
        assert float(gains[:t].sum()) == pytest.approx(best, abs=1e-4)


def test_planes_bought_together_are_read_all_or_none() -> None:
    error = torch.tensor([10.0, 9.0, 2.0, 1.5, 1.4]).expand(H, D, 5)  # the second plane is worth more than the first
    query = draw(40, H, G, D, seed=7)
    read = planes("fathom_measured:budget=48", query, State(extra={"gains": hull_gains(error)}))
    assert not bool((read == 1).any())
    assert bool((read == 2).any())
    assert int(read.sum(-1).max()) <= 24


@pytest.mark.parametrize("landmark", [8, 64])
def test_blocks_are_proposed_by_their_best_landmark(landmark: int) -> None:
    """A key stands out for each of two query heads: both blocks are read, and the tokens found."""
    scanner = create(f"landmark_fathom:fraction=0.4,landmark={landmark},budget=128")
    state = scanner.calibrate(statistics())
    k, query = keys() * 0.1, draw(1, H, G, D, seed=8)
    k[:, 90], k[:, 200] = 16 * query[0, :, 0], 4 * query[0, :, 1]  # however much more the one head's scores weigh
    index = scanner.build(k, state)
    delivery = fetch(index, scanner.plan(query, state, index))
    assert delivery.reads.items is not None
    assert delivery.reads.items[0].int().tolist() == [[0, 1, 0, 1, 0]] * H
    scores = scanner.score(query, delivery.reads, state)
    assert scores[0].argmax(-1).tolist() == [[90, 200]] * H


def test_tokens_outside_the_proposed_blocks_keep_their_landmarks_score() -> None:
    scanner = create("landmark_fathom:fraction=0.4,landmark=16")
    state = scanner.calibrate(statistics())
    query = draw(1, H, G, D, seed=9)
    index = scanner.build(keys(), state)
    delivery = fetch(index, scanner.plan(query, state, index))
    assert delivery.reads.items is not None
    assert delivery.reads.items.sum(-1).tolist() == [[2] * H]
    means = keys().unflatten(1, (-1, 16)).mean(2)
    coarse = (query[0] @ means.transpose(-1, -2)).repeat_interleave(16, -1)
    closed = ~delivery.reads.items[0].repeat_interleave(BLOCK, -1).unsqueeze(1).expand(H, G, N)
    found = scanner.score(query, delivery.reads, state)[0]
    assert float((found - coarse)[closed].abs().max()) < 0.02 * float(coarse.abs().max()), "fp16 means"
    exact = query[0] @ keys().transpose(-1, -2)
    near, far = ((found - exact)[mask].square().mean() for mask in (~closed, closed))
    assert float(near) < 0.5 * float(far), "planes confirm what landmarks only guess"


def test_sectors_are_charged_beyond_the_payload() -> None:
    scanner = create("landmark_fathom:fraction=0.4")
    state = scanner.calibrate(statistics())
    index = scanner.build(keys(), state)
    delivery = fetch(index, scanner.plan(draw(1, H, G, D, seed=10), state, index))
    assert delivery.sector_bytes > 1.3 * delivery.nbytes
