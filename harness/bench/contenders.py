"""The steps that take part in a timing, one per scanner: what `leadline bench decode` needs of them, and how they are
built from a network, filled stores and the captured step of `leadline.graph`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from leadline.bench.filling import Filled
from leadline.bench.records import DecodeSpec, Moved
from leadline.contenders import Contender
from leadline.errors import LeadlineError, UsageError, explain
from leadline.graph.accounts import Accounts
from leadline.graph.cursor import Cursor, Selection
from leadline.graph.lanes import Bench, PlaneLane, has_lane, lane
from leadline.graph.network import DecodeNetwork
from leadline.graph.scratch import Scratch
from leadline.graph.step import DecodeStep, StoredRows
from leadline.kernels.gather import Staging, staging
from leadline.kernels.planes import BLOCK
from leadline.records import ScannerRecord
from leadline.scanners.base import Index, Scanner


class Step(Protocol):
    """One scanner's decode step at one context."""

    @property
    def record(self) -> ScannerRecord:
        """Whose step it is."""
        ...

    @property
    def index_bytes(self) -> int:
        """Bytes that its indexes of all layers hold."""
        ...

    def prepare(self) -> None:
        """Stand at the same place again, with the next queries; not timed."""
        ...

    def run(self) -> None:
        """Launch one step."""
        ...

    def count(self) -> Moved:
        """What the steps read, by the plans and as the kernels of a counting build counted it; not timed."""
        ...


@dataclass(frozen=True)
class Setting:
    """What the scanners of one context share: place, buffers, tails and the queries that replace the network's own."""

    context: int
    blocks: int
    cursor: Cursor
    bench: Bench
    rows: list[StoredRows]
    queries: torch.Tensor  # fp32 [L, H, G, d], what the captured steps read
    asked: list[torch.Tensor]  # the same of every timed step
    staging: Staging | None

    def stand(self, step: int) -> None:
        """Stand at the context's last token with the queries of a step."""
        self.queries.copy_(self.asked[step % len(self.asked)])
        self.cursor.set(0, self.context, self.blocks)


def setting(network: DecodeNetwork, filled: Filled, spec: DecodeSpec, context: int) -> Setting:
    """Buffers of one context, views of the rows over its complete blocks."""
    contents, blocks = filled.contents, (context - 1) // BLOCK
    shape, layers, device = contents.shape, range(contents.shape.layers), network.device
    selection = Selection(spec.k, spec.sink, spec.local)
    scratch = Scratch(
        contents.heads, shape.group, shape.head_dim, blocks, BLOCK, selection, network.dtype, device
    )  # fmt: skip
    cursor = Cursor.empty(contents.batch, device)
    tails = [contents.tail(layer, BLOCK) for layer in layers]
    part = slice(0, blocks * BLOCK)
    rows = [StoredRows(filled.rows.keys(at)[:, part], filled.rows.values(at)[:, part])
            for at in map(filled.row_layer, layers)]  # fmt: skip
    asked = [contents.queries(step) for step in range(spec.steps)]
    staged = staging(contents.heads, shape.head_dim, blocks, device) if spec.transfer == "staged" else None
    if staged is not None:
        staged.scales.zero_()  # rows that no plan fills are read as nothing only where they hold a number
    return Setting(
        context, blocks, cursor, Bench(scratch, cursor, tails), rows, torch.zeros_like(asked[0]), asked, staged
    )


class CapturedStep:
    """A step of `leadline.graph`: captured on a GPU, enqueued op by op elsewhere."""

    def __init__(
        self, contender: Contender, network: DecodeNetwork, filled: Filled, spec: DecodeSpec, where: Setting
    ) -> None:
        scanner, layers = contender.scanner, range(filled.contents.shape.layers)
        indexes = [filled.index(scanner, layer, where.blocks) for layer in layers]
        found = lane(
            scanner,
            filled.contents.states(scanner),
            indexes,
            [rows.keys for rows in where.rows],
            where.bench,
            _staging_of(where.staging, scanner, indexes[0]),
        )
        if found is None or (spec.transfer == "staged" and not isinstance(found, PlaneLane)):
            raise _no_kernels(contender, spec)
        self._where, self._lane, self._asked = where, found, 0
        self.record = contender.record.model_copy(update={"fused": spec.transfer == "fused"})
        self.index_bytes = filled.index_bytes(scanner, where.blocks)
        self._index = indexes[0]

        def step(counting: bool) -> DecodeStep:
            return DecodeStep(
                network, found, where.rows, where.bench.tails, where.bench.scratch, where.cursor,
                Selection(spec.k, spec.sink, spec.local), queries=list(where.queries), counting=counting,
            )  # fmt: skip

        self._timed, self._counting = step(False), step(True)
        self._stand(0)
        if network.device.type == "cuda":
            self._timed.capture()

    def prepare(self) -> None:
        self._stand(self._asked)
        self._asked += 1

    def run(self) -> None:
        self._timed()

    def count(self) -> Moved:
        """Raises LeadlineError where a kernel read other bytes than were planned."""
        accounts, steps = Accounts(self._counting, self._index), len(self._where.asked)
        for step in range(steps):
            self._stand(step)
            self._counting()
            accounts.add(self._where.context)
        ledger = accounts.ledger()
        read = self._counting.read
        assert read is not None
        # Dense attention reads every row there is, by definition, and counts none.
        rows = int(read[:, 1:].sum()) if self._lane.selects else ledger.rows
        for what, planned, counted in (
            ("scan", ledger.planned, ledger.realised),
            ("row", ledger.rows, rows),
        ):
            if planned != counted:
                raise LeadlineError(
                    explain(
                        f"the kernels of {self.record.label} read other {what} bytes than its plans",
                        found=f"{counted} bytes counted in {steps} steps",
                        expected=f"{planned} bytes planned",
                        do="report this: no figure of this run can be trusted",
                    )
                )
        heads = self._where.bench.scratch.heads
        return Moved(
            scan_planned_bytes=ledger.planned / steps,
            scan_counted_bytes=ledger.realised / steps,
            row_bytes=rows / steps,
            union_rows=ledger.union / max(1, ledger.calls) / heads,
            bits_per_token=8 * ledger.planned / max(1, ledger.scanned_tokens),
        )

    def _stand(self, step: int) -> None:
        self._where.stand(step)
        self._lane.begin(self._where.context, self._where.blocks * BLOCK)


def contending(
    found: Sequence[Contender], network: DecodeNetwork, filled: Filled, spec: DecodeSpec, context: int
) -> list[CapturedStep]:
    """The steps of all scanners at one context. UsageError for a scanner that has no kernels for what is asked."""
    where = setting(network, filled, spec, context)
    return [CapturedStep(contender, network, filled, spec, where) for contender in found]


def check_kernels(found: Sequence[Contender], spec: DecodeSpec) -> None:
    """UsageError for a scanner without kernels, before anything is filled."""
    for contender in found:
        if not has_lane(contender.scanner):
            raise _no_kernels(contender, spec)


def _no_kernels(contender: Contender, spec: DecodeSpec) -> UsageError:
    return UsageError(
        explain(
            f"{contender.record.label} has no captured step with a {spec.transfer} transfer",
            field="scanner",
            expected="a scanner of the plane store" if spec.transfer == "staged" else "a built-in scanner",
            do="leave it out, or use --transfer fused" if spec.transfer == "staged" else "leave it out",
        )
    )


def _staging_of(whole: Staging | None, scanner: Scanner, index: Index) -> Staging | None:
    """The shared staging buffer, cut to the channels of a scanner's store."""
    if whole is None or "planes" not in index.fields:
        return None
    c = index.fields["planes"].shape[1]
    return Staging(whole.planes[:, :c], whole.scales[:, :c], whole.rows[:, :c].contiguous())
