"""The dry run: the same branch points a replay takes, sizes that the stores really have, and arithmetic by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
import tiny_models
import tiny_replay
import torch
from cases import CASES

from leadline import plan_costs as costs
from leadline.config import RunSpec
from leadline.contenders import contenders
from leadline.errors import UsageError
from leadline.host.stores import IndexStore
from leadline.model import ModelShape
from leadline.outline import outline, step_weight_bytes, weight_bytes
from leadline.planning import Given, plan
from leadline.registry import create
from leadline.replaying import find_calibration
from leadline.rows import Rows
from leadline.scanners.conformance_cases import Case, Trial
from leadline.sessions.directory import discover
from leadline.sessions.render import Renderer
from leadline.workload import capacity, choose

QWEN3_8B = ModelShape(
    layers=36,
    scanned_layers=tuple(range(36)),
    query_heads=32,
    kv_heads=8,
    head_dim=128,
    groups=4,
    vocabulary=151_936,
    max_positions=1 << 20,
)
AT_512 = costs.Setting(QWEN3_8B, torch.bfloat16, 512)
MILLION = 1 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    tiny_replay.write_sessions(folder / "sessions", count=2)
    tiny_replay.write_calibration(folder / "cal.safetensors", tiny_replay.model())
    return folder


@pytest.fixture
def spec(place: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    monkeypatch.setattr("leadline.planning.outline", lambda *_, **__: tiny_replay.model())
    return tiny_replay.spec(place / "sessions", place / "cal.safetensors", device="cpu")


def test_points_and_exclusions_are_those_of_a_replay(spec: RunSpec, place: Path) -> None:
    found = plan(spec)
    renderer = Renderer(tiny_replay.tokenizer())
    works = [choose(s, renderer.render(s), spec) for s in discover(place / "sessions").sessions]
    assert [(s.sha256, [p.step for p in s.points]) for s in found.sessions] == [
        (work.session.sha256, [p.step for p in work.points]) for work in works
    ]
    assert found.exclusions == tuple(e for work in works for e in work.exclusions)
    assert found.exclusions
    for session, work in zip(found.sessions, works, strict=True):
        assert [p.prompt_tokens for p in session.points] == [p.n_tokens for p in work.points]
        # One prompt of a session is a prefix of the next: prefill adds up to the last one.
        assert sum(p.prefilled_tokens for p in session.points) == work.points[-1].n_tokens - 1
    assert found.branches == 4 * len(contenders(spec, None))
    assert found.prefill_tokens == 2 * sum(work.points[-1].n_tokens - 1 for work in works), "the noise floor's too"
    assert plan(spec.model_copy(update={"limit": 1})).sessions == found.sessions[:1]


def test_memory_is_what_rows_and_stores_take(spec: RunSpec, place: Path) -> None:
    found, model = plan(spec), tiny_replay.model()
    renderer = Renderer(tiny_replay.tokenizer())
    works = [choose(s, renderer.render(s), spec) for s in discover(place / "sessions").sessions]
    room = max(capacity(work.points, spec.max_new_tokens) for work in works)
    assert found.memory.rows_bytes == 2 * Rows.for_model(model, room).nbytes
    assert found.memory.weight_bytes == sum(p.nbytes for p in model.network.parameters())
    assert found.memory.row_store_bytes == 0
    shape = model.shape
    for scanner in found.scanners:
        if scanner.index_bytes:
            assert scanner.index_bytes == _taken(scanner.label, shape, room, model.dtype)
    shared = {s.label: s.index_shared_with for s in found.scanners}
    assert shared["sparq:r=16"] == "fathom:budget=48"
    assert shared["fathom:budget=48,statistics=session"] == "fathom:budget=48"
    assert shared["fathom:budget=48,basis=rotated"] is None
    assert found.memory.index_bytes == sum(s.index_bytes for s in found.scanners)
    assert found.memory.shortages == ()


def _taken(label: str, shape: ModelShape, room: int, dtype: torch.dtype) -> int:
    scanner = create(label)
    state = Trial(scanner, Case("normal", shape.kv_heads, shape.groups, shape.head_dim, 2)).state
    states = dict.fromkeys(shape.scanned_layers, state)
    cpu = torch.device("cpu")
    store = IndexStore(scanner, states, shape.kv_heads, shape.head_dim, room, where="device", device=cpu, dtype=dtype)
    return store.allocated_bytes


def test_host_placements_move_bytes_to_the_host(spec: RunSpec) -> None:
    device, rows_host, host = (
        plan(spec.model_copy(update={"placement": name, "device": "cuda"})).memory
        for name in ("device", "rows-host", "host")
    )
    assert device.host_bytes == 0
    assert rows_host.host_bytes == rows_host.row_store_bytes > 0
    assert host.host_bytes == host.row_store_bytes + host.index_bytes
    assert rows_host.device_bytes == device.device_bytes == host.device_bytes + host.index_bytes


def test_what_does_not_fit_is_said_with_its_numbers(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leadline.planning.available_bytes", lambda: (1 << 30) + 1000)
    assert plan(spec).memory.shortages[0].startswith("the model's device: 0.")
    on_host = plan(spec.model_copy(update={"placement": "host", "device": "cuda"})).memory
    assert [s.partition(":")[0] for s in on_host.shortages] == ["host memory"]


@pytest.mark.parametrize("case", [case for case in CASES if case.bits_128 is not None], ids=lambda case: case.spec)
def test_bits_of_fixed_plans_are_exact(case: Any) -> None:
    bits, bits_from = costs.bits_of(create(case.spec), AT_512)
    assert bits == case.bits_128
    assert bits_from == ("fixed plan" if bits else "no scan")


@pytest.mark.parametrize(("budget", "bits"), [(40, 47), (48, 56), (64, 74), (80, 92)])
def test_bits_of_fathom_are_the_budget_and_the_stated_channels(budget: int, bits: float) -> None:
    for basis in ("raw", "rotated"):
        assert costs.bits_of(create(f"fathom:budget={budget},basis={basis}"), AT_512) == (
            bits,
            "budget + 0.25 x stated active channels",
        )


def test_a_step_at_a_million_tokens_by_hand() -> None:
    fathom, exact, dense, streaming = map(create, ("fathom:budget=48", "exact", "dense", "streaming"))
    scan, rows = costs.step_bytes(fathom, 56, AT_512, MILLION)
    assert scan == 36 * 8 * 7 * MILLION
    assert AT_512.union_rows == 1597
    assert rows == 36 * 8 * 1597 * 512
    assert costs.step_bytes(dense, 0, AT_512, MILLION) == (0, 36 * 8 * 512 * MILLION)
    assert costs.step_bytes(streaming, 0, AT_512, MILLION)[1] == 36 * 8 * 512 * 512
    partly = costs.Setting(QWEN3_8B, torch.bfloat16, 512, dense=6)
    assert costs.step_bytes(exact, 2048, partly, MILLION) == (
        30 * 8 * 256 * MILLION,
        8 * 512 * (30 * 1597 + 6 * MILLION),
    )
    common = {"link": 50.0, "memory": 4000.0}
    ms = costs.gpu_ms(scan, rows, 16_000_000_000, **common, index_on_host=True, rows_on_host=True)
    assert ms == pytest.approx(1.6 + 4 + (scan + rows) / 43e6)
    near = costs.gpu_ms(scan, rows, 16_000_000_000, **common, index_on_host=False, rows_on_host=False)
    assert near == pytest.approx(1.6 + 4 + scan / 280e6 + rows / 4e9)


def test_gpu_time_needs_rates_and_says_whose(spec: RunSpec) -> None:
    without = plan(spec)
    assert {s.gpu_ms_per_step for s in without.scanners} == {None}
    assert without.rates.source == "no GPU"
    given = plan(spec, Given(55.0, 3900.0))
    assert all(s.gpu_ms_per_step is not None for s in given.scanners)
    assert given.rates.source == "link given, GPU memory given"
    assert given.seconds == without.seconds, "this run is on a CPU"
    assert "stated rates of a CPU" in given.seconds_from
    assert given.seconds > 0


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3"])
def test_an_outline_is_the_model_without_its_weights(kind: str, tmp_path: Path) -> None:
    words = tiny_replay.tokenizer()
    network = tiny_models.network(kind, vocab_size=len(words))
    network.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    found = outline(str(tmp_path), dtype="bfloat16", rope=None)
    expected = sum(parameter.numel() for parameter in network.parameters())
    assert all(parameter.is_meta for parameter in found.network.parameters())
    assert weight_bytes(found) == 2 * expected
    tied = network.config.tie_word_embeddings
    table = network.get_input_embeddings().weight.numel()
    assert step_weight_bytes(found) == 2 * (expected - (0 if tied else table))
    assert found.shape.kv_heads == network.config.num_key_value_heads
    assert found.tokenizer("abc").input_ids == words("abc").input_ids


def test_a_gguf_files_outline(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_models.network("llama"), "llama")
    loaded_shape = outline(str(path), dtype="float32", rope=None).shape
    assert loaded_shape.layers == 4
    assert loaded_shape.head_dim == 16


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="configuration and tokenizer"):
        outline(str(tmp_path), dtype="float32", rope=None)
    with pytest.raises(UsageError, match="no such model"):
        outline(str(tmp_path / "missing"), dtype="float32", rope=None)


def test_a_missing_calibration_is_refused_as_a_replay_refuses_it(spec: RunSpec) -> None:
    with pytest.raises(UsageError, match="leadline calibrate"):
        plan(spec.model_copy(update={"calibration": None}))
    with pytest.raises(UsageError, match="no sessions here"):
        plan(spec.model_copy(update={"sessions": ("/nowhere/at/all",)}))


def test_a_calibration_without_what_a_scanner_wants_is_refused_as_a_replay_refuses_it(spec: RunSpec) -> None:
    with pytest.raises(UsageError, match="leadline calibrate --plans 48"):
        plan(spec.model_copy(update={"scanners": ("fathom:budget=48,plan=per-layer", "sparq:r=16")}))
    with pytest.raises(UsageError, match="did not choose a store"):
        plan(spec.model_copy(update={"scanners": ("fathom:budget=48,basis=auto", "sparq:r=16")}))


def test_the_calibrations_store_stands_for_auto_and_per_layer_costs_its_mean(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = find_calibration(spec)
    assert held is not None
    decided = {"basis_choice": "rotated", "layer_budgets": {("raw", 48): 24, ("rotated", 48): 72}}
    layers = {n: dataclasses.replace(found, **decided) for n, found in held.layers.items()}
    monkeypatch.setattr("leadline.planning.find_calibration", lambda _: dataclasses.replace(held, layers=layers))
    names = ("fathom:budget=48", "fathom:budget=48,plan=per-layer", "fathom:budget=48,basis=auto", "sparq:r=16")
    found = plan(spec.model_copy(update={"scanners": names}))
    by_label = {scanner.label: scanner for scanner in found.scanners}
    flat, layered = by_label["fathom:budget=48"], by_label["fathom:budget=48,plan=per-layer"]
    assert "fathom:budget=48,basis=rotated" in by_label
    assert (layered.bits_per_token, layered.scan_bytes_per_step) == (flat.bits_per_token, flat.scan_bytes_per_step)
    assert layered.index_shared_with == flat.label
