"""Branches decoded by a step's ops equal branches decoded through the model's own forward: tokens, margins, bytes.

Where there is no GPU the ops are their references; the step, its buffers and its accounts are the same code.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tiny_models
import torch
from cases import SCANNERS

from leadline.attention import hooked
from leadline.branch import Decoded
from leadline.config import RunSpec
from leadline.graph.comparison import compare
from leadline.graph.cursor import Cursor, Selection
from leadline.graph.lanes import Bench, PlaneLane, has_lane, lane
from leadline.graph.network import DecodeNetwork
from leadline.graph.scratch import GuardBroken, Scratch, splits
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
LANES = [spec for spec in SCANNERS if has_lane(create(spec))]  # which ones lack one, a test below says
NEW = 12


@cache
def model(kind: str = "qwen3") -> LoadedModel:
    """A random model with heads wide enough for budgets to differ."""
    made = tiny_models.model(kind, head_dim=32, max_position_embeddings=1024)
    made.network.to(DEVICE)
    return tiny_models.from_network(made.network, None, id=made.id, weights_sha256=made.weights_sha256)


def prefilled(model: LoadedModel, length: int, by_kernels: bool, sequences: int = 1, **changes: Any) -> Prefilled:
    """Rows of the first length - 1 tokens of a random prompt, with or without the decode path of its own."""
    spec = RunSpec(sessions=("none",), max_context=512, k=48, max_new_tokens=NEW, **changes)
    network = DecodeNetwork.of(model) if by_kernels else None
    made = Prefilled(model, network, spec, 400 + NEW, 128, (), sequences=sequences)
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
        return made.branch(spec, scanner, states(scanner, made), token, ())[:2]


@pytest.mark.parametrize("spec", [*LANES, "dense"])
def test_a_branch_is_the_engine_s(spec: str) -> None:
    same = model()
    (eager, ledger), (fused, own) = (branch(prefilled(same, 300, kind), spec) for kind in (False, True))
    assert fused.tokens == eager.tokens
    assert fused.stop_token is eager.stop_token is None
    torch.testing.assert_close(torch.tensor(fused.margins), torch.tensor(eager.margins), rtol=1e-3, atol=1e-4)
    assert own.realised == own.planned
    assert own == ledger or _differs_by_rounding(own, ledger)


@pytest.mark.parametrize("spec", [*LANES, "dense"])
def test_buffers_and_steps_go_with_their_session(spec: str) -> None:
    """At once, not when the garbage collector comes by: they are gigabytes of GPU memory."""
    made = prefilled(model(), 300, True)
    gc.collect()
    gc.disable()
    try:
        branch(made, spec)
        assert made.decoder is not None
        held = [weakref.ref(one) for one in (made, made.rows, made.stores, made.decoder, made.decoder.scratch)]
        del made
        assert not [one() for one in held if one() is not None]
    finally:
        gc.enable()


def _differs_by_rounding(own: ByteLedger, ledger: ByteLedger) -> bool:
    """Sums of bits are taken in another order; everything counted in bytes, tokens or calls is equal."""
    for name, value in vars(ledger).items():
        found = getattr(own, name)
        if isinstance(value, float):
            assert found == pytest.approx(value, rel=1e-9), name
        else:
            assert found == value, name
    return True


def test_every_built_in_but_two_has_a_lane() -> None:
    lacking = {spec for spec in SCANNERS if not has_lane(create(spec))}
    assert {spec.partition(":")[0] for spec in lacking} == {"sparq", "landmark_fathom"}
    assert all("pick=head" in spec for spec in lacking if spec.startswith("sparq"))


@pytest.mark.parametrize("spec", [*LANES, "dense"])
def test_a_forced_text_is_the_engine_s(spec: str) -> None:
    """Token by token through the decode step, and in one causal pass through the model: the same probabilities."""
    scanner, text = create(spec), [5, 9, 31, 2, 77, 8, 1]
    found, tokens = [], []
    for by_kernels in (False, True):
        made = prefilled(model(), 300, by_kernels)
        known = states(scanner, made)
        with hooked(made.model):
            before = made.branch(spec, scanner, known, 7, ())[0].tokens
            found.append(made.force(spec, scanner, known, 7, [text])[0])
            tokens.append((before, made.branch(spec, scanner, known, 7, ())[0].tokens))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
    assert found[1].exp().sum(-1).tolist() == pytest.approx([1.0] * len(text), abs=1e-5)
    assert tokens[0] == tokens[1]
    assert tokens[1][0] == tokens[1][1]  # forcing leaves nothing behind


@pytest.mark.parametrize(("heads", "parts"), [(1, 64), (2, 64), (3, 32), (8, 16), (32, 16), (128, 16), (1000, 16)])
def test_few_heads_are_taken_in_more_parts(heads: int, parts: int) -> None:
    assert splits(heads) == parts


def test_one_plan_for_many_heads_is_made_sequence_by_sequence() -> None:
    """A batch of two sequences: the line that KV heads share is not shared with the other sequence."""
    scanner = create("fathom_global:budget=48")
    made = prefilled(model(), 300, True)
    known = states(scanner, made)
    heads, width = made.model.shape.kv_heads, made.model.shape.head_dim
    one = made.store(scanner, known).index(0)
    both = replace(one, fields={name: field.repeat(2, 1, 1, 1) for name, field in one.fields.items()})
    columns, device = one.tokens, made.model.device
    scratch = Scratch(2 * heads, 2, width, columns // BLOCK, BLOCK, Selection(48, 4, 16), torch.float32, device)
    tail = torch.zeros(2 * heads, BLOCK, 2, width, device=device)
    cursor = Cursor.empty(2, device)
    cursor.set(7, columns + 1, columns // BLOCK)
    bench = Bench(scratch, cursor, [tail])
    found = lane(scanner, [known[0]], [both], [], bench)
    assert isinstance(found, PlaneLane)
    query = torch.randn(2 * heads, 2, width, generator=torch.Generator().manual_seed(3))
    query[heads:] *= 40
    query = query.to(device)
    found.scan(0, query, bench, None)
    alone = [scanner.plan(part, known[0], one).depth["planes"] for part in query.split(heads)]
    assert torch.equal(found.depth[0], torch.cat(alone).to(torch.int32))
    together = scanner.plan(query, replace(known[0], variance=known[0].variance.repeat(2, 1)), both).depth["planes"]
    assert not torch.equal(found.depth[0], together.to(torch.int32))


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
            results = [some.branch(spec, create(spec), known[spec], 7, ()) for some in (shared, longer)]
        assert results[0][0].tokens == results[1][0].tokens
        assert results[0][1] == results[1][1]


def test_a_stop_token_ends_the_branch() -> None:
    made = prefilled(model(), 300, True)
    scanner = create("exact")
    whole, _ = branch(made, "exact")
    with hooked(made.model):
        cut, ledger, _ = made.branch("exact", scanner, states(scanner, made), 7, {whole.tokens[4]})
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


@pytest.mark.parametrize("spec", LANES)
@pytest.mark.parametrize("length", [193, 256, 399])
def test_planned_bytes_are_those_the_kernels_count(spec: str, length: int) -> None:
    _, ledger = branch(prefilled(model(), length, True), spec)
    assert ledger.planned == ledger.realised
    assert (ledger.planned > 0) == (spec != "streaming")


def test_selections_are_the_references() -> None:
    same = model()
    for spec in ("exact", "fathom:budget=48", "fathom:budget=48,basis=rotated", "quest", "streaming"):
        made = prefilled(same, 350, True)
        scanner = create(spec)
        with hooked(same):
            flips = made.compare(spec, scanner, states(scanner, made), 7)
        assert flips is not None
        assert flips.selected == 48 * same.shape.query_heads * same.shape.layers
        assert flips.unexplained == 0
        assert flips.flipped <= flips.selected // 1000 if DEVICE == "cuda" else flips.flipped == 0


def test_another_selection_is_told() -> None:
    """The comparison itself: one token of one head exchanged for a worse one is a flip that nothing explains."""
    made = prefilled(model(), 350, True)
    decoder, scanner = made.decoder, create("exact")
    assert decoder is not None
    known = states(scanner, made)
    with hooked(made.model):
        made.compare("exact", scanner, known, 7)
        decoder.begin("exact", 7, 350)
        step = decoder.kept("exact")
        step()
        assert step.chosen is not None
        ids = step.chosen[1, 0, 0]
        outside = next(token for token in range(4, 300) if token not in ids.tolist())
        ids[5] = outside
        flips = compare(step, scanner, known, made.stores.of(scanner, known).indexes(), 350)
    assert (flips.flipped, flips.unexplained) == (1, 2)  # one missing, one too many


gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["dense", "exact", "fathom:budget=48", "fathom:budget=48,basis=rotated", "landmarks"])
def test_rows_and_stores_in_host_memory_change_no_bit(spec: str) -> None:
    same = model()
    found = [branch(prefilled(same, 300, True, placement=where), spec) for where in ("device", "rows-host", "host")]
    for decoded, ledger in found[1:]:
        assert decoded.tokens == found[0][0].tokens
        assert decoded.margins == found[0][0].margins
        assert vars(ledger) == vars(found[0][1])


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["fathom:budget=48", "fathom:budget=64", "sparq:r=16", "thumbnail"])
def test_plans_and_codes_are_those_of_a_cpu(spec: str) -> None:
    """Of the queries and keys that the GPU saw: equal depths, equal planes and scales."""
    made = prefilled(model(), 350, True)
    scanner, decoder = create(spec), made.decoder
    assert decoder is not None
    known = states(scanner, made)
    with hooked(made.model):
        made.compare(spec, scanner, known, 7)
    step = decoder.kept(spec)
    assert step.asked is not None
    assert isinstance(step.lane, PlaneLane)
    for layer, index in made.stores.of(scanner, known).indexes().items():
        state = known[layer]
        variance = None if state.variance is None else state.variance.cpu()
        on_cpu = replace(state, variance=variance)
        own = scanner.build(made.rows.keys(layer)[:, : index.tokens].cpu(), on_cpu)
        for name, field in own.fields.items():
            assert torch.equal(field, index.fields[name].cpu()), name
        plan = scanner.plan(step.asked[layer].cpu(), on_cpu, own)
        assert torch.equal(plan.depth["planes"].int().expand_as(step.lane.depth[layer]), step.lane.depth[layer].cpu())


TEXTS = [[5, 9, 31, 2, 77, 8, 1], [4, 4, 90, 11, 62, 35, 8, 3, 3, 70, 21, 6]]


@pytest.mark.parametrize("spec", [*LANES, "dense"])
def test_side_by_side_is_one_after_another(spec: str) -> None:
    """A branch and two texts as three sequences over one store: tokens, probabilities and bytes are those of each."""
    scanner, same = create(spec), model()
    alone, beside = prefilled(same, 300, True), prefilled(same, 300, True, sequences=3)
    known = states(scanner, alone)
    with hooked(same):
        decoded, ledger, _ = alone.branch(spec, scanner, known, 7, ())
        says = alone.force(spec, scanner, known, 7, TEXTS)
        own, account, found = beside.branch(spec, scanner, known, 7, (), TEXTS)
        again = beside.force(spec, scanner, known, 7, TEXTS)
        once_more, counted, _ = beside.branch(spec, scanner, known, 7, ())
    assert own.tokens == decoded.tokens == once_more.tokens
    assert account == ledger == counted or _differs_by_rounding(account, ledger)
    torch.testing.assert_close(torch.tensor(own.margins), torch.tensor(decoded.margins), rtol=1e-3, atol=1e-4)
    for given, one, two, three in zip(TEXTS, says, found, again, strict=True):
        assert len(one) == len(given)
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(three, one, rtol=1e-3, atol=1e-4)


def test_texts_go_on_when_the_branch_has_ended_and_leave_its_account_alone() -> None:
    scanner, same = create("fathom:budget=48"), model()
    alone, beside = prefilled(same, 300, True), prefilled(same, 300, True, sequences=3)
    known = states(scanner, alone)
    with hooked(same):
        whole, _, _ = alone.branch("f", scanner, known, 7, ())
        stop = {whole.tokens[3]}
        decoded, ledger, _ = alone.branch("f", scanner, known, 7, stop)
        says = alone.force("f", scanner, known, 7, TEXTS)
        own, account, found = beside.branch("f", scanner, known, 7, stop, TEXTS)
    assert own.tokens == decoded.tokens
    assert own.stop_token == decoded.stop_token
    assert len(own.tokens) < len(TEXTS[0])
    assert account == ledger or _differs_by_rounding(account, ledger)
    for one, two in zip(says, found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


def test_a_score_that_is_no_number_is_told_in_whichever_turn_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that take turns are checked turn by turn: a later one does not make an earlier one good."""
    scanner, made = create("exact"), prefilled(model(), 300, True)
    known = states(scanner, made)
    with hooked(made.model):
        made.force("exact", scanner, known, 7, TEXTS)
    decoder = made.decoder
    assert decoder is not None
    space = type("Space", (), {"invalid": torch.zeros(1, dtype=torch.int32)})()
    monkeypatch.setattr(decoder.scratch, "spaces", replace(decoder.scratch.spaces, topk=space))
    monkeypatch.setattr(decoder, "_step", lambda key, length, run, i: space.invalid.fill_(int(run.steps == 7)))
    with pytest.raises(ValueError, match="not numbers"):
        decoder.force("exact", 7, 300, TEXTS)  # the first of 7 tokens, the last of 12


def test_more_texts_than_sequences_take_turns_and_a_text_too_long_is_refused() -> None:
    scanner, made = create("exact"), prefilled(model(), 300, True, sequences=2)
    known = states(scanner, made)
    with hooked(made.model):
        own, _, found = made.branch("exact", scanner, known, 7, (), TEXTS)
        one_by_one = [made.force("exact", scanner, known, 7, [text])[0] for text in TEXTS]
        assert own.tokens == made.branch("exact", scanner, known, 7, ())[0].tokens
        for text in ([], [1] * (NEW + 1)):
            with pytest.raises(ValueError, match="a text to feed has 1 to 12 tokens"):
                made.force("exact", scanner, known, 7, [text])
    for one, two in zip(found, one_by_one, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    assert made.decoder is not None
    with pytest.raises(ValueError, match="2 texts beside a free sequence"):
        made.decoder.branch("exact", 7, 300, made.store(scanner, known).index(0), TEXTS, stop=())
