"""Branches decoded by a step's ops equal branches decoded through the model's own forward: tokens, margins, bytes.

Where there is no GPU the ops are their references; the step, its buffers and its accounts are the same code.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import torch
from cases import SCANNERS

from leadline.attention import hooked
from leadline.branch import Decoded
from leadline.config import RunSpec
from leadline.graph.lanes import has_lane
from leadline.graph.network import DecodeNetwork
from leadline.graph.scratch import GuardBroken
from leadline.kernels.planes import BLOCK
from leadline.model import LoadedModel
from leadline.prefill import extend
from leadline.prefilled import Prefilled
from leadline.registry import create
from leadline.scanners.base import Scanner, State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import of_keys
from leadline.scanning import ByteLedger

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EAGER = {"sparq:r=16,pick=head"}
NEW = 12


def model(kind: str = "qwen3") -> LoadedModel:
    """A random model with heads wide enough for budgets to differ."""
    made = tiny_models.model(kind, head_dim=32, max_position_embeddings=1024)
    made.network.to(DEVICE)
    return tiny_models.from_network(made.network, None, id=made.id, weights_sha256=made.weights_sha256)


def prefilled(model: LoadedModel, length: int, by_kernels: bool, **changes: Any) -> Prefilled:
    """Rows of the first length - 1 tokens of a random prompt, with or without the decode path of its own."""
    spec = RunSpec(sessions=("none",), max_context=512, k=48, max_new_tokens=NEW, **changes)
    made = Prefilled(model, DecodeNetwork.of(model) if by_kernels else None, spec, 400 + NEW, 128, ())
    prompt = tiny_models.prompt(length)
    extend(model, made.rows, prompt, length - 1, chunk=128, stops=(), on_chunk=lambda _: made.stores.advance(made.rows))
    return made


def states(scanner: Scanner, made: Prefilled) -> dict[int, State]:
    """The scanner's state of every layer, calibrated on the prompt's own keys and on random queries."""
    found = {}
    for layer in made.layers:
        keys = made.rows.keys(layer)
        if scanner.needs == "nothing":
            found[layer] = scanner.calibrate(None)
        elif scanner.needs == "session":
            found[layer] = scanner.calibrate(of_keys(keys))
        else:
            sums = Accumulator()
            generator = torch.Generator().manual_seed(layer)
            heads = made.model.shape.query_heads
            query = torch.randn(heads, keys.shape[1], keys.shape[2], generator=generator)
            sums.add(query.to(keys.device), keys, 0)
            found[layer] = scanner.calibrate(sums.statistics().to(keys.device))
    return found


def branch(made: Prefilled, spec: str, token: int = 7) -> tuple[Decoded, ByteLedger]:
    scanner = create(spec)
    with hooked(made.model):
        return made.decode(spec, scanner, states(scanner, made), token, ())


@pytest.mark.parametrize("spec", [*SCANNERS, "dense"])
def test_a_branch_is_the_engine_s(spec: str) -> None:
    if not has_lane(create(spec)):
        pytest.skip("decodes through the model's own forward")
    same = model()
    (eager, ledger), (fused, own) = (branch(prefilled(same, 300, kind), spec) for kind in (False, True))
    assert fused.tokens == eager.tokens
    assert fused.stop_token is eager.stop_token is None
    torch.testing.assert_close(torch.tensor(fused.margins), torch.tensor(eager.margins), rtol=1e-3, atol=1e-4)
    assert own.realised == own.planned
    assert own == ledger or _differs_by_rounding(own, ledger)


def _differs_by_rounding(own: ByteLedger, ledger: ByteLedger) -> bool:
    """Sums of bits are taken in another order; everything counted in bytes, tokens or calls is equal."""
    for name, value in vars(ledger).items():
        found = getattr(own, name)
        if isinstance(value, float):
            assert found == pytest.approx(value, rel=1e-9), name
        else:
            assert found == value, name
    return True


def test_every_built_in_but_ablations_has_a_lane() -> None:
    lacking = {spec for spec in SCANNERS if not has_lane(create(spec))}
    beyond = {spec for spec in SCANNERS if spec.startswith(("fathom_", "landmark_fathom"))}
    assert lacking == EAGER | beyond


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
def test_other_architectures(kind: str) -> None:
    same = model(kind)
    (eager, _), (fused, _) = (
        branch(prefilled(same, 290, by_kernels), "fathom:budget=48") for by_kernels in (False, True)
    )
    assert fused.tokens == eager.tokens


def test_one_session_s_buffers_serve_every_scanner_and_every_point() -> None:
    """Lanes share buffers and steps are kept: an earlier scanner or point must leave nothing behind."""
    same = model()
    order = ["exact", "streaming", "fathom:budget=48,basis=rotated", "dense", "landmarks", "exact", "streaming"]
    shared = prefilled(same, 300, True)
    found = [branch(shared, spec)[0].tokens for spec in order]
    assert found == [branch(prefilled(same, 300, True), spec)[0].tokens for spec in order]
    known = {spec: states(create(spec), shared) for spec in order}  # a session's states are made once
    more = tiny_models.prompt(370)
    with hooked(same):
        shared.stores.rewind(100)
        shared.rows.rewind(100)
        extend(same, shared.rows, more, 369, chunk=128, stops=(), on_chunk=lambda _: shared.stores.advance(shared.rows))
    longer = prefilled(same, 370, True)
    for spec in order:
        with hooked(same):
            results = [some.decode(spec, create(spec), known[spec], 7, ()) for some in (shared, longer)]
        assert results[0][0].tokens == results[1][0].tokens
        assert results[0][1] == results[1][1]


def test_a_stop_token_ends_the_branch() -> None:
    made = prefilled(model(), 300, True)
    scanner = create("exact")
    whole, _ = branch(made, "exact")
    with hooked(made.model):
        cut, ledger = made.decode("exact", scanner, states(scanner, made), 7, {whole.tokens[4]})
    at = whole.tokens.index(whole.tokens[4])
    assert cut.tokens == whole.tokens[:at]
    assert cut.stop_token == whole.tokens[4]
    assert ledger.calls == (at + 1) * len(made.layers)


def test_layers_left_dense() -> None:
    same = model()
    specs = [prefilled(same, 300, by_kernels, dense_layers=(0, 2)) for by_kernels in (False, True)]
    (eager, ledger), (fused, own) = (branch(made, "sparq:r=16") for made in specs)
    assert fused.tokens == eager.tokens
    assert _differs_by_rounding(own, ledger)


def test_the_checked_mode_poisons_and_finds_nothing() -> None:
    same = model()
    for spec in ("fathom:budget=48,basis=rotated", "quest", "streaming", "dense"):
        plain, _ = branch(prefilled(same, 300, True), spec)
        checked, _ = branch(prefilled(same, 300, True, checked=True), spec)
        assert checked.tokens == plain.tokens


def test_a_write_past_a_buffer_is_named() -> None:
    made = prefilled(model(), 300, True, checked=True)
    assert made.decoder is not None
    guarded = made.decoder.scratch.guarded
    guarded.raw["records"][0][-1] = 0
    with pytest.raises(GuardBroken, match="records"):
        branch(made, "exact")


def test_the_tail_crosses_a_block_without_entering_the_store() -> None:
    """A prompt that leaves one token of a block free: generated tokens complete it, and stay in the tail."""
    same = model()
    length = 5 * BLOCK
    (eager, ledger), (fused, own) = (
        branch(prefilled(same, length, kind), "fathom:budget=64") for kind in (False, True)
    )
    assert fused.tokens == eager.tokens
    assert (
        own.tail
        == ledger.tail
        == same.shape.kv_heads * len(same.network.model.layers) * 32 * 4 * sum(BLOCK + i for i in range(NEW))
    )
