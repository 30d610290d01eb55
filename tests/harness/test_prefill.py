"""Chunked prefill: where chunks end, and that they do not change what the model computes."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from leadline.attention import forward, hooked
from leadline.prefill import chunk_ends, extend
from leadline.rows import Rows


def test_ends_lie_at_multiples_and_branch_points() -> None:
    assert chunk_ends(0, 2500, 1024, [1500, 2500, 4000]) == [1024, 1500, 2048, 2500]
    assert chunk_ends(1500, 2500, 1024, [1500, 2500]) == [2048, 2500]
    assert chunk_ends(700, 1024, 1024, []) == [1024]
    assert chunk_ends(5, 5, 4, [5]) == []
    with pytest.raises(ValueError, match="cannot cut"):
        chunk_ends(6, 5, 4, [])
    with pytest.raises(ValueError, match="cannot cut"):
        chunk_ends(0, 5, 0, [])


@given(stops=st.sets(st.integers(1, 400), min_size=1, max_size=5), chunk=st.integers(1, 200), done=st.integers(0, 4))
def test_a_resumed_run_cuts_like_an_uninterrupted_one(stops: set[int], chunk: int, done: int) -> None:
    points = sorted(stops)
    whole = [end for a, b in zip([0, *points], points, strict=False) for end in chunk_ends(a, b, chunk, stops)]
    assert whole == chunk_ends(0, points[-1], chunk, stops)
    resumed = points[min(done, len(points) - 1)]
    first = chunk_ends(0, resumed, chunk, stops)
    assert first + chunk_ends(resumed, points[-1], chunk, stops) == whole
    assert all(end % chunk == 0 or end in stops for end in whole)


@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_chunks_give_the_same_logits_and_rows(kind: str) -> None:
    model = tiny_models.model(kind)
    ids = tiny_models.prompt(150)
    whole, parts = Rows.for_model(model, 160), Rows.for_model(model, 160)
    done: list[int] = []
    with hooked(model):
        expected = forward(model, ids, whole)
        extend(model, parts, ids, 149, chunk=32, stops=[50, 149], on_chunk=done.append)
        found = forward(model, ids[149:], parts)
    assert done == [32, 50, 64, 96, 128, 149]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    for layer in range(4):
        torch.testing.assert_close(parts.keys(layer), whole.keys(layer), rtol=1e-3, atol=2e-3)
        torch.testing.assert_close(parts.values(layer), whole.values(layer), rtol=1e-3, atol=2e-3)


def test_the_same_chunks_give_the_same_bits_after_a_rewind() -> None:
    model = tiny_models.model("llama")
    ids = tiny_models.prompt(120)
    once, again = Rows.for_model(model, 128), Rows.for_model(model, 128)
    with hooked(model):
        extend(model, once, ids, 119, chunk=32, stops=[70])
        extend(model, again, ids, 119, chunk=32, stops=[70])
        again.rewind(70)
        extend(model, again, ids, 119, chunk=32, stops=[70])
    assert all(torch.equal(once.keys(layer), again.keys(layer)) for layer in range(4))


def test_a_prompt_that_is_too_short_is_refused() -> None:
    model = tiny_models.model("llama")
    with pytest.raises(ValueError, match="the prompt has 5 tokens"):
        extend(model, Rows.for_model(model, 8), tiny_models.prompt(5), 6, chunk=4, stops=[])
