"""K/V rows: what the model stores, exactness of a rewind, the capacity."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import torch

from leadline.attention import forward, hooked
from leadline.errors import UsageError
from leadline.rows import Rows


def _rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """RoPE written out: pairs (i, i + d/2) turned by position * theta^(-2i/d); x is `[H, n, d]`."""
    n, d = x.shape[1:]
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    first, second = x.double()[..., : d // 2], x.double()[..., d // 2 :]
    turned = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
    return torch.cat(turned, -1)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x.double() / (x.double().pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_rows_are_post_norm_and_post_rope(kind: str) -> None:
    model = tiny_models.model(kind)
    config = model.network.config
    seen: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Any:
        return lambda _module, inputs: seen.__setitem__(layer, inputs[0][0])

    blocks = model.network.model.layers
    hooks = [block.self_attn.k_proj.register_forward_pre_hook(keep(n)) for n, block in enumerate(blocks)]
    rows = Rows.for_model(model, 64)
    with hooked(model):
        forward(model, tiny_models.prompt(50), rows)
    for hook in hooks:
        hook.remove()
    for index, block in enumerate(model.network.model.layers):
        attention = block.self_attn
        keys = attention.k_proj(seen[index]).unflatten(-1, (-1, model.shape.head_dim)).transpose(0, 1)
        if hasattr(attention, "k_norm"):
            weight = attention.k_norm.weight + (1.0 if kind == "gemma3" else 0.0)
            keys = _norm(keys, weight, config.rms_norm_eps)
        parameters = config.rope_parameters
        if kind == "gemma3":
            parameters = parameters[config.layer_types[index]]
        torch.testing.assert_close(
            rows.keys(index).double(), _rotate(keys, parameters["rope_theta"]), rtol=1e-4, atol=1e-4
        )
        values = attention.v_proj(seen[index]).unflatten(-1, (-1, model.shape.head_dim)).transpose(0, 1)
        torch.testing.assert_close(rows.values(index), values)


def test_views_share_memory_and_grow_in_place() -> None:
    model = tiny_models.model("llama")
    rows = Rows.for_model(model, 32)
    with hooked(model):
        forward(model, tiny_models.prompt(5), rows)
        start = rows.keys(0).data_ptr()
        forward(model, tiny_models.prompt(20), rows)
    assert rows.length == 25
    assert rows.keys(3).shape == rows.values(3).shape == (2, 25, 16)
    assert rows.keys(0).data_ptr() == start
    assert rows.keys(0).stride() == (32 * 16, 16, 1)
    assert rows.nbytes == 4 * 2 * (2 * 32 * 16 * 4)


def test_rewind_is_exact() -> None:
    model = tiny_models.model("gemma3")
    ids = tiny_models.prompt(90)
    rows = Rows.for_model(model, 128)
    with hooked(model):
        forward(model, ids[:60], rows)
        kept = [(rows.keys(layer).clone(), rows.values(layer).clone()) for layer in range(4)]
        first = forward(model, ids[60:61], rows)
        forward(model, ids[61:90], rows)
        rows.rewind(60)
        assert all(torch.equal(rows.keys(n), k) and torch.equal(rows.values(n), v) for n, (k, v) in enumerate(kept))
        assert torch.equal(forward(model, ids[60:61], rows), first)
    with pytest.raises(ValueError, match="cannot rewind to 62"):
        rows.rewind(62)


def test_overflow_names_the_capacity_and_leaves_the_rows_alone() -> None:
    model = tiny_models.model("llama")
    rows = Rows.for_model(model, 10)
    with hooked(model):
        forward(model, tiny_models.prompt(8), rows)
        with pytest.raises(UsageError, match="capacity of 10 tokens"):
            forward(model, tiny_models.prompt(3), rows)
        assert [layer.filled for layer in rows.layers] == [8] * 4
        forward(model, tiny_models.prompt(2), rows)
    with pytest.raises(UsageError, match="capacity of 10 tokens"):
        rows.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16), 0)


def test_only_one_sequence() -> None:
    rows = Rows.for_model(tiny_models.model("llama"), 10)
    with pytest.raises(ValueError, match="batch of 2"):
        rows.update(torch.zeros(2, 2, 1, 16), torch.zeros(2, 2, 1, 16), 0)
    with pytest.raises(ValueError, match="at least 1"):
        Rows.for_model(tiny_models.model("llama"), 0)
