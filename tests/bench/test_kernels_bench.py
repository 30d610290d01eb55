"""Pack, plan, scan, select and attend on fixed small-integer inputs, on which fp32 sums are exact whatever their order.

Keys are integers of -2..2, queries -1..1, the rotated basis a Hadamard matrix: every product and partial sum is a
multiple of 1/1024 below 2^13, so plans, scores and selected indices are the same on every CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from cases import SCANNERS
from torch import Tensor

from leadline.kernels.attention import attend_selected
from leadline.kernels.planes import BLOCK, DEPTH, codes, pack
from leadline.kernels.topk import select
from leadline.kernels.waterfill import depths
from leadline.registry import create
from leadline.scanners.base import Index, State
from leadline.scanners.depth_statistics import LOG2_LINES
from leadline.scanners.statistics import Basis, LayerStatistics
from leadline.scanners.transfer import fetch

H, G, D, N, K = 2, 4, 64, 1024, 128


def integers(low: int, high: int, *shape: int, seed: int) -> Tensor:
    """Integers of low..high as fp32."""
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


@cache
def inputs() -> tuple[Tensor, Tensor]:
    """Keys `[H, N, D]` and a query `[1, H, G, D]`."""
    return integers(-2, 2, H, N, D, seed=1), integers(-1, 1, 1, H, G, D, seed=2)


def hadamard(size: int) -> Tensor:
    """A Hadamard matrix over sqrt(size), a power of two here."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


class Dyadic(LayerStatistics):
    """Statistics whose numbers are short binary fractions, and whose basis needs no eigenvalue solver."""

    @property
    def basis(self) -> Basis:  # type: ignore[override]
        return Basis(torch.zeros(H, D), hadamard(D).expand(H, D, D).contiguous(), self.variance)


@cache
def statistics() -> LayerStatistics:
    channel = torch.arange(D)
    variance = (1 + channel / 64) * torch.exp2(-(channel * 5 % 11).float())
    ones = torch.ones(H, D)
    depth_error = (ones * variance).unsqueeze(-1) * torch.exp2(-2.0 * torch.arange(DEPTH + 1))
    line_bits = (torch.arange(len(LOG2_LINES)).flip(0) / 4).clamp(max=4 * D)  # bits fall as the line rises
    covariance = torch.diag(variance).expand(H, D, D)
    return Dyadic(torch.zeros(H, D), covariance, None, ones * variance, ones, depth_error, line_bits)


def prepared(spec: str) -> tuple[Any, State, Index]:
    scanner = create(spec)
    state = scanner.calibrate(None if scanner.needs == "nothing" else statistics())
    return scanner, state, scanner.build(inputs()[0], state)


def run(benchmark: Any, function: Any, *args: Any, **options: Any) -> Any:
    """A few timed rounds after one to warm up: the suite must stay quick."""
    return benchmark.pedantic(function, args=args, kwargs=options, rounds=5, warmup_rounds=1)


def test_pack(benchmark: Any, record: Any) -> None:
    planes, scales = run(benchmark, pack, inputs()[0])
    stored = planes.numel() * planes.element_size() + scales.numel() * scales.element_size()
    record(stored_bytes=stored, planes=planes, scales=scales, codes=codes(inputs()[0])[0])


def test_pack_of_spread_channels(benchmark: Any, record: Any) -> None:
    """Every scale another power of two times a fraction: the fp16 rounding and the division, which IEEE fixes."""
    spread = (1 + torch.arange(D) / 97) * torch.exp2((torch.arange(D) % 9 - 4).float())
    planes, scales = run(benchmark, pack, inputs()[0] * spread)
    record(planes=planes, scales=scales)


@pytest.mark.parametrize("budget", [20, 24, 32, 40])
def test_waterfill(benchmark: Any, record: Any, budget: int) -> None:
    query = integers(-3, 3, 64, H, G, D, seed=3)
    g = query.square().sum(-2) * statistics().variance
    found = run(benchmark, depths, g, budget)
    record(depths=found, planned_bits=int(found.sum()))


@pytest.mark.parametrize("spec", SCANNERS)
def test_build(benchmark: Any, record: Any, spec: str) -> None:
    scanner = create(spec)
    state = scanner.calibrate(None if scanner.needs == "nothing" else statistics())
    index = run(benchmark, scanner.build, inputs()[0], state)
    record(index_bytes=index.nbytes, **dict(sorted(index.fields.items())))


@pytest.mark.parametrize("spec", SCANNERS)
def test_plan(benchmark: Any, record: Any, spec: str) -> None:
    scanner, state, index = prepared(spec)
    plan = run(benchmark, scanner.plan, inputs()[1], state, index)
    bits = plan.bits_per_token(index)
    per_head = bits.flatten().tolist() if isinstance(bits, Tensor) else [bits]
    record(bits_per_token=per_head, tail=plan.tail, **dict(sorted(plan.depth.items())))


@pytest.mark.parametrize("spec", SCANNERS)
def test_scan(benchmark: Any, record: Any, spec: str) -> None:
    """Transfer and score, then the tokens that a decode step would select."""
    scanner, state, index = prepared(spec)
    query = inputs()[1]
    plan = scanner.plan(query, state, index)

    def scan() -> Any:
        delivery = fetch(index, plan)
        return delivery, scanner.score(query, delivery.reads, state)

    delivery, scores = run(benchmark, scan)
    scores = scores.expand(1, H, G, N)
    mask = select(scores, torch.tensor([N]), k=K, sink=4, local=32)
    record(
        moved_bytes=delivery.nbytes,
        sector_bytes=delivery.sector_bytes,
        runs=delivery.runs,
        scores=scores + 0.0,  # -0 and 0 are the same score
        selected=mask.nonzero()[:, -1],
        union_rows=mask.any(2).sum(-1).flatten().tolist(),
    )


@pytest.mark.parametrize("positions", [1, 16])
def test_topk(benchmark: Any, record: Any, positions: int) -> None:
    """Scores with many ties."""
    scores = integers(-40, 40, positions, H, G, N, seed=4)
    visible = torch.arange(N - positions + 1, N + 1)
    mask = run(benchmark, select, scores, visible, k=K, sink=4, local=32)
    record(selected=mask.nonzero().to(torch.int32), selected_tokens=int(mask.sum()))


@pytest.mark.parametrize("positions", [1, 16])
def test_attention(benchmark: Any, record: Any, positions: int) -> None:
    keys, _ = inputs()
    query, values = integers(-1, 1, positions, H, G, D, seed=5), integers(-2, 2, H, N, D, seed=6)
    visible = torch.arange(N - positions + 1, N + 1)
    mask = select(query @ keys.mT, visible, k=K, sink=4, local=32)
    out, counts = run(benchmark, attend_selected, query, keys, values, mask, D**-0.5)
    assert bool(torch.isfinite(out).all())
    record(union_rows=counts, row_bytes=int(counts.sum()) * 2 * D * keys.element_size())


def test_the_inputs_are_exact() -> None:
    """Scores of any two parts of a query add up to its scores, bit for bit: no sum rounds, whatever its order."""
    query = inputs()[1]
    for spec in (spec for spec in SCANNERS if spec != "streaming"):
        scanner, state, index = prepared(spec)
        reads = fetch(index, scanner.plan(query, state, index)).reads
        whole = scanner.score(query, reads, state)
        for seed in range(4):
            part = integers(0, 1, D, seed=seed)
            parts = (scanner.score(query * p, reads, state) for p in (part, 1 - part))
            assert torch.equal(sum(parts), whole), spec
    assert N % BLOCK == 0


def test_the_baseline_holds_nothing_else(unclaimed: set[str]) -> None:
    assert unclaimed == set()
