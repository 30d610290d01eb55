"""One decode step of a model under one scanner: enqueued op by op, or captured as one CUDA graph and replayed.

The same code runs on a CPU through the references, which is how the tests compare it with the engine's own attention.
A step reads its place from the cursor, appends the token's record to every layer's tail, and leaves the logits of the
next token; nothing in it waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.graph.cursor import Cursor, Selection
from leadline.graph.lanes import Bench, Lane
from leadline.graph.network import DecodeNetwork
from leadline.graph.scratch import Scratch
from leadline.kernels.attention import attend_all, attend_rows
from leadline.kernels.heads import split_heads
from leadline.kernels.rows import fetch_records, union
from leadline.kernels.topk import select_ids

WARM_UP = 2  # eager runs before a capture: they compile the kernels and grow the allocator's pools


@dataclass(frozen=True)
class StoredRows:
    """K/V rows of a layer before the tail, on the GPU or in pinned host memory: `[N H, capacity, d]` each, or `[H,
    capacity, d]` that N sequences share.
    """

    keys: Tensor
    values: Tensor


class DecodeStep:
    """A step under one lane.

    rows: by layer. tails: records by layer, `[N H, t, 2, d]` on the GPU. `queries`, where given, replace the model's
    own by layer (fp32 `[N H, G, d]`; synthetic contents). `counting` adds what the kernels really read to `read`, int64
    `[L, 3]`: store, rows, tail rows, in bytes; such a step is not for timing.
    """

    def __init__(
        self,
        network: DecodeNetwork,
        lane: Lane,
        rows: Sequence[StoredRows],
        tails: Sequence[Tensor],
        scratch: Scratch,
        cursor: Cursor,
        selection: Selection,
        *,
        dense_layers: frozenset[int] = frozenset(),
        queries: Sequence[Tensor] | None = None,
        counting: bool = False,
        keep: bool = False,
    ) -> None:
        self.network, self.lane, self.rows, self.selection = network, lane, rows, selection
        self.dense_layers, self.queries = dense_layers, queries
        self.bench = Bench(scratch, cursor, tails)
        layers, device = len(network.layers), network.device
        self.read = torch.zeros(layers, 3, dtype=torch.int64, device=device) if counting else None
        self.unions = torch.zeros(layers, scratch.heads, dtype=torch.int32, device=device)
        form = network.form
        self.chosen = self.asked = None
        if keep:  # selections and queries by layer, to be compared with the references'
            k = selection.k
            self.chosen = torch.zeros(layers, scratch.heads, form.group, k, dtype=torch.int32, device=device)
            self.asked = torch.zeros(layers, scratch.heads, form.group, form.head_dim, device=device)
        self.logits: Tensor | None = None
        self._replay: Callable[[], None] | None = None

    def scans(self, layer: int) -> bool:
        """Whether a layer selects rows at all."""
        return self.lane.selects and layer not in self.dense_layers

    @torch.no_grad()
    def enqueue(self) -> Tensor:
        """Every op of the step, in order; the logits `[N, V]` fp32."""
        network, cursor = self.network, self.bench.cursor
        cos, sin = network.rotary(cursor.position)
        hidden: Tensor = network.embed(cursor.token)
        residual: Tensor | None = None
        for layer in range(len(network.layers)):
            joint, residual = network.project(layer, hidden, residual)
            attended = self._attention(layer, joint, cos, sin)
            hidden, residual = network.finish(layer, attended, residual)
        assert residual is not None
        return network.logits(hidden, residual)

    def _attention(self, layer: int, joint: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention output `[N, H G d]` of one layer in the model's precision."""
        scratch, cursor, network = self.bench.scratch, self.bench.cursor, self.network
        spaces = scratch.spaces
        tail, rows = self.bench.tails[layer], self.rows[layer]
        form = network.layers[layer].form
        query = scratch.query
        split_heads(joint, form, cos, sin, cursor.position, cursor.first, query, tail, scratch.key)
        if self.queries is not None:
            query = self.queries[layer]
        store, moved = (None, None) if self.read is None else (self.read[layer, :1], self.read[layer, 1:])
        if self.scans(layer):
            self.lane.scan(layer, query, self.bench, store)
            k, sink, local = self.selection.k, self.selection.sink, self.selection.local
            ids = select_ids(
                scratch.scores.flatten(0, 1),
                cursor.length,
                k=k,
                sink=sink,
                local=local,
                space=spaces.topk,
                peaks=scratch.maxima.flatten(0, 1),
                covered=cursor.blocks,
                out=scratch.ids,
            )
            chosen = ids.view(scratch.heads, form.group, k)
            wanted = union(chosen, scratch.columns, spaces.union, scratch.union(self.unions[layer]))
            if self.chosen is not None and self.asked is not None:
                self.chosen[layer].copy_(chosen)
                self.asked[layer].copy_(query)
            fetch_records(wanted, rows.keys, rows.values, tail, cursor.first, out=scratch.records, counter=moved)
            attend_rows(
                query,
                scratch.records[:, :, 0],
                scratch.records[:, :, 1],
                wanted,
                network.scaling,
                space=spaces.attention,
                out=scratch.attended,
            )
        else:
            attend_all(
                query,
                rows.keys,
                rows.values,
                tail,
                cursor.first,
                cursor.length,
                network.scaling,
                space=spaces.dense,
                out=scratch.attended,
                counter=moved,
            )
        return scratch.attended.view(joint.shape[0], -1)

    @property
    def captured(self) -> bool:
        """Whether the step runs by its graph."""
        return self._replay is not None

    def capture(self) -> None:
        """Capture the step as a CUDA graph. The cursor must stand somewhere; the tail's newest record is written."""
        stream = torch.cuda.Stream(self.network.device)
        stream.wait_stream(torch.cuda.current_stream(self.network.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.enqueue()
        torch.cuda.current_stream(self.network.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self.enqueue()
        self._replay = graph.replay
        if self.read is not None:
            self.read.zero_()

    def __call__(self) -> Tensor:
        """Run the step, by its graph where it was captured; the logits `[N, V]` fp32 of the next token."""
        if self._replay is None:
            self.logits = self.enqueue()
        else:
            self._replay()
        assert self.logits is not None
        return self.logits
