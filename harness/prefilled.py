"""One session under one prefill, and all that its branches share: rows, the scanners' stores, captured decode steps.

On a GPU the built-in scanners decode by kernels, a step being one CUDA graph; everything else (a plugin, an ablation, a
model whose step has no kernels, every run on a CPU) goes through the model's own forward with the
scanner's references. Which of the two a branch took is recorded with its scanner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from leadline.branch import Decoded, decode, teacher_force
from leadline.config import RunSpec
from leadline.graph.comparison import Flips
from leadline.graph.cursor import Selection
from leadline.graph.decoder import Decoder
from leadline.graph.lanes import has_lane
from leadline.graph.network import DecodeNetwork, NotDecodable
from leadline.graph.step import DecodeStep, StoredRows
from leadline.host.indexes import LayerIndexes
from leadline.host.placement import Placement
from leadline.host.stores import SessionStores
from leadline.kernels.planes import BLOCK
from leadline.meter import measure
from leadline.meter_figures import StepTime
from leadline.model import LoadedModel
from leadline.scanners.base import Index, Scanner, State
from leadline.scanning import ByteLedger, ScanAttention
from leadline.sessions.render import BranchPoint
from leadline.walk import PrefixWalker


def decode_network(model: LoadedModel) -> tuple[DecodeNetwork | None, str]:
    """The network whose steps are captured on this model's GPU; None, and why, where branches decode eagerly."""
    if model.device.type != "cuda":
        return None, f"no kernels on {model.device.type}"
    try:
        return DecodeNetwork.of(model), ""
    except NotDecodable as reason:
        return None, str(reason)


class Prefilled:
    """Rows of one session in chunks of one size. `stops` are the ends of the run's branch points (see PrefixWalker)."""

    def __init__(
        self,
        model: LoadedModel,
        network: DecodeNetwork | None,
        spec: RunSpec,
        capacity: int,
        chunk: int,
        stops: Collection[int],
        *,
        sequences: int = 1,
    ) -> None:
        """sequences: on a GPU, what decodes by kernels decodes and forces this many side by side."""
        self.model, self.spec, self._network = model, spec, network
        self.walker = PrefixWalker(model, capacity, chunk, stops)
        self.rows = self.walker.rows
        self.layers = model.shape.scanned_layers
        self.stores = SessionStores(self.rows, self.layers, Placement.parse(spec.placement))
        self.decoder = self._decoder(sequences)
        self._timed: Decoder | None = None

    def advance(self, point: BranchPoint, on_chunk: Callable[[int], None] | None = None) -> int:
        """Bring rows and stores to the point; returns the position that prefill went on from."""

        def grown(done: int) -> None:
            self.stores.advance(self.rows)
            if on_chunk is not None:
                on_chunk(done)

        return self.walker.advance(point, grown, self.stores.rewind)

    def store(self, scanner: Scanner, states: Mapping[int, State]) -> LayerIndexes:
        """The scanner's store over all complete blocks of the rows as they stand."""
        return self.stores.of(scanner, states)

    def branch(
        self,
        key: str,
        scanner: Scanner,
        states: Mapping[int, State],
        token: int,
        stop: Collection[int],
        texts: Sequence[Sequence[int]] = (),
    ) -> tuple[Decoded, ByteLedger, list[Tensor]]:
        """One branch under the scanner, from `token`, the prompt's last, and `force` of texts, side by side where the
        decoder has sequences for them. `key` names the scanner with its state.
        """
        decoder, ledger = self._decoder_of(key, scanner, states), ByteLedger()
        if decoder is not None:
            beside = texts if len(texts) < decoder.sequences else ()
            index = self.store(scanner, states).index(self.layers[0])
            decoded, ledger, says = decoder.branch(key, token, self.rows.length + 1, index, beside, stop=stop)
            return decoded, ledger, says or self.force(key, scanner, states, token, texts)
        attention, limit = self.attention(scanner, states, ledger), self.spec.max_new_tokens
        decoded = decode(self.model, self.rows, token, attention, max_new_tokens=limit, stop=stop)
        return decoded, ledger, self.force(key, scanner, states, token, texts)

    def compare(self, key: str, scanner: Scanner, states: Mapping[int, State], token: int) -> Flips | None:
        """One step by kernels against the references; None where the scanner decodes by the references."""
        decoder = self._decoder_of(key, scanner, states)
        if decoder is None:
            return None
        return decoder.compare(key, token, self.rows.length + 1, scanner, states, self._indexes(scanner, states))

    def timed(self, key: str, scanner: Scanner, states: Mapping[int, State], token: int) -> StepTime | None:
        """GPU time of the point's first decode step, by stage; None where it does not decode by kernels."""
        if self.spec.timed_steps == 0 or self._decoder_of(key, scanner, states) is None:
            return None
        decoder = self._timed = self._timed or self._decoder(1)
        assert decoder is not None
        decoder.lane(key, scanner, states, self.store(scanner, states).room())
        length = self.rows.length + 1
        decoder.begin(key, token, length)  # a step is captured where the cursor stands
        step = decoder.step(key, counting=False)
        prepare = {key: partial(decoder.begin, key, token, length)}
        fused = (key,) if self.stores.placement.index == "host" else ()
        return measure({key: partial(_run, step)}, self.spec.timed_steps, prepare=prepare, fused=fused)[key]

    def force(
        self, key: str, scanner: Scanner, states: Mapping[int, State], token: int, texts: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Log-probabilities `[T, V]` of texts under the scanner, every position with its own plan and selection."""
        if not texts:
            return []
        decoder = self._decoder_of(key, scanner, states)
        if decoder is not None:
            return decoder.force(key, token, self.rows.length + 1, texts)
        attention = self.attention(scanner, states)
        return [teacher_force(self.model, self.rows, token, text, attention) for text in texts]

    def attention(
        self, scanner: Scanner, states: Mapping[int, State], ledger: ByteLedger | None = None
    ) -> ScanAttention:
        """The scanner's references over its store, which they need where the model computes."""
        spec = self.spec
        return ScanAttention(
            scanner=scanner,
            indexes=self._indexes(scanner, states),
            states=states,
            k=spec.selected,
            sink=spec.sink,
            local=spec.local,
            dense_layers=frozenset(spec.dense_layers),
            ledger=ledger,
        )

    def _indexes(self, scanner: Scanner, states: Mapping[int, State]) -> dict[int, Index]:
        indexes = self.store(scanner, states).indexes()
        return {layer: _beside(index, self.model.device) for layer, index in indexes.items()}

    def _decoder(self, sequences: int) -> Decoder | None:
        """A decoder of so many sequences; None where there is no network of its own."""
        spec = self.spec
        if self._network is None:
            return None
        return Decoder(
            self._network,
            [StoredRows(self.stores.keys(layer), self.stores.values(layer)) for layer in self.layers],
            [StoredRows(layer.key_buffer[0], layer.value_buffer[0]) for layer in self.rows.layers],
            Selection(spec.selected, spec.sink, spec.local),
            spec.max_new_tokens,
            frozenset(spec.dense_layers),
            sequences=sequences,
            checked=spec.checked,
        )

    def _decoder_of(self, key: str, scanner: Scanner, states: Mapping[int, State]) -> Decoder | None:
        """The decoder with the scanner's lane in it; None where there are no kernels, or nothing to select."""
        if self.decoder is None or not has_lane(scanner) or self.rows.length + 1 <= self.spec.selected:
            return None
        self.decoder.lane(key, scanner, states, self.store(scanner, states).room())
        return self.decoder

    @property
    def block_tokens(self) -> int:
        """Tokens of the complete blocks of the rows as they stand."""
        return self.rows.length // BLOCK * BLOCK


def _run(step: DecodeStep) -> None:
    step()


def _beside(index: Index, device: torch.device) -> Index:
    """An index whose fields lie on the device: themselves, or copies of what lies in host memory."""
    if all(field.device == device for field in index.fields.values()):
        return index
    return replace(index, fields={name: field.to(device) for name, field in index.fields.items()})
