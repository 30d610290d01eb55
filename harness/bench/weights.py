"""A network of a shape with random weights, as the decode step reads it."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.bench.shapes import Shape
from leadline.graph.network import DecodeNetwork, LayerWeights
from leadline.kernels.heads import HeadForm

_SPREAD = 0.02  # the usual initialisation: hidden states stay finite through all layers


def random_network(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int) -> DecodeNetwork:
    """Normal weights with a spread of 0.02, norms of 1, drawn on the device from `seed`."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device).normal_(0.0, _SPREAD, generator=generator)

    def ones(size: int) -> Tensor:
        return torch.ones(size, dtype=dtype, device=device)

    d, queries = shape.head_dim, shape.query_heads * shape.head_dim
    width = queries + 2 * shape.kv_heads * d
    layers = tuple(
        LayerWeights(
            before_attention=ones(shape.hidden),
            joint=normal(width, shape.hidden),
            joint_bias=normal(width) if shape.bias else None,
            form=HeadForm(
                shape.kv_heads,
                shape.group,
                d,
                ones(d) if shape.qk_norm else None,
                ones(d) if shape.qk_norm else None,
                shape.eps,
            ),
            out=normal(shape.hidden, queries),
            out_bias=None,
            before_mlp=ones(shape.hidden),
            gate_up=normal(2 * shape.mlp, shape.hidden),
            down=normal(shape.hidden, shape.mlp),
        )
        for _ in range(shape.layers)
    )
    embedding = normal(shape.vocabulary, shape.hidden)
    exponents = torch.arange(0, d, 2, dtype=torch.float32, device=device) / d
    return DecodeNetwork(
        embedding=embedding,
        layers=layers,
        norm=ones(shape.hidden),
        head=embedding if shape.tied else normal(shape.vocabulary, shape.hidden),
        eps=shape.eps,
        inverse_frequencies=shape.theta**-exponents,
        rope_factor=1.0,
        scaling=d**-0.5,
    )
