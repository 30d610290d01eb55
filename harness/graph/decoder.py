"""Decodes the branches of one session on a GPU: buffers, tails and captured steps, kept from point to point.

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
    """The branches of one session: one sequence, one prefill."""

    def __init__(
        self,
        network: DecodeNetwork,
        rows: Sequence[StoredRows],
        own: Sequence[StoredRows],
        selection: Selection,
        max_new_tokens: int,
        dense_layers: frozenset[int] = frozenset(),
        *,
        checked: bool = False,
    ) -> None:
        """rows: where winners are fetched from, by layer; own: the model's own rows on the GPU, whose last tokens make
        the tail. checked: poison buffers before every step, compare guards after it, and run steps eagerly.
        """
        form, device = network.form, network.device
        self.network, self.rows, self.own = network, rows, own
        self.selection, self.dense_layers, self.checked = selection, dense_layers, checked
        self.max_new_tokens = max_new_tokens
        room = BLOCK + max_new_tokens
        blocks = rows[0].keys.shape[1] // BLOCK
        shape = (form.kv_heads, room, 2, form.head_dim)
        self.tails = [torch.zeros(shape, dtype=network.dtype, device=device) for _ in network.layers]
        self.scratch = Scratch(form.kv_heads, form.group, form.head_dim, blocks, room, selection, network.dtype, device)
        self.cursor = Cursor.empty(1, device)
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
            tail[:, :known, 0] = own.keys[:, first : length - 1]
            tail[:, :known, 1] = own.values[:, first : length - 1]
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

    @torch.no_grad()
    def decode(
        self, key: str, token: int, length: int, index: Index, *, stop: Collection[int]
    ) -> tuple[Decoded, ByteLedger]:
        """Greedy decoding from a prompt of `length` tokens that ends in `token`, as `leadline.branch.decode`.

        index: a layer's index over the blocks in use, for the account of bytes.
        """
        self.begin(key, token, length)
        step = self.step(key)
        if step.captured:
            self.begin(key, token, length)  # capturing ran the step and left its record in the tail
        accounts = Accounts(step, index)
        self._forget_invalid()
        tokens: list[int] = []
        margins: list[float] = []
        seconds: list[float] = []
        stopped: int | None = None
        cpu = time.process_time()
        for i in range(self.max_new_tokens):
            begun = time.perf_counter()
            if self.checked:
                self._poison(key, length + i)
            logits = step()
            chosen, margin = _choose(logits)
            accounts.add(length + i)
            self.cursor.advance(chosen)
            value, gap = int(chosen), float(margin)
            if self.checked:
                self.scratch.check()
            margins.append(gap)
            seconds.append(time.perf_counter() - begun)
            if value in stop:
                stopped = value
                break
            tokens.append(value)
        cpu = time.process_time() - cpu
        self._require_numbers()
        return Decoded(tuple(tokens), stopped, tuple(margins), tuple(seconds), cpu), accounts.ledger()

    @torch.no_grad()
    def force(self, key: str, token: int, length: int, text: Sequence[int]) -> Tensor:
        """Log-probabilities `[T, V]` (fp32) of every position of `text` (T tokens), as `leadline.branch.teacher_force`:
        fed token by token through the step that decodes, so under the very plans and selections of decoding.
        """
        self.begin(key, token, length)
        step = self.step(key)
        if step.captured:
            self.begin(key, token, length)
        self._forget_invalid()
        fed = torch.tensor(text, device=self.network.device).unsqueeze(-1)
        found: Tensor | None = None
        for i in range(len(text)):
            if self.checked:
                self._poison(key, length + i)
            logits = step()
            if found is None:
                found = logits.new_empty(len(text), logits.shape[-1])
            torch.log_softmax(logits[0], dim=-1, out=found[i])
            self.cursor.advance(fed[i])
            if self.checked:
                self.scratch.check()
        self._require_numbers()
        if found is None:
            raise ValueError("a text of no tokens has no probabilities")
        return found

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
    """The next token `[N]` and the margin of the first sequence's best logit over its second."""
    best = logits[0].topk(2).values
    return logits.argmax(-1), best[0] - best[1]
