"""Synthetic contents have the distributions that SPEC section 8 asks for, and every scanner can be made of them."""

from __future__ import annotations

import pytest
import torch
from cases import SCANNERS

from leadline.bench.contents import PIECE, Contents
from leadline.bench.shapes import SHAPES, Shape, find
from leadline.bench.weights import random_network
from leadline.errors import UsageError
from leadline.registry import create
from leadline.scanners.base import Index
from leadline.scanners.statistics import of_keys

CPU = torch.device("cpu")


def contents(name: str = "tiny", **changes: object) -> Contents:
    values = {"batch": 1, "seed": 0, "distinct": 2, "device": CPU, "dtype": torch.float32}
    return Contents(find(name), **(values | changes))  # type: ignore[arg-type]


def test_the_plan_reads_what_the_specification_says_of_these_contents() -> None:
    """About 47, 56, 74 and 92 bits at B = 40, 48, 64 and 80."""
    made = contents("qwen3-8b", distinct=3)
    index = Index({"planes": torch.zeros(8, 128, 4, 1, dtype=torch.int64), "scales": torch.zeros(8, 128, 1, 1).half()},
                  {"planes": 64, "scales": 64}, 64)  # fmt: skip
    query, statistics = made.queries(0), [made.statistics(layer) for layer in range(3)]
    for budget, expected in ((40, 47), (48, 56), (64, 74), (80, 92)):
        fathom = create(f"fathom:budget={budget}")
        plans = [fathom.plan(query[layer], fathom.calibrate(found), index) for layer, found in enumerate(statistics)]
        bits = torch.stack([plan.bits_per_token(index) for plan in plans])
        assert float(bits.mean()) == pytest.approx(expected, abs=1.5)


def test_keys_queries_and_variances_are_distributed_as_stated() -> None:
    made = contents("qwen3-8b")
    variance = made.variance(0)
    assert variance.shape == (8, 128)
    assert float(variance.log().std()) == pytest.approx(2.0, abs=0.15)
    [(first, keys, values)] = made.rows(0, 8192)
    assert first == 0
    assert keys.shape == values.shape == (8, 8192, 128)
    torch.testing.assert_close(of_keys(keys).variance, variance, rtol=0.1, atol=0.0)
    query = torch.stack([made.queries(step) for step in range(4)])  # [S, L, H, G, d]
    pairs = torch.corrcoef(query.movedim(-2, 0).flatten(1))
    assert query.shape == (4, 36, 8, 4, 128)
    torch.testing.assert_close(pairs, torch.full((4, 4), 0.8).fill_diagonal_(1.0), rtol=0, atol=0.02)
    assert not torch.equal(query[0], query[1])


def test_a_second_run_makes_the_same_and_layers_repeat_as_told() -> None:
    made, again, other = contents(), contents(), contents(seed=1)
    pieces = [list(each.rows(2, 200)) for each in (made, again, other)]
    assert torch.equal(pieces[0][0][1], pieces[1][0][1])
    assert not torch.equal(pieces[0][0][1], pieces[2][0][1])
    by_layer = [next(iter(made.rows(layer, 64)))[1] for layer in range(3)]
    assert torch.equal(by_layer[0], by_layer[2])
    assert not torch.equal(by_layer[0], by_layer[1])
    query = made.queries(0)
    assert not torch.equal(query[0], query[2]), "queries differ even where rows repeat"
    assert made.sha256 != other.sha256


def test_sequences_of_a_batch_differ_and_share_their_statistics() -> None:
    made = contents(batch=3)
    [(_, keys, _)] = made.rows(0, 64)
    assert keys.shape == (6, 64, 64)
    assert not torch.equal(keys[:2], keys[2:4])
    statistics = made.statistics(0)
    assert statistics.key_mean.shape == (6, 64)
    assert torch.equal(statistics.variance[:2], statistics.variance[4:])
    assert made.tail(0, 5).shape == (6, 5, 2, 64)


def test_rows_come_in_pieces_that_add_up() -> None:
    shape = Shape("narrow", 1, 8, 1, 1, 2, 8, 8, 1e4)
    made = Contents(shape, 1, 0, 1, CPU, torch.float32)
    assert [(first, keys.shape[1]) for first, keys, _ in made.rows(0, PIECE + 100)] == [(0, PIECE), (PIECE, 100)]


@pytest.mark.parametrize("spec", [spec for spec in SCANNERS if "fathom_" not in spec])
def test_every_scanner_gets_its_states(spec: str) -> None:
    made, scanner = contents(batch=2), create(spec)
    states = made.states(scanner)
    assert len(states) == 3
    [(_, keys, _)] = made.rows(1, 128)
    index = scanner.build(keys, states[1])
    plan = scanner.plan(made.queries(0)[1], states[1], index)
    assert all(levels.shape[-2] in (4, 1) or levels.shape[0] == 4 for levels in plan.depth.values())


def test_random_networks_have_their_shapes_sizes() -> None:
    network = random_network(find("tiny"), CPU, torch.float32, 0)
    assert network.embedding.shape == (320, 64)
    assert network.layers[0].joint.shape == (4 * 64 + 2 * 2 * 64, 64)
    assert len(network.layers) == 3
    assert torch.isfinite(network.logits(torch.zeros(1, 64), torch.ones(1, 64))).all()
    again, other = (random_network(find("tiny"), CPU, torch.float32, seed) for seed in (0, 1))
    assert torch.equal(network.head, again.head)
    assert not torch.equal(network.head, other.head)
    assert network.head is not network.embedding


def test_published_parameter_counts() -> None:
    """The sizes are those of the models they are named after: their published numbers of parameters."""
    counts = {}
    for name, shape in SHAPES.items():
        d = shape.head_dim
        joint = (shape.query_heads + 2 * shape.kv_heads) * d
        layer = joint * shape.hidden + shape.query_heads * d * shape.hidden + 3 * shape.mlp * shape.hidden
        layer += 2 * shape.hidden + (2 * d if shape.qk_norm else 0) + (joint if shape.bias else 0)
        embedding = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
        counts[name] = shape.layers * layer + embedding + shape.hidden
    assert counts["qwen3-8b"] == 8_190_735_360
    assert counts["llama-3.1-8b"] == 8_030_261_248
    assert counts["qwen2.5-coder-1.5b"] == 1_543_714_304


def test_an_unknown_shape_is_answered_with_what_was_meant() -> None:
    with pytest.raises(UsageError, match=r"Did you mean qwen3-8b\?"):
        find("qwen3-8")
