"""One scanner inside attention: dense where it must be, each position by itself, the tail under the scanner's view."""

from __future__ import annotations

import pytest
import torch
from cases import SCANNERS
from torch import Tensor

import leadline.scanning as module
from leadline.attention import dense
from leadline.kernels.planes import BLOCK
from leadline.registry import create
from leadline.scanners.base import Index, ReadPlan, Scanner, State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import of_keys
from leadline.scanners.transfer import fetch
from leadline.scanning import ByteLedger, ScanAttention, tail_scores

H, G, D = 2, 3, 64
K, SINK, LOCAL = 48, 4, 32


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(n: int) -> tuple[Tensor, Tensor]:
    """Keys with variances spread over channels, and values: `[H, n, D]` each."""
    spread = torch.exp(draw(H, 1, D, seed=1))
    return draw(H, n, D, seed=2) * spread, draw(H, n, D, seed=3)


def attention(spec: str, keys: Tensor, indexed: int, *, k: int = K, ledger: ByteLedger | None = None) -> ScanAttention:
    """The scanner on layer 0, its index holding the first `indexed` keys."""
    scanner = create(spec)
    state = calibrated(scanner, keys)
    index = scanner.build(keys[:, :indexed], state)
    return ScanAttention(scanner, {0: index}, {0: state}, k=k, sink=SINK, local=LOCAL, ledger=ledger)


def calibrated(scanner: Scanner, keys: Tensor) -> State:
    if scanner.needs == "nothing":
        return scanner.calibrate(None)
    if scanner.needs == "session":
        return scanner.calibrate(of_keys(keys[:, :BLOCK]))
    sums = Accumulator()
    sums.add(draw(H * G, keys.shape[1], D, seed=4), keys, 0)
    return scanner.calibrate(sums.statistics())


@pytest.mark.parametrize("spec", [*SCANNERS, "dense"])
@pytest.mark.parametrize("positions", [1, 4])
def test_contexts_of_at_most_k_tokens_are_dense(spec: str, positions: int) -> None:
    keys, values = rows(100)
    query = draw(H * G, positions, D, seed=5)
    ledger = ByteLedger()
    found = attention(spec, keys, 64, k=100, ledger=ledger)(0, query, keys, values, D**-0.5)
    assert torch.equal(found, dense(query, keys, values, D**-0.5))
    assert (ledger.planned, ledger.realised, ledger.calls) == (0, 0, 1)
    assert ledger.rows == H * 100 * 2 * D * 4


@pytest.mark.parametrize("spec", SCANNERS)
def test_a_layer_left_dense_is_dense(spec: str) -> None:
    keys, values = rows(200)
    query = draw(H * G, 1, D, seed=5)
    sparse = attention(spec, keys, 128)
    left = ScanAttention(sparse.scanner, {}, {}, k=K, sink=SINK, local=LOCAL, dense_layers=frozenset({0}))
    assert torch.equal(left(0, query, keys, values, D**-0.5), dense(query, keys, values, D**-0.5))
    assert not torch.allclose(sparse(0, query, keys, values, D**-0.5), dense(query, keys, values, D**-0.5), atol=1e-3)


@pytest.mark.parametrize("spec", SCANNERS)
def test_several_positions_in_one_pass_equal_one_at_a_time(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks and outputs; the first position decides with fewer rows in sight than the last."""
    keys, values = rows(210)
    query = draw(H * G, 5, D, seed=6)
    masks: list[Tensor] = []
    select = module.select

    def watch(*args: Tensor, **options: int) -> Tensor:
        masks.append(select(*args, **options))
        return masks[-1]

    monkeypatch.setattr(module, "select", watch)
    scan = attention(spec, keys, 192)
    together = scan(0, query, keys, values, D**-0.5)
    (batch,) = masks
    masks.clear()
    for i in range(5):
        n = 206 + i
        alone = scan(0, query[:, i : i + 1], keys[:, :n], values[:, :n], D**-0.5)
        assert torch.equal(masks[-1][0], batch[i, ..., :n])
        assert not bool(batch[i, ..., n:].any()), "no key of the future"
        torch.testing.assert_close(together[:, i : i + 1], alone, rtol=1e-5, atol=1e-6)
    assert bool((batch.sum(-1) == K).all())


@pytest.mark.parametrize("spec", SCANNERS)
def test_groups_of_positions_do_not_change_a_pass(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = rows(210)
    query = draw(H * G, 5, D, seed=6)
    scan = attention(spec, keys, 192)
    whole = scan(0, query, keys, values, D**-0.5)
    monkeypatch.setattr("leadline.scanning._SCORES_AT_ONCE", 2 * H * G * 210)
    torch.testing.assert_close(scan(0, query, keys, values, D**-0.5), whole, rtol=1e-5, atol=1e-6)


def test_exact_with_every_row_in_reach_is_dense() -> None:
    """k one short of n leaves a single row out; its weight is the only difference."""
    keys, values = rows(130)
    query = draw(H * G, 1, D, seed=7)
    found = attention("exact", keys, 128, k=129)(0, query, keys, values, D**-0.5)
    weights = torch.softmax((query.unflatten(0, (H, G))[:, :, 0] @ keys.mT) * D**-0.5, -1)
    assert float((found - dense(query, keys, values, D**-0.5)).abs().max()) < 4 * float(weights.min(-1).values.max())


@pytest.mark.parametrize("spec", SCANNERS)
def test_planned_bytes_equal_realised_bytes(spec: str) -> None:
    keys, values = rows(200)
    ledger = ByteLedger()
    scan = attention(spec, keys, 192, ledger=ledger)
    for step in range(3):
        scan(0, draw(H * G, 1, D, seed=20 + step), keys, values, D**-0.5)
    assert ledger.planned == ledger.realised
    assert ledger.calls == 3
    assert (ledger.realised == 0) == (spec == "streaming")
    assert ledger.tail == 3 * H * 8 * D * 4
    assert 3 * H * K <= ledger.union <= 3 * H * G * K
    assert ledger.rows == ledger.union * 2 * D * 4


def test_streaming_selects_sinks_and_the_latest() -> None:
    keys, values = rows(200)
    query = draw(H * G, 1, D, seed=8)
    found = attention("streaming", keys, 192)(0, query, keys, values, D**-0.5)
    kept = [*range(SINK), *range(200 - (K - SINK), 200)]
    torch.testing.assert_close(found, dense(query, keys[:, kept], values[:, kept], D**-0.5), rtol=1e-5, atol=1e-6)


def plan_and_index(spec: str, keys: Tensor, query: Tensor) -> tuple[ReadPlan, Index]:
    scanner = create(spec)
    state = calibrated(scanner, keys)
    index = scanner.build(keys[:, :192], state)
    return scanner.plan(query, state, index), index


@pytest.mark.parametrize("spec", ["exact", "landmarks", "quest"])
def test_tail_by_q_k_where_a_plan_has_no_channels(spec: str) -> None:
    keys, _ = rows(200)
    query = draw(2, H, G, D, seed=9)
    plan, index = plan_and_index(spec, keys, query)
    torch.testing.assert_close(tail_scores(query, keys[:, 192:], plan, index), query @ keys[:, 192:].mT)


def test_tail_by_position_where_nothing_is_read() -> None:
    keys, _ = rows(200)
    query = draw(2, H, G, D, seed=9)
    plan, index = plan_and_index("streaming", keys, query)
    found = tail_scores(query, keys[:, 192:], plan, index)
    assert torch.equal(found, torch.arange(192.0, 200.0).expand(2, H, G, 8))


@pytest.mark.parametrize("spec", ["fathom:budget=40", "sparq:r=16", "sparq:r=16,pick=head", "thumbnail"])
def test_tail_on_the_channels_a_plan_reads(spec: str) -> None:
    """Full precision, but only the plan's channels, which differ from position to position."""
    keys, _ = rows(200)
    query = draw(2, H, G, D, seed=9)
    plan, index = plan_and_index(spec, keys, query)
    found = tail_scores(query, keys[:, 192:], plan, index)
    for t in range(2):
        for h in range(H):
            depth = plan.depth["planes"].expand(2, H, D) if plan.depth["planes"].dim() == 2 else plan.depth["planes"]
            read = depth[t, h] > 0
            expected = query[t, h][:, read] @ keys[h, 192:, read].T
            torch.testing.assert_close(found[t, h], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["loki:r=32", "loki:r=32,precision=fp16", "fathom:budget=48,basis=rotated"])
def test_tail_in_the_basis_of_a_rotated_store(spec: str) -> None:
    """(k - mu) V on the coordinates read: comparable with the scores of the blocks, which leave q.mu out too."""
    keys, _ = rows(200)
    query = draw(1, H, G, D, seed=9)
    plan, index = plan_and_index(spec, keys, query)
    assert index.basis is not None
    found = tail_scores(query, keys[:, 192:], plan, index)
    for h in range(H):
        vectors, mean = index.basis.vectors[h], index.basis.mean[h]
        read = next(iter(plan.depth.values())).reshape(-1, H, vectors.shape[-1])[0, h] > 0
        expected = (query[0, h] @ vectors[:, read]) @ ((keys[h, 192:] - mean) @ vectors[:, read]).T
        torch.testing.assert_close(found[0, h], expected, rtol=1e-4, atol=1e-4)


def test_tail_of_double_sparsity_on_its_stored_channels() -> None:
    keys, _ = rows(200)
    query = draw(1, H, G, D, seed=9)
    scanner = create("double_sparsity:channels=32")
    state = calibrated(scanner, keys)
    index = scanner.build(keys[:, :192], state)
    found = tail_scores(query, keys[:, 192:], scanner.plan(query, state, index), index)
    assert state.channels is not None
    for h in range(H):
        chosen = state.channels[h]
        torch.testing.assert_close(found[0, h], query[0, h][:, chosen] @ keys[h, 192:, chosen].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["full4", "loki:r=128,precision=fp16"])
def test_tail_and_block_scores_agree_where_the_read_is_near_exact(spec: str) -> None:
    """A key scores nearly the same in a block and in the tail, or the two would not compete fairly."""
    keys, _ = rows(200)
    query = draw(1, H, G, D, seed=9)
    scanner = create(spec)
    state = calibrated(scanner, keys)
    index = scanner.build(keys[:, :192], state)
    plan = scanner.plan(query, state, index)
    in_block = scanner.score(query, fetch(index, plan).reads, state)[..., :8]
    in_tail = tail_scores(query, keys[:, :8], plan, index)
    assert float((in_block - in_tail).abs().max()) < 0.1 * float(in_tail.abs().max())
