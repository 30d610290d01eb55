"""On a model's own queries and keys: shared lines stay below flat's total, measured gains find more of the top."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.demonstration import samples
from leadline.fidelity.measure import LayerMeter
from leadline.fidelity.window import Window, capture
from leadline.model import load_model
from leadline.registry import create
from leadline.scanners.calibration import Accumulator
from leadline.scanners.statistics import LayerStatistics
from leadline.sessions.directory import discover
from leadline.sessions.render import Renderer

pytestmark = pytest.mark.slow
TOKENS, POSITIONS, K = 1024, 96, 64


@pytest.fixture(scope="module")
def window() -> Window:
    """The front of a bundled session under the embedded model."""
    model = load_model("embedded", device="cpu")
    session = next(iter(discover(samples() / "replay").sessions))
    point = next(p for p in Renderer(model.tokenizer).render(session).points if p.n_tokens >= TOKENS)
    return capture(model, session.id, point.prompt_ids[:TOKENS].tolist(), POSITIONS)


@pytest.fixture(scope="module")
def statistics(window: Window) -> dict[int, LayerStatistics]:
    """Of the part before the measured positions, with the measured positions' queries standing for earlier ones."""
    found = {}
    for number in window.layers:
        layer = window.layer(number)
        sums = Accumulator()
        stand_in = layer.query[:, torch.arange(layer.first) % POSITIONS]
        sums.add(stand_in, layer.keys[:, : layer.first], 0)
        found[number] = sums.statistics()
    return found


def queries(window: Window, number: int) -> Tensor:
    """`[T, H, G, d]`."""
    layer = window.layer(number)
    return layer.query.unflatten(0, (layer.keys.shape[0], -1)).permute(2, 0, 1, 3).float()


@pytest.mark.parametrize("options", ["", ",weight=relative", ",basis=rotated", ",weight=relative,basis=rotated"])
@pytest.mark.parametrize("budget", [16, 48, 80, 200, 500])
def test_a_shared_line_never_reads_more_than_flat_on_real_queries(
    window: Window, statistics: dict[int, LayerStatistics], options: str, budget: int
) -> None:
    shared = create(f"fathom_global:budget={budget}{options}")
    flat = create(f"fathom:budget={budget}" + (",basis=rotated" if "rotated" in options else ""))
    for number in window.layers:
        query, keys = queries(window, number), window.layer(number).keys[:, :64]
        totals = []
        for scanner in (shared, flat):
            state = scanner.calibrate(statistics[number])
            depth = scanner.plan(query, state, scanner.build(keys, state)).depth["planes"]
            totals.append(depth.sum((-1, -2)))
        assert bool((totals[0] <= totals[1]).all())
        assert int(totals[1].max()) <= keys.shape[0] * budget * keys.shape[-1] // 128


def test_measured_gains_find_more_of_the_exact_set_with_no_more_bits(
    window: Window, statistics: dict[int, LayerStatistics]
) -> None:
    """In every layer but a few, at equal budgets. (Attention error falls in most layers too, but not in the first.)"""
    for budget in (48, 96):
        scanners = [create(f"{name}:budget={budget}") for name in ("fathom", "fathom_measured")]
        better = 0
        recall, bits = torch.zeros(2), torch.zeros(2)
        for number in window.layers[::3]:
            meter = LayerMeter(window.layer(number), [K], 4, 32)
            figures = meter.measure([(scanner, scanner.calibrate(statistics[number])) for scanner in scanners])
            flat, measured = (each[K] for each in figures)
            better += measured.recall > flat.recall
            recall += torch.tensor([flat.recall, measured.recall]) / 10
            bits += torch.tensor([flat.bits, measured.bits]) / 10
        assert better >= 9, f"better in {better} of 10 layers"
        assert float(recall[1]) > float(recall[0]) + 0.015
        assert float(bits[1]) < float(bits[0])
