"""The model's weights laid out for decoding one token, and the parts of a step that are not attention.

transformers' own forward costs tens of milliseconds of Python a token. A captured step needs the same arithmetic in
few kernels: joint projections, norms fused with the residual's addition. Weights are not copied: the model's own
parameters become views of the joint matrices. Rounding follows transformers, operation by operation; only matrix
products may differ in their last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from leadline.kernels.gate import gated
from leadline.kernels.heads import HeadForm
from leadline.kernels.norm import add_norm
from leadline.model import LoadedModel

GRAPH_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


class NotDecodable(ValueError):  # noqa: N818  it is a reason, not a failure
    """This model's step is not one that this module knows; the reason is the message."""


@dataclass(frozen=True)
class LayerWeights:
    """One layer: joint `[(G + 2) H d, w]` holds queries, keys, values; gate_up `[2 f, w]` gate, then up."""

    before_attention: Tensor
    joint: Tensor
    joint_bias: Tensor | None
    form: HeadForm
    out: Tensor
    out_bias: Tensor | None
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class DecodeNetwork:
    """A model without its attention; `inverse_frequencies` `[d / 2]` fp32, `rope_factor` on cos and sin."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    eps: float
    inverse_frequencies: Tensor
    rope_factor: float
    scaling: float

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def form(self) -> HeadForm:
        """Head counts and head_dim, the same in every layer."""
        return self.layers[0].form

    @property
    def nbytes(self) -> int:
        """Bytes of weights a step reads: all but the embedding, of which it reads one row a sequence."""
        own = [self.norm, self.head]
        for layer in self.layers:
            own += [layer.before_attention, layer.joint, layer.out, layer.before_mlp, layer.gate_up, layer.down]
        return sum(tensor.nbytes for tensor in own)

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """The network of a loaded model, sharing its weights. NotDecodable, with the reason, for another architecture.

        The model's projection parameters become views of joint matrices; their values do not change.
        """
        network, shape = model.network, model.shape
        check_decodable(model)
        inner, config = network.model, network.config
        layers = tuple(
            _layer(layer, HeadForm(shape.kv_heads, shape.groups, shape.head_dim, eps=config.rms_norm_eps))
            for layer in inner.layers
        )
        return cls(
            embedding=inner.embed_tokens.weight,
            layers=layers,
            norm=inner.norm.weight,
            head=network.lm_head.weight,
            eps=config.rms_norm_eps,
            inverse_frequencies=inner.rotary_emb.inv_freq.to(model.device, torch.float32),
            rope_factor=float(inner.rotary_emb.attention_scaling),
            scaling=float(inner.layers[0].self_attn.scaling),
        )

    def rotary(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin `[d]` of a position (int32 `[1]`), computed in fp32 and rounded to the model's precision."""
        angle = self.inverse_frequencies * position.to(torch.float32)
        angle = torch.cat((angle, angle))
        return (angle.cos() * self.rope_factor).to(self.dtype), (angle.sin() * self.rope_factor).to(self.dtype)

    def embed(self, token: Tensor) -> Tensor:
        """Embeddings `[N, w]` of one token a sequence, int64 `[N]`."""
        return nn.functional.embedding(token, self.embedding)

    def project(self, layer: int, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """The joint projection `[N, (G + 2) H d]` of one layer and the residual stream behind it."""
        weights = self.layers[layer]
        normed, total = add_norm(hidden, weights.before_attention, self.eps, residual)
        return nn.functional.linear(normed, weights.joint, weights.joint_bias), total

    def finish(self, layer: int, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Output projection and feed-forward part: `[N, G H d]` and residual in, the next hidden and residual out."""
        weights = self.layers[layer]
        projected = nn.functional.linear(attended, weights.out, weights.out_bias)
        normed, total = add_norm(projected, weights.before_mlp, self.eps, residual)
        return nn.functional.linear(gated(nn.functional.linear(normed, weights.gate_up)), weights.down), total

    def logits(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """Raw logits in fp32, `[N, V]`."""
        normed, _ = add_norm(hidden, self.norm, self.eps, residual)
        return nn.functional.linear(normed, self.head).to(torch.float32)


def check_decodable(model: LoadedModel) -> None:
    """NotDecodable, with the reason, unless this module computes the model's step."""
    config = model.network.config
    reason = None
    if config.model_type not in GRAPH_TYPES:
        reason = f"a step of {config.model_type} models has no kernels"
    elif len(model.shape.scanned_layers) != model.shape.layers:
        reason = "some layers have a sliding window"
    elif config.hidden_act != "silu":
        reason = f"its activation is {config.hidden_act}, not silu"
    elif config.rope_parameters["rope_type"] not in _STATIC_ROPE:
        reason = f"positions of type {config.rope_parameters['rope_type']} change with the length"
    elif any(layer.mlp.down_proj.bias is not None for layer in model.network.model.layers):
        reason = "its feed-forward part has biases"
    if reason:
        raise NotDecodable(reason)


def _layer(layer: Any, form: HeadForm) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return LayerWeights(
        before_attention=layer.input_layernorm.weight,
        joint=_joined(projections, "weight"),
        joint_bias=None if attention.q_proj.bias is None else _joined(projections, "bias"),
        form=HeadForm(
            form.kv_heads,
            form.group,
            form.head_dim,
            None if query_norm is None else query_norm.weight,
            None if key_norm is None else key_norm.weight,
            form.eps,
        ),
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=_joined((mlp.gate_proj, mlp.up_proj), "weight"),
        down=mlp.down_proj.weight,
    )


@torch.no_grad()
def _joined(modules: tuple[Any, ...], name: str) -> Tensor:
    """The parameters of several projections as one matrix, of which theirs become views; made once, then found."""
    parts: list[Tensor] = [getattr(module, name).data for module in modules]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    storage = parts[0].untyped_storage()
    size = sum(len(part) for part in parts)
    joined = all(part.data_ptr() == end for part, end in zip(parts[1:], ends[:-1], strict=True))
    if joined and all(part.untyped_storage().data_ptr() == storage.data_ptr() for part in parts):
        return parts[0].as_strided((size, *parts[0].shape[1:]), parts[0].stride())
    joint = torch.cat(parts)
    for module, piece in zip(modules, joint.split([len(part) for part in parts]), strict=True):
        setattr(module, name, nn.Parameter(piece, requires_grad=False))
    return joint
