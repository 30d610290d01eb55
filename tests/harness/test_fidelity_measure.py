"""The error of a selected set against dense attention: position by position, by another road, and at its edges."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from cases import SCANNERS
from torch import Tensor

from leadline.attention import dense, forward, hooked
from leadline.fidelity.choosing import candidates, choose
from leadline.fidelity.measure import LayerMeter, attend_masked, prefix
from leadline.fidelity.window import CapturedLayer, capture, measured_positions
from leadline.kernels.planes import BLOCK
from leadline.kernels.topk import select
from leadline.registry import create
from leadline.rows import Rows
from leadline.scanners.base import Scanner, State
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import of_keys
from leadline.scanning import ByteLedger, ScanAttention

H, G, D, N, T = 2, 3, 64, 330, 80
K, SINK, LOCAL = 48, 4, 32


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def layer() -> CapturedLayer:
    """80 measured positions over three stores: 250..329 see 3, 4 and 5 complete blocks."""
    keys = draw(H, N, D, seed=1) * torch.exp(draw(H, 1, D, seed=2))
    return CapturedLayer(draw(H * G, T, D, seed=3), keys, draw(H, N, D, seed=4), D**-0.5)


def calibrated(scanner: Scanner, layer: CapturedLayer) -> State:
    if scanner.needs == "nothing":
        return scanner.calibrate(None)
    if scanner.needs == "session":
        return scanner.calibrate(of_keys(layer.keys[:, : layer.first]))
    sums = Accumulator()
    sums.add(layer.query, layer.keys[:, layer.first :], layer.first)
    return scanner.calibrate(sums.statistics().to(layer.keys.device))


def selected(scanner: Scanner, state: State, layer: CapturedLayer, position: int) -> tuple[Tensor, ByteLedger]:
    """The output `[Hq, d]` of one decode step at `position`, with a store built from what was complete by then."""
    n = position + 1
    index = scanner.build(layer.keys[:, : (n - 1) // BLOCK * BLOCK].contiguous(), state)
    ledger = ByteLedger()
    attend = ScanAttention(scanner, {0: index}, {0: state}, k=K, sink=SINK, local=LOCAL, ledger=ledger)
    at = position - layer.first
    query = layer.query[:, at : at + 1]
    return attend(0, query, layer.keys[:, :n], layer.values[:, :n], layer.scaling)[:, 0], ledger


@pytest.mark.parametrize("spec", SCANNERS)
def test_figures_are_those_of_one_decode_step_after_another(layer: CapturedLayer, spec: str) -> None:
    """No position sees a key, a block or a scale of its future: each is decoded here from a store of its own."""
    scanner = create(spec)
    state = calibrated(scanner, layer)
    (found,) = LayerMeter(layer, [K], SINK, LOCAL).measure([(scanner, state)])
    errors, bits, rows = [], 0.0, 0.0
    for position in range(layer.first, N):
        out, ledger = selected(scanner, state, layer, position)
        n = position + 1
        at = position - layer.first
        exact = dense(layer.query[:, at : at + 1], layer.keys[:, :n], layer.values[:, :n], layer.scaling)[:, 0]
        errors.append((out - exact).norm(dim=-1) / exact.norm(dim=-1))
        bits += 8 * ledger.realised / ledger.scanned_tokens
        rows += ledger.union / H
    assert found[K].error == pytest.approx(float(torch.stack(errors).double().mean()), rel=1e-4)
    assert found[K].bits == pytest.approx(bits / T, rel=1e-9)
    assert found[K].rows == pytest.approx(rows / T, rel=1e-3)


def test_exact_recalls_itself_and_a_blind_scanner_does_not(layer: CapturedLayer) -> None:
    exact, blind = LayerMeter(layer, [K, 96], SINK, LOCAL).measure(
        [(create("exact"), State()), (create("streaming"), State())], [[K, 96], [K]]
    )
    assert exact[K].recall == exact[96].recall == 1
    assert exact[96].error < exact[K].error < blind[K].error
    assert blind[K].recall < 0.5
    assert blind.keys() == {K}
    assert blind[K].rows == K
    assert blind[K].bits == 0


def test_keys_after_a_position_do_not_change_its_figures(layer: CapturedLayer) -> None:
    """Another future, of another scale: the first 30 positions come out the same."""
    keys, values = layer.keys.clone(), layer.values.clone()
    end = layer.first + 30
    keys[:, end:] *= 50
    values[:, end:] *= 50
    for spec in SCANNERS:
        scanner = create(spec)
        state = calibrated(scanner, layer)
        cut = CapturedLayer(layer.query[:, :30], layer.keys[:, :end], layer.values[:, :end], layer.scaling)
        (alone,) = LayerMeter(cut, [K], SINK, LOCAL).measure([(scanner, state)])
        whole = LayerMeter(CapturedLayer(layer.query, keys, values, layer.scaling), [K], SINK, LOCAL)
        groups = []
        for group in whole._groups():
            groups.append(whole._choices(group, whole._scores(group, scanner, state)[0], [K])[K])
            if sum(mask.shape[0] for mask in groups) >= 30:
                break
        expected = []
        meter = LayerMeter(cut, [K], SINK, LOCAL)
        for group in meter._groups():
            expected.append(meter._choices(group, meter._scores(group, scanner, state)[0], [K])[K])
        n = expected[0].shape[-1]
        assert torch.equal(groups[0][: expected[0].shape[0], ..., :n], expected[0])
        assert alone[K].error > 0


@pytest.mark.parametrize("spec", SCANNERS)
def test_a_prefix_of_a_store_is_the_store_of_a_prefix(layer: CapturedLayer, spec: str) -> None:
    scanner = create(spec)
    state = calibrated(scanner, layer)
    cut, whole = scanner.build(layer.keys[:, :192], state), scanner.build(layer.keys[:, :320], state)
    found = prefix(whole, 192)
    assert found.tokens == cut.tokens == 192
    for name, field in cut.fields.items():
        assert torch.equal(found.fields[name], field)


@pytest.mark.parametrize("ties", [False, True])
def test_choosing_is_the_harness_selection(ties: bool) -> None:
    scores = draw(9, H, G, 200, seed=8)
    if ties:
        scores = (scores * 2).round()
    visible = torch.arange(192, 201)
    options = {"k": K, "sink": SINK, "local": LOCAL}
    expected = select(scores, visible, **options)
    ranked = candidates(scores.clone(), visible, sink=SINK, local=LOCAL)
    assert torch.equal(choose(ranked, visible, **options), expected)
    for name, value in (("some", scores), ("most", torch.where(scores > 1.5, scores, -torch.inf))):
        ranked = candidates(value.clone(), visible, sink=SINK, local=LOCAL)
        assert torch.equal(choose(ranked, visible, **options), select(value, visible, **options)), name
    scores[3, 1, 2, [0, -1]] = torch.nan  # a sink and a local token: nobody ranks them
    assert torch.equal(
        choose(candidates(scores.clone(), visible, sink=SINK, local=LOCAL), visible, **options), expected
    )
    scores[3, 1, 2, 60] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        candidates(scores, visible, sink=SINK, local=LOCAL)


def test_a_selection_without_mass_is_still_attended_to() -> None:
    """Dense weights of the chosen tokens that underflow do not turn the output into 0 / 0."""
    logits = torch.tensor([[[[200.0, 0.0, 1.0, -300.0]]]])
    values = draw(1, 4, 8, seed=9)
    mask = torch.tensor([[[[False, True, True, True]]]])
    found = attend_masked(torch.softmax(logits, -1), logits, torch.cat([values, torch.ones(1, 4, 1)], -1), mask)
    expected = torch.softmax(torch.tensor([0.0, 1.0, -300.0]), -1) @ values[0, 1:]
    torch.testing.assert_close(found[0, 0, 0], expected)


def test_k_must_be_a_selection(layer: CapturedLayer) -> None:
    for k in (36, layer.first + 1):
        with pytest.raises(ValueError, match="must exceed"):
            LayerMeter(layer, [k], SINK, LOCAL)


def test_a_captured_window_holds_the_last_queries_and_all_rows() -> None:
    """Captured over several chunks; dense attention of the captured layer is what the model itself computed."""
    model = tiny_models.model("qwen3")
    ids = tiny_models.prompt(150).tolist()
    window = capture(model, "w", ids, positions=70, chunk=40)
    assert window.length == 150
    assert window.layers == model.shape.scanned_layers
    seen: dict[int, Tensor] = {}

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        seen[layer] = query.clone()
        return dense(query, keys, values, scaling)

    with hooked(model):
        forward(model, torch.tensor(ids), Rows.for_model(model, 150), attend=attend)
    for layer in window.layers:
        captured = window.layer(layer)
        assert captured.first == 80
        torch.testing.assert_close(captured.query, seen[layer][:, 80:], rtol=1e-4, atol=1e-4)
        assert captured.keys.shape == (model.shape.kv_heads, 150, model.shape.head_dim)
    with pytest.raises(ValueError, match="cannot measure"):
        capture(model, "w", ids, positions=150)


def test_long_windows_are_measured_at_fewer_positions() -> None:
    assert measured_positions(4096) == 128
    assert measured_positions(131072) == 64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", SCANNERS)
def test_a_gpu_measures_what_a_cpu_does(layer: CapturedLayer, spec: str) -> None:
    """Up to near-ties, which another order of summation decides otherwise."""
    scanner = create(spec)
    there = CapturedLayer(layer.query.cuda(), layer.keys.cuda(), layer.values.cuda(), layer.scaling)
    found = []
    for each in (layer, there):
        state = calibrated(scanner, each)
        (figures,) = LayerMeter(each, [K], SINK, LOCAL).measure([(scanner, state)])
        found.append(figures[K])
    assert found[1].error == pytest.approx(found[0].error, rel=2e-3)
    assert found[1].recall == pytest.approx(found[0].recall, abs=2e-3)
    assert found[1].bits == pytest.approx(found[0].bits, rel=2e-3)
