"""The attention hook: the same tokens as the model's own generation, the same numbers as its own attention."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from leadline.attention import IMPLEMENTATION, dense, forward, hooked
from leadline.errors import UsageError
from leadline.model import LoadedModel
from leadline.prefill import extend
from leadline.rows import Rows


def greedy(model: LoadedModel, rows: Rows, last: Tensor, steps: int) -> list[int]:
    """Decode `steps` tokens from rows that hold everything before `last` `[1]`, then rewind."""
    start, token, found = rows.length, last, []
    for _ in range(steps):
        token = forward(model, token, rows).argmax(-1)
        found.append(int(token))
    rows.rewind(start)
    return found


def generate(model: LoadedModel, ids: Tensor, steps: int) -> list[int]:
    """What transformers' own generation gives."""
    # An explicit mask: generate would take a padding token's id inside the prompt for padding.
    everything = torch.ones_like(ids)[None]
    out = model.network.generate(
        ids[None],
        attention_mask=everything,
        do_sample=False,
        max_new_tokens=steps,
        min_new_tokens=steps,
        pad_token_id=0,
    )
    return out[0, ids.shape[0] :].tolist()


@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_greedy_decoding_equals_generate(kind: str) -> None:
    model = tiny_models.model(kind)
    ids = tiny_models.prompt(200)
    expected = generate(model, ids, 64)
    assert len(set(expected)) > 8, "a model that repeats itself would prove nothing"
    rows = Rows.for_model(model, 300)
    with hooked(model):
        extend(model, rows, ids, 199, chunk=64, stops=[150])
        assert greedy(model, rows, ids[199:], 64) == expected
        assert greedy(model, rows, ids[199:], 64) == expected, "decoding again after a rewind"


def test_sliding_layers_of_qwen2_keep_their_window() -> None:
    model = tiny_models.model("qwen2", use_sliding_window=True, sliding_window=20, max_window_layers=2)
    assert model.shape.scanned_layers == (0, 1)
    ids = tiny_models.prompt(120)
    expected = generate(model, ids, 32)
    rows = Rows.for_model(model, 160)
    with hooked(model):
        extend(model, rows, ids, 119, chunk=48, stops=[])
        assert greedy(model, rows, ids[119:], 32) == expected


@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_attend_sees_scanned_layers_only_and_dense_is_the_hooks_own(kind: str) -> None:
    model = tiny_models.model(kind)
    ids = tiny_models.prompt(70)
    seen: list[tuple[int, int, int]] = []

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        shape = model.shape
        assert query.shape[0] == shape.query_heads
        assert keys.shape == values.shape == (shape.kv_heads, keys.shape[1], shape.head_dim)
        assert scaling == pytest.approx(shape.head_dim**-0.5)
        seen.append((layer, query.shape[1], keys.shape[1]))
        return dense(query, keys, values, scaling)

    plain, scanned = Rows.for_model(model, 80), Rows.for_model(model, 80)
    with hooked(model):
        for part in (ids[:40], ids[40:69], ids[69:]):
            own = forward(model, part, plain, logits="all")
            through = forward(model, part, scanned, attend=attend, logits="all")
            assert own.shape == (part.shape[0], tiny_models.VOCABULARY)
            assert torch.equal(own, through)
    layers = model.shape.scanned_layers
    assert layers == ((1, 3) if kind == "gemma3" else (0, 1, 2, 3))
    assert seen == [(n, *sizes) for sizes in ((40, 40), (29, 69), (1, 70)) for n in layers]


def test_dense_equals_softmax_written_out() -> None:
    generator = torch.Generator().manual_seed(3)
    query, keys, values = (torch.randn(heads, n, 8, generator=generator) for heads, n in ((6, 5), (2, 12), (2, 12)))
    scores = query @ keys.repeat_interleave(3, 0).transpose(1, 2) * 0.3
    hidden = torch.arange(12)[None] > torch.arange(7, 12)[:, None]
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values.repeat_interleave(3, 0)
    torch.testing.assert_close(dense(query, keys, values, 0.3), expected)
    torch.testing.assert_close(dense(query[:, -1:], keys, values, 0.3), expected[:, -1:])


def test_what_attend_returns_reaches_the_logits() -> None:
    model = tiny_models.model("llama")
    ids = tiny_models.prompt(30)
    rows = Rows.for_model(model, 40)
    with hooked(model):
        forward(model, ids[:29], rows)
        own = forward(model, ids[29:], rows)
        rows.rewind(29)
        other = forward(model, ids[29:], rows, attend=lambda layer, query, *_: torch.zeros_like(query))
        rows.rewind(29)
        with pytest.raises(ValueError, match=r"attend gave \(1, 6, 16\)"):
            forward(model, ids[29:], rows, attend=lambda layer, query, *_: query.transpose(0, 1))
    assert not torch.allclose(own, other, atol=0.1)


def test_without_the_mask_a_chunked_prefill_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.model("llama")
    ids = tiny_models.prompt(100)
    with hooked(model):
        whole = forward(model, ids, Rows.for_model(model, 100))
        rows = Rows.for_model(model, 100)
        extend(model, rows, ids, 64, chunk=32, stops=[])
        right = forward(model, ids[64:], rows)
        torch.testing.assert_close(right, whole, rtol=1e-4, atol=1e-3)
        monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, IMPLEMENTATION)
        rows = Rows.for_model(model, 100)
        extend(model, rows, ids, 64, chunk=32, stops=[])
        wrong = forward(model, ids[64:], rows)
    assert (wrong - whole).abs().max() > 0.5


def test_the_previous_implementation_comes_back() -> None:
    model = tiny_models.model("qwen3")
    with hooked(model):
        assert model.network.config._attn_implementation == IMPLEMENTATION
    assert model.network.config._attn_implementation == "sdpa"
    model.network.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="inside"), hooked(model):
        raise RuntimeError("inside")
    assert model.network.config._attn_implementation == "eager"


def test_an_error_inside_a_layer_leaves_the_rows_as_they_were() -> None:
    model = tiny_models.model("llama")
    ids = tiny_models.prompt(30)

    def failing(layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        if layer == 2:
            raise KeyboardInterrupt
        return dense(query, keys, values, scaling)

    rows = Rows.for_model(model, 40)
    with hooked(model):
        forward(model, ids[:20], rows)
        expected = forward(model, ids[20:], rows)
        rows.rewind(20)
        with pytest.raises(KeyboardInterrupt):
            forward(model, ids[20:], rows, attend=failing)
        assert [layer.filled for layer in rows.layers] == [20] * 4
        assert torch.equal(forward(model, ids[20:], rows), expected)


def test_attend_without_the_hook_is_refused() -> None:
    model = tiny_models.model("llama")
    with pytest.raises(RuntimeError, match="hooked"):
        forward(model, tiny_models.prompt(3), Rows.for_model(model, 8), attend=lambda layer, query, *_: query)


def test_more_tokens_than_positions_is_a_usage_error() -> None:
    model = tiny_models.model("llama", max_position_embeddings=32)
    rows = Rows.for_model(model, 64)
    with hooked(model):
        forward(model, tiny_models.prompt(32), rows)
        with pytest.raises(UsageError, match="at most 32"):
            forward(model, tiny_models.prompt(1), rows)
    with pytest.raises(ValueError, match="non-empty"):
        forward(model, tiny_models.prompt(0), rows)
