"""The protocol on a real model: dense is `generate`, a prefix of one prefill is a fresh prefill, sparse attention
decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from leadline.attention import forward, hooked
from leadline.branch import decode, divergence, teacher_force
from leadline.demonstration import samples
from leadline.host.placement import Placement
from leadline.host.stores import SessionStores
from leadline.model import LoadedModel, load_model
from leadline.registry import create
from leadline.rows import Rows
from leadline.scanning import ScanAttention
from leadline.sessions.directory import discover
from leadline.sessions.render import BranchPoint, RenderedSession, Renderer
from leadline.sessions.schema import Session
from leadline.states import States
from leadline.walk import PrefixWalker

CHUNK = 512


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model("embedded", device="cpu")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def rendered(model: LoadedModel) -> dict[str, tuple[Session, RenderedSession]]:
    renderer = Renderer(model.tokenizer)
    return {s.id: (s, renderer.render(s)) for s in discover(samples() / "replay").sessions}


def near(rendered: RenderedSession, tokens: int) -> BranchPoint:
    return min(rendered.points, key=lambda point: abs(point.n_tokens - tokens))


def attention(name: str, model: LoadedModel, rows: Rows, point: BranchPoint, k: int) -> ScanAttention:
    scanner = create(name)
    states = States(model.shape.scanned_layers, None)
    states.observe_session(rows)
    made = states.of(scanner)
    store = SessionStores(rows, model.shape.scanned_layers, Placement()).of(scanner, made)
    return ScanAttention(scanner, store.indexes(), made, k=k, sink=4, local=32)


@pytest.mark.slow
def test_dense_is_generate_token_for_token(
    model: LoadedModel, rendered: dict[str, tuple[Session, RenderedSession]]
) -> None:
    for _, each in list(rendered.values())[:3]:
        point = near(each, 1100)
        walker = PrefixWalker(model, point.n_tokens + 64, CHUNK, [point.n_tokens - 1])
        ids = torch.from_numpy(point.prompt_ids.astype(np.int64))
        with hooked(model):
            walker.advance(point)
            ours = decode(
                model,
                walker.rows,
                int(ids[-1]),
                attention("dense", model, walker.rows, point, 128),
                max_new_tokens=64,
                stop=model.stop_tokens,
            )
        theirs = model.network.generate(
            ids[None], max_new_tokens=64, do_sample=False, eos_token_id=list(model.stop_tokens)
        )[0, len(ids) :]
        assert list(ours.text_with_stop) == theirs.tolist()
        assert len(ours.margins) == len(ours.text_with_stop) > 0


@pytest.mark.slow
def test_a_selection_of_everything_is_dense_and_a_small_one_is_not(
    model: LoadedModel, rendered: dict[str, tuple[Session, RenderedSession]]
) -> None:
    """Where scores differ the very first token's logits do: it is decided by sparse attention."""
    point = near(rendered["tide-table"][1], 1100)
    walker = PrefixWalker(model, point.n_tokens + 16, CHUNK, [point.n_tokens - 1])
    last = int(point.prompt_ids[-1])
    with hooked(model):
        walker.advance(point)

        def logits(name: str, k: int) -> torch.Tensor:
            return teacher_force(model, walker.rows, last, [last], attention(name, model, walker.rows, point, k))

        dense = logits("dense", 128)
        torch.testing.assert_close(logits("exact", point.n_tokens), dense, rtol=0, atol=0)
        near_all = logits("exact", point.n_tokens - 1)  # through selection and row fetch, all but one token kept
        assert float(divergence(dense, near_all)) < 1e-4
        kept = {
            name: logits(name, 128)
            for name in ("exact", "fathom:budget=48,statistics=session", "sparq:r=16", "landmarks", "streaming")
        }
    names = list(kept)
    for i, a in enumerate(names):
        assert float(divergence(dense, kept[a])) > 1e-5
        for b in names[i + 1 :]:
            assert not torch.equal(kept[a], kept[b]), f"{a} and {b} decided the first token alike"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["exact", "fathom:budget=48,statistics=session", "fathom:budget=48,basis=rotated,statistics=session", "quest"],
)
def test_one_causal_pass_is_token_by_token(
    name: str, model: LoadedModel, rendered: dict[str, tuple[Session, RenderedSession]]
) -> None:
    point = near(rendered["tide-table"][1], 1100)
    text = point.recorded_ids[:6].tolist()
    last = int(point.prompt_ids[-1])
    walker = PrefixWalker(model, point.n_tokens + 16, CHUNK, [point.n_tokens - 1])
    with hooked(model):
        walker.advance(point)
        attend = attention(name, model, walker.rows, point, 128)
        together = teacher_force(model, walker.rows, last, text, attend)
        start = walker.rows.length
        singly = []
        for token in [last, *text[:-1]]:
            singly.append(torch.log_softmax(forward(model, torch.tensor([token]), walker.rows, attend=attend), -1))
        walker.rows.rewind(start)
    assert float(divergence(torch.cat(singly), together).max()) < 1e-4


@pytest.mark.slow
def test_the_step_after_a_condensation_is_a_fresh_prefill(
    model: LoadedModel, rendered: dict[str, tuple[Session, RenderedSession]]
) -> None:
    _, each = next(pair for pair in rendered.values() if len(pair[0].segments) > 1)
    before = [p for p in each.points if p.segment == 0][-1]
    after = next(p for p in each.points if p.segment == 1)
    assert not after.is_prefix
    stops = [before.n_tokens - 1, after.n_tokens - 1]
    walked = PrefixWalker(model, max(stops) + 40, CHUNK, stops)
    fresh = PrefixWalker(model, max(stops) + 40, CHUNK, stops)
    last = int(after.prompt_ids[-1])
    with hooked(model):
        walked.advance(before)
        came_from = walked.advance(after)
        assert 0 < came_from < before.n_tokens - 1, "the condensation keeps a front and drops the rest"
        fresh.advance(after)
        branches = [
            decode(
                model,
                w.rows,
                last,
                attention("dense", model, w.rows, after, 128),
                max_new_tokens=32,
                stop=model.stop_tokens,
            )
            for w in (walked, fresh)
        ]
    assert branches[0].tokens == branches[1].tokens
    assert len(branches[0].tokens) > 0


def test_a_branch_leaves_the_rows_as_they_were(
    model: LoadedModel, rendered: dict[str, tuple[Session, RenderedSession]]
) -> None:
    point = near(rendered["tide-table"][1], 700)
    walker = PrefixWalker(model, point.n_tokens + 8, CHUNK, [point.n_tokens - 1])
    with hooked(model):
        walker.advance(point)
        held = [walker.rows.keys(layer).clone() for layer in range(3)]
        attend = attention("streaming", model, walker.rows, point, 64)
        decode(model, walker.rows, int(point.prompt_ids[-1]), attend, max_new_tokens=3, stop=())
        teacher_force(model, walker.rows, int(point.prompt_ids[-1]), [5, 6], attend)
        assert walker.rows.length == point.n_tokens - 1
        assert all(torch.equal(walker.rows.keys(layer), keys) for layer, keys in enumerate(held))


def test_the_demo_replays_what_it_does_not_calibrate_on() -> None:
    replayed = {s.sha256 for s in discover(samples() / "replay").sessions}
    held_out = {s.sha256 for s in discover(samples() / "calibration").sessions}
    assert len(replayed) >= 4
    assert held_out
    assert not replayed & held_out
    assert isinstance(samples(), Path)
