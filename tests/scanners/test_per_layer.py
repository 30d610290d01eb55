"""Budgets by layer and the store's basis: how they are decided, kept in the artifact, and used by Fathom."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.errors import UsageError
from leadline.registry import create
from leadline.scanners.base import State
from leadline.scanners.calibration import Accumulator, Provenance, load, save
from leadline.scanners.decisions import BUDGETS, BasisRule, Decisions, check_means, greedy
from leadline.scanners.fathom import Fathom
from leadline.scanners.statistics import LayerStatistics
from leadline.scanners.transfer import fetch

H, G, D = 2, 3, 64


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def statistics(seed: int = 0) -> LayerStatistics:
    sums = Accumulator()
    spread = torch.exp(draw(H, 1, D, seed=seed + 1))
    sums.add(draw(H * G, 200, D, seed=seed + 2), draw(H, 200, D, seed=seed + 3) * spread, 0)
    return sums.statistics()


def falling(first: float, ratio: float) -> list[float]:
    """Errors at 24, 32, ..., 128 that fall by a constant ratio."""
    return [first * ratio**i for i in range(len(BUDGETS))]


def decisions(layers: tuple[int, ...] = (0, 3)) -> Decisions:
    errors = {"raw": [falling(0.2, 0.9), falling(0.1, 0.8)], "rotated": [falling(0.3, 0.9), falling(0.05, 0.8)]}
    rule = BasisRule(budgets=(48, 64), raw=(0.1, 0.08), rotated=(0.09, 0.07), choice="rotated")
    return Decisions(
        k=128,
        layers=layers,
        held_out=("w",),
        held_out_positions=128,
        fitted_on=("v",),
        basis=rule,
        paths=tuple(greedy(basis, layers, rows, (48, 64)) for basis, rows in errors.items()),
        budgets=BUDGETS,
        errors={basis: tuple(map(tuple, rows)) for basis, rows in errors.items()},
    )


def test_every_increment_goes_where_the_error_falls_most() -> None:
    errors = [[0.5, 0.3, 0.2, 0.19, *[0.19] * 10], [0.4, 0.35, 0.33, 0.1, *[0.1] * 10]]
    path = greedy("raw", (4, 9), errors, (40, 32))
    assert [(step.layer, step.budget) for step in path.steps] == [(4, 32), (4, 40), (9, 32), (9, 40)]
    assert [(step.before, step.after) for step in path.steps] == [(0.5, 0.3), (0.3, 0.2), (0.4, 0.35), (0.35, 0.33)]
    small, large = path.plans
    assert (small.mean, small.budgets, small.steps) == (32, (40, 24), 2)
    assert (large.mean, large.budgets, large.steps) == (40, (40, 40), 4)
    assert large.error == pytest.approx((0.2 + 0.33) / 2)
    assert large.flat_error == large.error


def test_ties_go_to_the_first_layer_and_a_full_layer_gets_no_more() -> None:
    path = greedy("raw", (0, 1, 2), [falling(0.1, 0.9)] * 3, (32,))
    assert [step.layer for step in path.steps] == [0, 1, 2]
    one = greedy("raw", (0, 1), [falling(1.0, 0.5), [0.1] * len(BUDGETS)], (80,)).plans[0]
    assert one.budgets == (128, 32), "128 is the most a layer gets; the rest goes on"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(0, 2), min_size=len(BUDGETS), max_size=len(BUDGETS)), min_size=1, max_size=9),
    st.sets(st.sampled_from(BUDGETS), min_size=1, max_size=4),
)
def test_the_mean_is_met_exactly_whatever_the_errors(errors: list[list[float]], means: set[int]) -> None:
    layers = tuple(range(len(errors)))
    path = greedy("raw", layers, errors, tuple(means))
    assert [plan.mean for plan in path.plans] == sorted(means)
    for plan in path.plans:
        assert sum(plan.budgets) == plan.mean * len(layers)
        assert set(plan.budgets) <= set(BUDGETS)
        replayed = [24] * len(layers)
        for step in path.steps[: plan.steps]:
            assert step.budget == replayed[step.layer] + 8
            replayed[step.layer] = step.budget
        assert tuple(replayed) == plan.budgets


def test_a_plan_is_never_worse_than_flat_where_errors_fall_evenly() -> None:
    errors = [falling(first, ratio) for first, ratio in ((0.5, 0.95), (0.2, 0.7), (0.05, 0.9))]
    for plan in greedy("raw", (0, 1, 2), errors, (48, 64)).plans:
        assert plan.error <= plan.flat_error


def test_means_that_cannot_be_met_are_refused() -> None:
    for mean in (20, 50, 136):
        with pytest.raises(UsageError, match="24, 32"):
            check_means((48, mean), 30)


def artifact(folder: Path, decided: Decisions | None, **changes: object) -> Path:
    path = folder / "calibration.safetensors"
    provenance = Provenance(
        model="tiny",
        weights_sha256="ab" * 32,
        rope=None,
        dtype="float32",
        text="a text",
        text_sha256="cd" * 32,
        length=4096,
        windows=1,
        positions=56,
        layers=(0, 3),
        versions={},
        decisions=decided,
    )
    save(path, {0: statistics(), 3: statistics(9)}, provenance.model_copy(update=changes))
    return path


def test_decisions_survive_the_artifact_and_reach_the_layers(tmp_path: Path) -> None:
    path = artifact(tmp_path, decisions())
    found = load(path)
    assert found.provenance.decisions == decisions()
    assert found.layers[3].basis_choice == "rotated"
    assert found.layers[3].layer_budgets == decisions().budgets_of(3)
    assert set(found.layers[0].layer_budgets) == {(b, m) for b in ("raw", "rotated") for m in (48, 64)}
    assert found.layers[0].to("cpu").layer_budgets == found.layers[0].layer_budgets
    assert found.layers[0].depth_error is not None
    assert torch.equal(found.layers[0].depth_error, statistics().depth_error)
    beside = json.loads(path.with_suffix(".json").read_text())
    assert beside["decisions"]["basis"]["choice"] == "rotated"
    assert "[0, 3]" in path.with_suffix(".json").read_text(), "plain lists stand on one line"


def test_it_knows_the_texts_that_went_into_it(tmp_path: Path) -> None:
    found = load(artifact(tmp_path, decisions()))
    assert [found.made_on(name) for name in ("v", "w", "x")] == [True, True, False]
    assert not load(artifact(tmp_path, None)).made_on("v")


def test_an_artifact_of_the_first_format_still_loads(tmp_path: Path) -> None:
    old = {n: replace(each, depth_error=None, line_bits=None) for n, each in ((0, statistics()), (3, statistics(9)))}
    path = artifact(tmp_path, None)
    provenance = load(path).provenance.model_copy(update={"format": 1})
    save(path, old, provenance)
    found = load(path)
    assert found.provenance.format == 1
    assert found.layers[0].depth_error is None
    assert found.layers[0].basis_choice is None
    state = create("fathom:budget=48").calibrate(found.layers[0])
    assert state.variance is not None
    assert torch.equal(state.variance, statistics().variance)


@pytest.mark.parametrize("spec", ["fathom:plan=per-layer", "fathom:budget=56,plan=per-layer"])
def test_a_plan_that_is_not_there_is_explained(tmp_path: Path, spec: str) -> None:
    decided = None if spec == "fathom:plan=per-layer" else decisions()
    layer = load(artifact(tmp_path, decided)).layers[0]
    with pytest.raises(UsageError, match="no such per-layer plan") as refused:
        create(spec).calibrate(layer)
    assert "leadline calibrate --plans" in str(refused.value)
    with pytest.raises(UsageError, match="did not choose a store"):
        create("fathom:basis=auto").calibrate(statistics())


@pytest.mark.parametrize("basis", ["raw", "rotated"])
def test_a_layer_reads_its_own_budget(tmp_path: Path, basis: str) -> None:
    layers = load(artifact(tmp_path, decisions())).layers
    keys, query = draw(H, 128, D, seed=5), draw(1, H, G, D, seed=6)
    scanner = create(f"fathom:budget=48,plan=per-layer,basis={basis}")
    budgets = [layers[n].layer_budgets[basis, 48] for n in (0, 3)]
    assert sum(budgets) == 2 * 48
    assert budgets[0] != budgets[1]
    for n, budget in zip((0, 3), budgets, strict=True):
        state, flat = scanner.calibrate(layers[n]), create(f"fathom:budget={budget},basis={basis}")
        index = scanner.build(keys, state)
        expected = flat.plan(query, flat.calibrate(layers[n]), index)
        assert torch.equal(scanner.plan(query, state, index).depth["planes"], expected.depth["planes"])


def test_auto_is_the_calibrations_choice(tmp_path: Path) -> None:
    layer = load(artifact(tmp_path, decisions())).layers[0]
    auto, rotated = create("fathom:budget=48,basis=auto"), create("fathom:budget=48,basis=rotated")
    assert auto.calibrate(layer).basis is not None
    keys = draw(H, 128, D, seed=5)
    for name, field in auto.build(keys, auto.calibrate(layer)).fields.items():
        assert torch.equal(field, rotated.build(keys, rotated.calibrate(layer)).fields[name])
    assert isinstance(auto, Fathom)
    assert auto.settled("rotated") == rotated
    assert auto.settled("raw").label == "fathom:budget=48"
    assert auto.settled(None) is auto


def test_options_that_came_later_do_not_rename_older_results() -> None:
    assert create("fathom:budget=40").options() == {"budget": 40, "basis": "raw", "statistics": "calibration"}
    planned = create("fathom:plan=per-layer")
    assert planned.label == "fathom:budget=48,plan=per-layer"
    assert create(planned.label) == planned
    assert planned.options()["plan"] == "per-layer"
    assert create("fathom:weight=q2").options()["weight"] == "q2"


def test_sessions_decide_nothing() -> None:
    for option in ("basis=auto", "plan=per-layer"):
        with pytest.raises(UsageError, match="decisions of a calibration"):
            create(f"fathom:statistics=session,{option}")


def test_ablations_weigh_channels_by_what_they_say() -> None:
    query, layer = draw(1, H, G, D, seed=6), statistics()
    for spec, expected in (
        ("fathom:budget=48", query.square().sum(-2) * layer.variance),
        ("fathom:weight=q2", query.square().sum(-2)),
        ("fathom:weight=absq", query.abs().sum(-2)),
    ):
        scanner = create(spec)
        assert isinstance(scanner, Fathom)
        state = scanner.calibrate(layer if scanner.needs == "calibration" else None)
        torch.testing.assert_close(scanner.importance(query, state), expected)
    assert create("fathom:weight=q2").needs == "nothing"
    assert create("fathom:weight=q2,basis=rotated").needs == "calibration"


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**31), st.integers(4 * D, 6 * D), st.sampled_from(["raw", "rotated"]))
def test_with_four_planes_for_every_channel_fathom_is_full4_on_its_store(seed: int, bits: int, basis: str) -> None:
    layer, keys, query = statistics(), draw(H, 128, D, seed=seed), draw(2, H, G, D, seed=seed + 1)
    scanner = create(f"fathom:budget={-(-bits * 128 // D)},basis={basis}")
    state = scanner.calibrate(layer)
    index = scanner.build(keys, state)
    plan = scanner.plan(query, state, index)
    assert isinstance(scanner, Fathom)
    assert bool((scanner.importance(query, state) > 0).all())
    assert bool((plan.depth["planes"] == 4).all())
    if basis == "raw":
        full = create("full4")
        other = full.build(keys, State())
        expected = full.score(query, fetch(other, full.plan(query, State(), other)).reads, State())
        found = scanner.score(query, fetch(index, plan).reads, state)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 700))
def test_uniform_importance_gives_uniform_depth_or_nothing(budget: int) -> None:
    layer = statistics()
    flat = replace(layer, key_covariance=torch.eye(D).expand(H, D, D).contiguous())
    scanner = create(f"fathom:budget={budget}")
    state = scanner.calibrate(flat)
    index = scanner.build(draw(H, 64, D, seed=1), state)
    depth = scanner.plan(torch.ones(1, H, G, D), state, index).depth["planes"]
    assert depth.unique().numel() == 1, "a water line either covers all equal channels or none of them"
    assert int(depth[0, 0].sum()) <= max(1, budget * D // 128)
