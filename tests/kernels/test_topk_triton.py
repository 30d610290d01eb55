"""The top-k kernels select exactly what the reference selects: crowded rows, plateaus, infinities, short rows."""

from __future__ import annotations

import math

import pytest
import torch
from interpreted import DEVICE, kernels_of
from torch import Tensor

from leadline.kernels.topk import select, select_ids


def expected(scores: Tensor, lengths: Tensor, k: int, sink: int, local: int) -> Tensor:
    """The reference's mask as ascending positions, -1 past the last."""
    rows, n = scores.shape
    mask = select(scores.view(rows, 1, 1, n), lengths, k=k, sink=sink, local=local).view(rows, n)
    ids = torch.full((rows, k), -1, dtype=torch.int32)
    for row in range(rows):
        found = mask[row].nonzero()[:, 0]
        ids[row, : len(found)] = found.to(torch.int32)
    return ids


def chosen(scores: Tensor, lengths: Tensor, k: int, sink: int, local: int, **more: Tensor) -> Tensor:
    """What is selected with blocks of 64 tokens, and with blocks that are smaller the larger k is: the same."""
    coarse, fine = (_chosen(scores, lengths, k, sink, local, known, **more) for known in (0, k))
    assert torch.equal(coarse, fine)
    return fine


def _chosen(scores: Tensor, lengths: Tensor, k: int, sink: int, local: int, known: int, **more: Tensor) -> Tensor:
    topk = kernels_of("topk")
    space = topk.workspace(*scores.shape, torch.device(DEVICE), known)
    for buffer in (space.peaks, space.blocks, space.bound, space.counts, space.keys, space.index):
        buffer.fill_(-1)
    past = torch.where(torch.arange(scores.shape[1]) < lengths.view(-1, 1), scores, torch.nan)
    out = torch.full((scores.shape[0], k), -7, dtype=torch.int32, device=DEVICE)
    topk.select_ids(
        past.to(DEVICE),
        lengths.to(DEVICE, torch.int32),
        k=k,
        sink=sink,
        local=local,
        space=space,
        out=out,
        **{name: tensor.to(DEVICE) for name, tensor in more.items()},
    )
    assert int(space.invalid) == 0
    return out.cpu()


def rows_of(kind: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    noise = torch.randn(2, n, generator=generator)
    plateau = torch.where(torch.rand(2, n, generator=generator) < 0.7, 1.0, noise)
    return {
        "normal": noise,
        "constant": torch.zeros(2, n),
        "rising": torch.arange(n).float().expand(2, n),
        "plateau": plateau,
        "few-values": noise.round(),
        "signed-zero": torch.where(noise > 0, 0.0, -0.0),
        "infinities": torch.where(noise > 1, math.inf, torch.where(noise < 0, -math.inf, noise)),
        "crowded": 1 + noise.abs() * 1e-6,
        "denormal": noise * 1e-44,
        "one-above-a-crowd": torch.where(torch.arange(n) == n // 2 + 7, 1.0, torch.zeros(2, n)),
        "few-above-a-crowd": torch.where(torch.rand(2, n, generator=generator) < 0.01, noise.abs(), torch.zeros(2, n)),
    }[kind].contiguous()


KINDS = ("normal", "constant", "rising", "plateau", "few-values", "signed-zero", "infinities", "crowded", "denormal")
KINDS += ("one-above-a-crowd", "few-above-a-crowd")


@pytest.mark.parametrize("kind", KINDS)
def test_selects_what_the_reference_selects(kind: str) -> None:
    scores, lengths = rows_of(kind, 4500), torch.tensor([4500, 4321])
    assert torch.equal(chosen(scores, lengths, 100, 4, 32), expected(scores, lengths, 100, 4, 32))


@pytest.mark.parametrize(("k", "sink", "local"), [(36, 4, 32), (37, 4, 32), (20, 0, 0), (50, 70, 0), (300, 0, 200)])
def test_windows(k: int, sink: int, local: int) -> None:
    k = max(k, sink + local + 1) if k != 36 else k
    scores, lengths = rows_of("few-values", 1000), torch.tensor([1000, 999])
    assert torch.equal(chosen(scores, lengths, k, sink, local), expected(scores, lengths, k, sink, local))


@pytest.mark.parametrize("n", [1, 35, 36, 63, 64, 65, 127, 128, 129, 200])
def test_short_rows(n: int) -> None:
    scores, lengths = rows_of("few-values", 200), torch.tensor([n, max(1, n - 1)])
    assert torch.equal(chosen(scores, lengths, 64, 4, 32), expected(scores, lengths, 64, 4, 32))


def test_more_wanted_than_there_are_blocks() -> None:
    scores, lengths = rows_of("normal", 700), torch.tensor([700, 640])
    assert torch.equal(chosen(scores, lengths, 600, 4, 32), expected(scores, lengths, 600, 4, 32))


def test_blocks_shrink_until_there_are_four_for_every_selected_token() -> None:
    topk, device = kernels_of("topk"), torch.device(DEVICE)
    units = {(n, k): topk.workspace(1, n, device, k).unit for n in (20_000, 110_000, 1 << 20) for k in (0, 512, 2048)}
    assert [units[20_000, k] for k in (0, 512, 2048)] == [64, 8, 8]
    assert [units[110_000, k] for k in (0, 512, 2048)] == [64, 32, 8]
    assert [units[1 << 20, k] for k in (0, 512, 2048)] == [64, 64, 64]


def test_maxima_the_scan_has_written() -> None:
    """Maxima of whole blocks, the sink's and the local window's included; the tail has none."""
    scores, lengths = rows_of("plateau", 3000), torch.tensor([2990])
    scores[:, 0] = 100.0
    peaks = scores[:, : 46 * 64].unflatten(-1, (-1, 64)).amax(-1)
    wrong = torch.cat([peaks[:, :40], torch.full((2, 6), math.inf)], -1)
    found = chosen(scores, lengths, 90, 4, 32, peaks=wrong, covered=torch.tensor([40], dtype=torch.int32))
    assert torch.equal(found, expected(scores, lengths.expand(2), 90, 4, 32))
    assert torch.equal(chosen(scores, lengths, 90, 4, 32, peaks=peaks), found)


def test_lengths_that_change_between_calls() -> None:
    """A captured launch sees other lengths and other stores each time: one workspace, whatever the last call left."""
    topk = kernels_of("topk")
    scores = rows_of("few-values", 9000)
    space = topk.workspace(2, 9000, torch.device(DEVICE))
    peaks = torch.full((2, 9000 // 64), torch.nan)
    on_device = scores.to(DEVICE)
    for n in (8900, 100, 64, 65, 5000, 37, 9000, 101):
        blocks = (n - 1) // 64
        peaks[:, :blocks] = scores[:, : blocks * 64].unflatten(-1, (blocks, 64)).amax(-1)
        numbers = [torch.tensor([value], dtype=torch.int32, device=DEVICE) for value in (n, blocks)]
        given = {"peaks": peaks.to(DEVICE), "covered": numbers[1], "space": space}
        found = topk.select_ids(on_device, numbers[0], k=100, sink=4, local=32, **given)
        assert torch.equal(found.cpu(), expected(scores[:, :n], torch.tensor([n, n]), 100, 4, 32))
        peaks[:, :blocks] = torch.nan


def test_not_a_number_is_told() -> None:
    topk = kernels_of("topk")
    scores = rows_of("normal", 1000).to(DEVICE)
    scores[1, 500] = torch.nan
    space = topk.workspace(2, 1000, scores.device)
    topk.select_ids(scores, torch.tensor([1000], dtype=torch.int32, device=DEVICE), k=64, sink=4, local=32, space=space)
    assert int(space.invalid) == 1


def test_refuses_what_it_cannot_do() -> None:
    topk = kernels_of("topk")
    lengths = torch.tensor([10], dtype=torch.int32)
    with pytest.raises(ValueError, match="counts sink"):
        topk.select_ids(torch.zeros(1, 10), lengths, k=3, sink=4, local=0)
    with pytest.raises(ValueError, match="fp32"):
        topk.select_ids(torch.zeros(1, 10, dtype=torch.float16), lengths, k=3, sink=0, local=0)
    with pytest.raises(ValueError, match="workspace"):
        topk.select_ids(
            torch.zeros(1, 10), lengths, k=3, sink=0, local=0, space=topk.workspace(1, 5, torch.device("cpu"))
        )


def test_one_dispatch_for_both() -> None:
    scores, lengths = rows_of("few-values", 300), torch.tensor([300], dtype=torch.int32)
    found = select_ids(scores.to(DEVICE), lengths.to(DEVICE), k=50, sink=4, local=32)
    assert torch.equal(found.cpu(), expected(scores, lengths.expand(2), 50, 4, 32))
