"""Turns decoded branches into records: agreement with the reference, dense and the recording, and teacher-forced
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from leadline import agreement
from leadline.branch import Decoded, divergence
from leadline.host.indexes import LayerIndexes
from leadline.meter_figures import StepTime
from leadline.records import StepCost, StepResult, TeacherForced
from leadline.scanning import ByteLedger
from leadline.sessions.actions import parse_actions
from leadline.sessions.templates import TemplateTraits

WARM_UP = 2


@dataclass(frozen=True)
class Spoken:
    """A step's tokens and text, ready to be compared. `margins` are known for decoded steps only."""

    tokens: tuple[int, ...]
    stopped: bool
    text: str
    calls: tuple[tuple[str, str | None], ...]
    margins: tuple[float, ...] = ()

    @property
    def words(self) -> list[str]:
        return agreement.words(self.text)


def spoken(
    tokens: Sequence[int], stopped: bool, text: str, traits: TemplateTraits, margins: Sequence[float] = ()
) -> Spoken:
    """Parse a step's complete tool calls and keep it with its text."""
    calls = tuple((a.name, a.arguments) for a in parse_actions(text, traits) if a.complete)
    return Spoken(tuple(tokens), stopped, text, calls, tuple(margins))


def judge(
    own: Spoken, reference: Spoken, dense: Spoken, recorded: Spoken, teacher: Sequence[TeacherForced]
) -> StepResult:
    """Compare a branch's step with the reference's, dense's and the recorded one (SPEC section 5)."""
    action = agreement.compare_actions(own.calls, reference.calls)
    recorded_action = agreement.compare_actions(own.calls, recorded.calls)
    at = agreement.first_divergence(own.tokens, own.stopped, reference.tokens, reference.stopped)
    return StepResult(
        tokens=own.tokens,
        margins=own.margins,
        text=own.text,
        stopped=own.stopped,
        agreement=agreement.overlap(own.words, reference.words),
        word_prefix_agreement=agreement.prefix_agreement(own.words, reference.words),
        word_positional_agreement=agreement.positional_agreement(own.words, reference.words),
        token_agreement=agreement.overlap(own.tokens, reference.tokens),
        exact_match=at is None,
        first_divergence=at,
        divergence_margin=reference.margins[at] if at is not None and at < len(reference.margins) else None,
        dense_agreement=agreement.overlap(own.words, dense.words),
        recorded_agreement=agreement.overlap(own.words, recorded.words) if recorded.words else None,
        action_name_agreement=action.name,
        action_agreement=action.call,
        recorded_action_name_agreement=recorded_action.name,
        recorded_action_agreement=recorded_action.call,
        empty=not own.words,
        repeating=agreement.is_repeating(own.tokens),
        teacher_forced=tuple(teacher),
    )


def judge_forced(which: str, text: Tensor, own: Tensor, dense: Tensor, exact: Tensor) -> TeacherForced:
    """Figures of a teacher-forced text: token ids `[T]`, log-probabilities `[T, V]` of the scanner, dense and exact."""
    to_dense, to_exact = divergence(dense, own), divergence(exact, own)
    nll = -own.gather(-1, text.unsqueeze(-1)).double().mean()
    dense_nll = -dense.gather(-1, text.unsqueeze(-1)).double().mean()
    choice = own.argmax(-1)
    return TeacherForced.model_validate(
        {
            "text": which,
            "tokens": len(text),
            "kl_dense": float(to_dense.mean()),
            "kl_exact": float(to_exact.mean()),
            "top1_dense": float((choice == dense.argmax(-1)).double().mean()),
            "top1_exact": float((choice == exact.argmax(-1)).double().mean()),
            "nll": float(nll),
            "extra_nats": float(nll - dense_nll),
            "kl_dense_by_token": tuple(map(_five_digits, to_dense.tolist())),
            "kl_exact_by_token": tuple(map(_five_digits, to_exact.tolist())),
        }
    )


def _five_digits(value: float) -> float:
    """As it is stored token by token, where all its digits would make up most of a database."""
    return float(f"{value:.5g}")


def price(
    decoded: Decoded,
    ledger: ByteLedger,
    store: LayerIndexes,
    block_tokens: int,
    context: int,
    layers: tuple[int, ...],
    heads: int,
    timed: StepTime | None = None,
) -> StepCost:
    """The cost of a branch from its ledger and clocks, and what a step of it took where it was timed."""
    steps, stages = len(decoded.step_seconds), None if timed is None else timed.stage_ms
    calls, scans = max(1, ledger.calls), max(1, ledger.scans)
    seconds = decoded.step_seconds[WARM_UP:] or decoded.step_seconds
    return StepCost(
        decode_steps=steps,
        context_tokens=context,
        block_tokens=block_tokens,
        bits_per_token=8 * ledger.realised / max(1, ledger.scanned_tokens),
        code_bits=ledger.code_bits / scans,
        active_channels=ledger.active_channels / scans,
        scan_planned_bytes=ledger.planned,
        scan_realised_bytes=ledger.realised,
        scan_sector_bytes=ledger.sectors,
        row_bytes=ledger.rows,
        union_rows=ledger.union / (calls * heads),
        tail_bytes=ledger.tail,
        index_bytes=store.nbytes,
        index_build_seconds=store.build_seconds,
        layer_bits=ledger.layer_bits(layers),
        gpu_ms=None if timed is None else timed.gpu_ms * steps,
        gpu_stage_ms=None if stages is None else {stage: ms * steps for stage, ms in stages.items()},
        wall_ms=1000 * sorted(seconds)[len(seconds) // 2] if timed is None else timed.wall_ms,
        cpu_seconds=decoded.cpu_seconds,
        timer="none" if timed is None else timed.timer,
    )
