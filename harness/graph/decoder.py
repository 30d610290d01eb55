"""Decodes the branches of one session on a GPU: buffers, tails and captured steps, kept from point to point.

A branch decodes freely and is fed texts at the same time: one step takes a token of each, as sequences that share the
session's rows and stores and have tails of their own. Most of a small model's step is launching kernels and reading
weights, so three sequences cost little more than one.

A step is captured once per scanner and session and replayed at every branch point: what differs between points (the
place in the text, the store's blocks in use, the tail) lies in GPU memory. It counts the bytes its kernels read, so its
time is not a measurement; `leadline.meter` times steps that do not count.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from leadline.branch import Decoded
from leadline.graph.accounts import Accounts
from leadline.graph.comparison import Flips, compare
from leadline.graph.cursor import Cursor, Selection
from leadline.graph.lanes import Bench, Lane, lane
from leadline.graph.network import DecodeNetwork
from leadline.graph.scratch import Scratch
from leadline.graph.step import DecodeStep, StoredRows
from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Index, Scanner, State
from leadline.scanning import ByteLedger


class Decoder:
    """The branches of one session under one prefill, `sequences` of each at a time."""

    def __init__(
        self,
        network: DecodeNetwork,
        rows: Sequence[StoredRows],
        own: Sequence[StoredRows],
        selection: Selection,
        max_new_tokens: int,
        dense_layers: frozenset[int] = frozenset(),
        *,
        sequences: int = 1,
        checked: bool = False,
    ) -> None:
        """sequences: the free one and the texts fed beside it. rows: where winners are fetched from, by layer; own: the
        model's own rows on the GPU, whose last tokens make the tails. checked: poison buffers before every step,
        compare guards after it, and run steps eagerly.
        """
        form, device = network.form, network.device
        self.network, self.rows, self.own = network, rows, own
        self.selection, self.dense_layers, self.checked = selection, dense_layers, checked
        self.max_new_tokens, self.sequences = max_new_tokens, sequences
        room = BLOCK + max_new_tokens
        blocks, heads = rows[0].keys.shape[1] // BLOCK, sequences * form.kv_heads
        shape = (heads, room, 2, form.head_dim)
        self.tails = [torch.zeros(shape, dtype=network.dtype, device=device) for _ in network.layers]
        self.scratch = Scratch(heads, form.group, form.head_dim, blocks, room, selection, network.dtype, device)
        self.cursor = Cursor.empty(sequences, device)
        self.bench = Bench(self.scratch, self.cursor, self.tails)
        self._lanes: dict[str, Lane | None] = {}
        self._steps: dict[str, DecodeStep] = {}

    def lane(self, key: str, scanner: Scanner, states: Mapping[int, State], room: Mapping[int, Index]) -> Lane | None:
        """The lane of a scanner under `key`, made once; None where it has none and must be decoded eagerly.

        room: its indexes by layer over all the store's room, at addresses that do not change.
        """
        if key not in self._lanes:
            layers = range(len(self.network.layers))
            keys = [rows.keys for rows in self.rows]
            found = lane(scanner, [states[n] for n in layers], [room[n] for n in layers], keys, self.bench)
            self._lanes[key] = found
        return self._lanes[key]

    def begin(self, key: str, token: int, length: int) -> None:
        """Stand at a branch point: `token` is the last of the prompt's `length` tokens."""
        blocks = (length - 1) // BLOCK
        first = blocks * BLOCK
        for tail, own in zip(self.tails, self.own, strict=True):
            known = length - 1 - first
            tails = tail.unflatten(0, (self.sequences, -1))
            tails[:, :, :known, 0] = own.keys[:, first : length - 1]
            tails[:, :, :known, 1] = own.values[:, first : length - 1]
        self.cursor.set(token, length, blocks)
        found = self._lanes[key]
        assert found is not None
        found.begin(length, first)

    def step(self, key: str, *, counting: bool = True) -> DecodeStep:
        """The step of a lane that `lane` has made, captured on a GPU."""
        name = f"{key} {'counting' if counting else 'plain'}"
        if name not in self._steps:
            found = self._lanes[key]
            assert found is not None
            step = self._made(found, counting=counting)
            if self.network.device.type == "cuda" and not self.checked:
                step.capture()
            self._steps[name] = step
        return self._steps[name]

    def kept(self, key: str) -> DecodeStep:
        """The step of a lane that keeps its selections, never captured."""
        name = f"{key} kept"
        if name not in self._steps:
            found = self._lanes[key]
            assert found is not None
            self._steps[name] = self._made(found, keep=True)
        return self._steps[name]

    def _made(self, lane: Lane, *, counting: bool = False, keep: bool = False) -> DecodeStep:
        return DecodeStep(
            self.network,
            lane,
            self.rows,
            self.tails,
            self.scratch,
            self.cursor,
            self.selection,
            dense_layers=self.dense_layers,
            counting=counting,
            keep=keep,
        )

    @torch.no_grad()
    def compare(
        self,
        key: str,
        token: int,
        length: int,
        scanner: Scanner,
        states: Mapping[int, State],
        indexes: Mapping[int, Index],
    ) -> Flips:
        """Take one step from a branch point and compare its selections with the references'."""
        self.begin(key, token, length)
        step = self.kept(key)
        step()
        return compare(step, scanner, states, indexes, length)

    def force(self, key: str, token: int, length: int, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Log-probabilities `[T, V]` (fp32) of every position of each text (T tokens), as
        `leadline.branch.teacher_force`: fed token by token through the step that decodes, so under the very plans and
        selections of decoding, as many texts at a time as there are sequences.
        """
        found: list[Tensor] = []
        for first in range(0, len(texts), self.sequences):
            run = _Texts(texts[first : first + self.sequences], 0, self)
            self._stand(key, token, length)
            for i in range(run.steps):
                self._step(key, length + i, run, i)
            self._require_numbers()
            found += run.found
        return found

    @torch.no_grad()
    def branch(
        self, key: str, token: int, length: int, index: Index, texts: Sequence[Sequence[int]], *, stop: Collection[int]
    ) -> tuple[Decoded, ByteLedger, list[Tensor]]:
        """Greedy decoding from a prompt of `length` tokens that ends in `token`, as `leadline.branch.decode`, and
        beside it `force` of the texts. ValueError for more texts than there are other sequences.

        index: a layer's index over the blocks in use, for the account of bytes. The account is the free sequence's; a
        step's seconds are those of all sequences, without what is kept of texts.
        """
        if len(texts) >= self.sequences:
            raise ValueError(f"{len(texts)} texts beside a free sequence are more than {self.sequences} sequences")
        run = _Texts(texts, 1, self)
        self._stand(key, token, length)
        accounts = Accounts(self.step(key), index)
        tokens: list[int] = []
        margins: list[float] = []
        seconds: list[float] = []
        stopped: int | None = None
        cpu = 0.0
        for i in range(self.max_new_tokens):
            begun, spent = time.perf_counter(), time.process_time()
            logits = self._logits(key, length + i)
            chosen, margin = _choose(logits)
            accounts.add(length + i)
            value, gap = int(chosen), float(margin)
            margins.append(gap)
            seconds.append(time.perf_counter() - begun)
            cpu += time.process_time() - spent
            self._go_on(run, i, logits, chosen)
            if value in stop:
                stopped = value
                break
            tokens.append(value)
        ledger = accounts.ledger()
        for i in range(len(seconds), run.steps):
            self._step(key, length + i, run, i)
        self._require_numbers()
        return Decoded(tuple(tokens), stopped, tuple(margins), tuple(seconds), cpu), ledger, run.found

    def _stand(self, key: str, token: int, length: int) -> None:
        """`begin`, with the counting step captured."""
        self.begin(key, token, length)
        if self.step(key).captured:
            self.begin(key, token, length)  # capturing ran the step and left its record in the tails
        self._forget_invalid()

    @torch.no_grad()
    def _step(self, key: str, length: int, texts: _Texts, i: int) -> None:
        """Take step i, at a length, with nobody waiting for the free sequence's choice."""
        logits = self._logits(key, length)
        self._go_on(texts, i, logits, _choose(logits)[0])

    def _logits(self, key: str, length: int) -> Tensor:
        """The step's logits `[N, V]` at a length."""
        if self.checked:
            self._poison(key, length)
        logits = self.step(key)()
        if self.checked:
            self.scratch.check()
        return logits

    def _go_on(self, texts: _Texts, i: int, logits: Tensor, chosen: Tensor) -> None:
        """Keep what step i says of the texts, and go on with the free sequence's choice `[1]` and the texts' tokens."""
        texts.keep(logits, i)
        self.cursor.advance(texts.feed(chosen, i))

    def _poison(self, key: str, length: int) -> None:
        """Fill the buffers with what a step must not read, at a length at which a step is about to run."""
        self.scratch.poison()
        found = self._lanes[key]
        assert found is not None
        found.begin(length, int(self.cursor.first))

    def _forget_invalid(self) -> None:
        selecting = self.scratch.spaces.topk
        if selecting is not None:
            selecting.invalid.zero_()

    def _require_numbers(self) -> None:
        """ValueError where a selection since `_forget_invalid` met a score that is not a number."""
        selecting = self.scratch.spaces.topk
        if selecting is not None and int(selecting.invalid):
            raise ValueError("scores hold values that are not numbers (NaN): a selection of k tokens does not exist")


def _choose(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The first sequence's next token `[1]` and the margin of its best logit over the second."""
    best = logits[0].topk(2).values
    return logits[:1].argmax(-1), best[0] - best[1]


class _Texts:
    """Texts that are fed to a decoder's sequences from `first` on, and the log-probabilities of their positions."""

    def __init__(self, texts: Sequence[Sequence[int]], first: int, decoder: Decoder) -> None:
        if any(not 0 < len(text) <= decoder.max_new_tokens for text in texts):
            raise ValueError(f"a text to feed has 1 to {decoder.max_new_tokens} tokens")
        self.lengths, self.first = [len(text) for text in texts], first
        self.steps = max(self.lengths, default=0)
        fed = torch.zeros(self.steps, decoder.sequences, dtype=torch.int64)
        for row, text in enumerate(texts, first):
            fed[: len(text), row] = torch.tensor(text)
        self.fed = fed.to(decoder.network.device)
        self.found: list[Tensor] = []

    def keep(self, logits: Tensor, i: int) -> None:
        """Write what the logits `[N, V]` of step i say of each text that still has a position there."""
        if not self.found:
            self.found = [logits.new_empty(length, logits.shape[-1]) for length in self.lengths]
        for row, (found, length) in enumerate(zip(self.found, self.lengths, strict=True), self.first):
            if i < length:
                torch.log_softmax(logits[row], dim=-1, out=found[i])

    def feed(self, chosen: Tensor, i: int) -> Tensor:
        """The tokens `[N]` after step i: the free sequence's choice, where there is one, and the texts'. A sequence
        past its text goes on with any token; nothing reads it.
        """
        if i >= self.steps:
            return chosen.expand(self.fed.shape[1])
        if self.first:
            self.fed[i, :1] = chosen
        return self.fed[i]
