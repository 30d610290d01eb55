"""The network that decoding captures: the same logits as transformers' own forward, its weights shared with it."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from torch import Tensor

from leadline.attention import forward
from leadline.graph.network import DecodeNetwork, NotDecodable
from leadline.kernels.heads import split_heads
from leadline.rows import Rows

DECODABLE = ("llama", "mistral", "qwen2", "qwen3")


def dense_step(network: DecodeNetwork, rows: Rows, token: int) -> Tensor:
    """Logits of one token after the rows, by dense attention over rows and the new record."""
    n = rows.length
    form = network.form
    position, first = torch.tensor([n], dtype=torch.int32), torch.tensor([n], dtype=torch.int32)
    cos, sin = network.rotary(position)
    hidden, residual = network.embed(torch.tensor([token])), None
    for layer, weights in enumerate(network.layers):
        joint, residual = network.project(layer, hidden, residual)
        query = torch.empty(form.kv_heads, form.group, form.head_dim)
        tail = torch.zeros(form.kv_heads, 1, 2, form.head_dim)
        split_heads(joint, weights.form, cos, sin, position, first, query, tail)
        keys = torch.cat([rows.keys(layer), tail[:, :, 0]], 1)
        values = torch.cat([rows.values(layer), tail[:, :, 1]], 1)
        shares = torch.softmax(query @ keys.transpose(-1, -2) * network.scaling, -1)
        hidden, residual = network.finish(layer, (shares @ values).reshape(1, -1), residual)
    return network.logits(hidden, residual)


@pytest.mark.parametrize("kind", DECODABLE)
@pytest.mark.parametrize("rope", ["default", "yarn"])
def test_logits_are_those_of_transformers(kind: str, rope: str) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 256}
    changes = {"rope_parameters": yarn} if rope == "yarn" else {}
    model = tiny_models.model(kind, **changes)
    prompt = tiny_models.prompt(41)
    rows = Rows.for_model(model, 64)
    forward(model, prompt[:-1], rows)
    network = DecodeNetwork.of(model)
    found = dense_step(network, rows, int(prompt[-1]))
    expected = forward(model, prompt[-1:], rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_weights_are_shared_and_joined_once() -> None:
    model = tiny_models.model("qwen2")
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    first = DecodeNetwork.of(model)
    again = DecodeNetwork.of(model)
    for one, other in zip(first.layers, again.layers, strict=True):
        assert one.joint.data_ptr() == other.joint.data_ptr()
        assert one.gate_up.data_ptr() == other.gate_up.data_ptr()
    attention = model.network.model.layers[0].self_attn
    assert attention.q_proj.weight.data_ptr() == first.layers[0].joint.data_ptr()
    after = model.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gemma3", {}, "gemma3"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"mlp_bias": True}, "biases"),
    ],
)
def test_another_step_is_refused_with_its_reason(kind: str, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(NotDecodable, match=reason):
        DecodeNetwork.of(tiny_models.model(kind, **changes))
