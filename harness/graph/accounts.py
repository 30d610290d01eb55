"""The bytes of a branch that was decoded by kernels: planned by the plans, realised as the kernels counted them."""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.graph.lanes import Planned
from leadline.graph.step import DecodeStep
from leadline.kernels.planes import BLOCK
from leadline.scanners.base import Index
from leadline.scanners.transfer import SECTOR
from leadline.scanning import ByteLedger

SCALE_BYTES = 2
WORD_BYTES = BLOCK // 8


class Accounts:
    """Sums of a branch, kept on the GPU until its end. `layers` are those that scan."""

    def __init__(self, step: DecodeStep, index: Index) -> None:
        if step.read is None:
            raise ValueError("accounts need a counting step")
        self.step, self.index = step, index
        count = len(step.network.layers)
        self.layers = [layer for layer in range(count) if step.scans(layer)]
        self.dense = count - len(self.layers)
        self.planes, self.channels, self.unions = (
            torch.zeros(count, dtype=torch.int64, device=step.network.device) for _ in range(3)
        )
        self.whole = Planned().whole
        self.lengths: list[int] = []
        step.read.zero_()

    def add(self, length: int) -> None:
        """Count the step just run, which saw `length` tokens. Enqueues sums, waits for nothing."""
        planned = self.step.lane.planned()
        if planned.planes is not None and planned.channels is not None:
            self.planes += planned.planes
            self.channels += planned.channels
        self.whole = planned.whole
        self.unions += self.step.unions[:, : self.step.rows[0].keys.shape[0]].sum(1)
        self.lengths.append(length)

    def ledger(self) -> ByteLedger:
        """The sums as the engine's ledger. Waits for the GPU."""
        step, steps = self.step, len(self.lengths)
        assert step.read is not None
        read, planes, channels, unions = (_list(t) for t in (step.read, self.planes, self.channels, self.unions))
        keys = step.rows[0].keys
        heads, d, size = keys.shape[0], keys.shape[-1], keys.element_size()
        tokens, blocks = self.index.tokens, self.index.tokens // BLOCK
        ledger = ByteLedger(calls=steps * len(step.network.layers), scans=steps * len(self.layers))
        for layer in self.layers:
            whole = int(self.whole * tokens * steps / 8)
            planned = whole + blocks * (WORD_BYTES * planes[layer] + SCALE_BYTES * channels[layer])
            ledger.planned += planned
            ledger.realised += read[layer][0]
            ledger.sectors += _sectors(whole, steps, self.index) + (
                planes[layer] * _rounded(blocks * WORD_BYTES) + channels[layer] * _rounded(blocks * SCALE_BYTES)
            )
            ledger.union += unions[layer]
            ledger.rows += unions[layer] * 2 * d * size
            ledger.tail += heads * sum(length - tokens for length in self.lengths) * d * size
            ledger.scanned_tokens += heads * tokens * steps
            ledger.code_bits += (planes[layer] + float(self.whole * steps)) / heads
            ledger.active_channels += self._active(channels[layer], heads, steps)
            ledger.layer_bytes[layer] = read[layer][0]
            ledger.layer_tokens[layer] = heads * tokens * steps
        every = heads * sum(self.lengths) * self.dense
        ledger.union += every
        ledger.rows += every * 2 * d * size
        return ledger

    def _active(self, channels: int, heads: int, steps: int) -> float:
        if channels or not self.whole:
            return channels / heads
        return float(steps * max(field.shape[1] for field in self.index.fields.values()))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // SECTOR) * SECTOR


def _sectors(whole: int, steps: int, index: Index) -> int:
    """Bytes in sectors of what is read whole: every run of every field of the index, each step."""
    if not whole:
        return 0
    runs = (
        field.shape[0] * field.shape[1] * _rounded(field.shape[-1] * field.element_size())
        for field in index.fields.values()
    )
    return steps * sum(runs)


def _list(tensor: Tensor) -> list:  # type: ignore[type-arg]
    return tensor.tolist()
