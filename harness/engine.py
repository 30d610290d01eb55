"""The replay: sessions x branch points x scanners, every branch written to the results database as soon as it is
judged.

One dense prefill per session (and one more in other chunks for the noise floor), walked from branch point to branch
point; at each, the reference and dense decode first, since every figure compares with them, then the scanners. What is
stored is never redone; kill the process at any moment and at most the branch in flight is lost (SPEC section 5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leadline import agreement
from leadline.attention import hooked
from leadline.branch import Decoded
from leadline.config import RunSpec
from leadline.contenders import Contender
from leadline.database import Results
from leadline.database_selection import save_check
from leadline.errors import MachineError
from leadline.graph.lanes import has_lane
from leadline.judging import Spoken, judge, judge_forced, price, spoken
from leadline.meter import prime
from leadline.model import LoadedModel
from leadline.prefilled import Prefilled, decode_network
from leadline.progress import Progress
from leadline.records import (
    DEGENERATE,
    SEEN,
    BranchPointRecord,
    BranchRecord,
    Exclusion,
    SessionRecord,
    StepCost,
    TeacherForced,
)
from leadline.scanners.base import Scanner, State
from leadline.scanners.calibration import Calibration
from leadline.scanning import ByteLedger
from leadline.sessions.render import BranchPoint, Renderer
from leadline.sessions.schema import Session
from leadline.states import States
from leadline.workload import SessionWork, capacity, choose

SEQUENCES = 3  # decoded side by side on a GPU: a branch, and the two texts that are forced through its scanner


@dataclass
class Outcome:
    """What one invocation did: branches written, branches that were there already, and failures."""

    written: int = 0
    kept: int = 0
    failed: int = 0
    sessions: int = 0


@dataclass(frozen=True)
class _Forced:
    """A teacher-forced text and what dense and exact say of it, kept while its branch point is worked on."""

    which: str
    tokens: tuple[int, ...]
    dense: Tensor
    exact: Tensor


class Replay:
    """One invocation of a run. `calibration` is None where no scanner needs one."""

    def __init__(
        self,
        spec: RunSpec,
        run: int,
        results: Results,
        model: LoadedModel,
        renderer: Renderer,
        contenders: Sequence[Contender],
        calibration: Calibration | None,
        progress: Progress,
    ) -> None:
        self.spec, self.run, self.results = spec, run, results
        self.model, self.renderer, self.progress = model, renderer, progress
        self.contenders = tuple(contenders)
        self.reference, self.dense = self.contenders[:2]
        self.calibration = calibration
        self.stop = frozenset(model.stop_tokens) | renderer.stop_ids
        self.end_of_turn = min(renderer.stop_ids or self.stop)
        self.outcome = Outcome()
        if spec.timed_steps and model.device.type == "cuda":
            prime()  # before any step is captured
        self.network, self.eager_because = decode_network(model)

    def sessions(self, sessions: Iterable[Session]) -> Outcome:
        """Replay sessions until `limit` of them had eligible steps. One that fails is recorded and left behind."""
        for contender in self.contenders:
            fused = self.network is not None and has_lane(contender.scanner)
            self.results.add_scanner(self.run, contender.record.model_copy(update={"fused": fused}))
        with hooked(self.model):
            for session in sessions:
                if self.spec.limit is not None and self.outcome.sessions >= self.spec.limit:
                    break
                try:
                    self._session(session)
                except MachineError:
                    raise
                except Exception as error:  # one bad session never loses the directory
                    self._fail(session, None, f"{type(error).__name__}: {error}")
                if self.model.device.type == "cuda":
                    with suppress(RuntimeError):  # what broke the GPU stands with the session that met it
                        torch.cuda.empty_cache()  # for the other processes on this GPU
        return self.outcome

    def _session(self, session: Session) -> None:
        rendered = self.renderer.render(session)
        work = choose(session, rendered, self.spec)
        if work.points:
            self.outcome.sessions += 1
            self.results.add_session(self.run, self._session_record(work))
        self.results.add_exclusions(self.run, work.exclusions)
        if not work.points:
            self.progress.skip_session(session.id, work.exclusions[-1].reason)
            return
        done = self.results.done(self.run, session.sha256)
        apart = self.results.excluded_steps(self.run, session.sha256, DEGENERATE)
        points = [point for point in work.points if point.step not in apart]
        missing = {p.step: [c for c in self.contenders if (p.step, c.sha256) not in done] for p in points}
        total = sum(len(some) for some in missing.values())
        self.outcome.kept += len(points) * len(self.contenders) - total
        self.progress.start_session(session.id, points=len(points), branches=total)
        if total:
            self._walk(work, missing)
        self._perplexity(work)
        self.progress.finish_session()

    def _session_record(self, work: SessionWork) -> SessionRecord:
        calibration = self.calibration
        session, rendered = work.session, work.rendered
        warnings = {calibration.length_warning(point.n_tokens) for point in work.points} - {None} if calibration else ()
        return SessionRecord(
            sha256=session.sha256,
            id=session.id,
            format=session.format,
            path=session.path,
            source=self.spec.cluster(session.source),
            view=session.view,
            steps=len(session.steps),
            segments=len(session.segments),
            notes=(
                *((note.kind, note.where, note.reason) for note in (*session.notes, *rendered.notes)),
                *((SEEN,) if calibration and calibration.made_on(session.id) else ()),
                *(("info", "calibration", text) for text in sorted(filter(None, warnings))),
                *((("info", "decoding", f"eager, since {self.eager_because}"),) if self._eager_on_gpu else ()),
            ),
            tools_rendered=rendered.tools_rendered,
        )

    def _walk(self, work: SessionWork, missing: Mapping[int, list[Contender]]) -> None:
        """missing: the contenders without a result by branch point, of those points that are not set aside."""
        points = work.points
        room = capacity(points, self.spec.max_new_tokens)
        stops = [point.n_tokens - 1 for point in points]
        chunks = {self.spec.prefill_chunk, *(c.record.prefill_chunk for c in self.contenders if c.record.prefill_chunk)}
        wanted = {
            chunk: any(_chunk(c, self.spec) == chunk for some in missing.values() for c in some) for chunk in chunks
        }
        prefilled = {
            chunk: Prefilled(self.model, self.network, self.spec, room, chunk, stops, sequences=SEQUENCES)
            for chunk in chunks
            if wanted[chunk] or chunk == self.spec.prefill_chunk
        }
        layers = self.calibration.on(self.model.device) if self.calibration else None
        states = States(self.model.shape.scanned_layers, layers)
        last = max(i for i, point in enumerate(points) if missing.get(point.step))
        to_check: int | None = next(point.step for point in points if point.step in missing)
        for i, point in enumerate(points[: last + 1]):
            self.progress.prefill(point.n_tokens - 1)
            came_from = {chunk: some.advance(point, self.progress.prefilled) for chunk, some in prefilled.items()}
            main = prefilled[self.spec.prefill_chunk]
            if i == 0:
                states.observe_session(main.rows)
            if point.step not in missing:
                continue
            record = _point_record(point, came_from[self.spec.prefill_chunk], self.renderer, self.spec.excerpt)
            here = _Point(self, work, point, prefilled, states, check=point.step == to_check)
            if missing[point.step] and (reason := here.degenerate()):
                if point.step == to_check:
                    to_check = next((p.step for p in points[i + 1 :] if p.step in missing), None)
                left_out = Exclusion(
                    path=work.session.path, session_sha256=work.session.sha256, step=point.step, reason=reason
                )
                self.results.add_exclusions(self.run, [left_out])
                self.progress.skip_point(work.session.id, point.step, reason, branches=len(missing[point.step]))
                continue
            self.results.add_branch_point(self.run, work.session.sha256, record)
            if missing[point.step]:
                here.branches(missing[point.step])

    def _perplexity(self, work: SessionWork) -> None:
        """Perplexity of the recorded steps under dense attention, over the session's branch points."""
        nats = tokens = 0.0
        for point in work.points:
            result = self.results.result(self.run, work.session.sha256, point.step, self.dense.sha256)
            for forced in result.teacher_forced if result else ():
                if forced.text == "recorded":
                    nats += forced.nll * forced.tokens
                    tokens += forced.tokens
        if tokens:
            value = float(torch.tensor(nats / tokens, dtype=torch.float64).exp())
            self.results.set_dense_perplexity(self.run, work.session.sha256, value)

    @property
    def _eager_on_gpu(self) -> bool:
        return self.network is None and self.model.device.type == "cuda"

    def _fail(self, session: Session, step: int | None, reason: str) -> None:
        self.outcome.failed += 1
        self.progress.failure(session.id, step, reason)
        failure = Exclusion(path=session.path, session_sha256=session.sha256, step=step, reason=f"failed: {reason}")
        self.results.add_exclusions(self.run, [failure])


class _Point:
    """One branch point at work: the reference's and dense's steps, and the texts to force."""

    def __init__(
        self,
        replay: Replay,
        work: SessionWork,
        point: BranchPoint,
        prefilled: Mapping[int, Prefilled],
        states: States,
        *,
        check: bool,
    ) -> None:
        """check: compare the kernels' selections with the references'."""
        self.replay, self.point, self.prefilled, self.states, self.check = replay, point, prefilled, states, check
        self.session, self.traits = work.session, work.rendered.traits
        self.last_token = int(point.prompt_ids[-1])
        self.fresh: dict[str, tuple[Decoded, ByteLedger]] = {}

    def degenerate(self) -> str | None:
        """Why the point is to be set aside, dense attention having been looked at; None where it is not."""
        if not self.replay.spec.exclude_degenerate:
            return None
        dense, _ = self._known(self.replay.dense, ())
        if not dense.words:
            return f"{DEGENERATE}dense attention writes nothing here"
        return f"{DEGENERATE}dense attention repeats itself here" if agreement.is_repeating(dense.tokens) else None

    def branches(self, missing: Sequence[Contender]) -> None:
        """Decode, judge and store every missing branch, reference and dense first."""
        replay = self.replay
        recorded_ids = self.point.recorded_ids.tolist()
        recorded = spoken(recorded_ids, True, self.point.recorded_text, self.traits)
        reference, _ = self._known(replay.reference, ())
        texts = self._texts(reference, recorded_ids[: replay.spec.max_new_tokens])
        exact_says = self._force(replay.reference, texts.values())
        dense, dense_says = self._known(replay.dense, texts.values())
        forced = [_Forced(*each) for each in zip(texts, texts.values(), dense_says, exact_says, strict=True)]
        decided = {replay.reference.sha256: (reference, exact_says), replay.dense.sha256: (dense, dense_says)}
        for contender in missing:
            try:
                own, says = decided.get(contender.sha256) or self._known(contender, texts.values())
                teacher = self._teacher(forced, says)
                if contender.sha256 not in self.fresh:  # another process has stored it in the meantime
                    replay.outcome.kept += 1
                    replay.progress.branch(contender.record.label)
                    continue
                result = judge(own, reference, dense, recorded, teacher)
                decoded, ledger = self.fresh.pop(contender.sha256)
                cost = self._price(contender, decoded, ledger)
                record = BranchRecord(
                    session_sha256=self.session.sha256,
                    step=self.point.step,
                    scanner_sha256=contender.sha256,
                    result=result,
                    cost=cost,
                )
                if self.check:
                    self._check(contender)
                replay.results.save(replay.run, record)
                replay.outcome.written += 1
            except MachineError:
                raise
            except Exception as error:  # a scanner may be anybody's: its failure costs its own branch
                if contender.record.role != "scanner":
                    raise
                reason = f"{contender.record.label}: {type(error).__name__}: {error}"
                replay._fail(self.session, self.point.step, reason)
            replay.progress.branch(contender.record.label)

    def _check(self, contender: Contender) -> None:
        """Record how the kernels' selections in one decode step differ from the references'."""
        flips = self._of(contender).compare(*self._how(contender))
        if flips is not None:
            key = (self.session.sha256, self.point.step, contender.sha256)
            save_check(self.replay.results, self.replay.run, *key, flips)

    def _of(self, contender: Contender) -> Prefilled:
        return self.prefilled[_chunk(contender, self.replay.spec)]

    def _how(self, contender: Contender) -> tuple[str, Scanner, dict[int, State], int]:
        """What names a branch of this point: the scanner with its state, and the token it starts from."""
        return contender.sha256, contender.scanner, self.states.of(contender.scanner), self.last_token

    def _known(self, contender: Contender, texts: Collection[Sequence[int]]) -> tuple[Spoken, list[Tensor]]:
        """The contender's step, decoded now or read back where it is stored, and what it says of texts."""
        replay = self.replay
        stored = replay.results.result(replay.run, self.session.sha256, self.point.step, contender.sha256)
        if stored is not None:
            own = spoken(stored.tokens, stored.stopped, stored.text, self.traits, stored.margins)
            return own, self._force(contender, texts)
        if contender.sha256 in self.fresh:
            decoded, says = self.fresh[contender.sha256][0], self._force(contender, texts)
        else:
            decoded, ledger, says = self._of(contender).branch(*self._how(contender), replay.stop, tuple(texts))
            self.fresh[contender.sha256] = decoded, ledger
        text = replay.renderer.decode(np.asarray(decoded.tokens, dtype=np.int32))
        return spoken(decoded.tokens, decoded.stopped, text, self.traits, decoded.margins), says

    def _texts(self, reference: Spoken, recorded: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The texts to force by name: the reference's own step (its end of turn included) and the recorded step."""
        ended = (*reference.tokens, *((self.replay.end_of_turn,) if reference.stopped else ()))
        return {which: tuple(ids) for which, ids in (("reference", ended), ("recorded", recorded)) if ids}

    def _force(self, contender: Contender, texts: Collection[Sequence[int]]) -> list[Tensor]:
        return self._of(contender).force(*self._how(contender), tuple(texts)) if texts else []

    def _teacher(self, forced: Sequence[_Forced], says: Sequence[Tensor]) -> list[TeacherForced]:
        device = self.replay.model.device
        return [
            judge_forced(text.which, torch.tensor(text.tokens, device=device), own, text.dense, text.exact)
            for text, own in zip(forced, says, strict=True)
        ]

    def _price(self, contender: Contender, decoded: Decoded, ledger: ByteLedger) -> StepCost:
        own = self._of(contender)
        shape = self.replay.model.shape
        return price(
            decoded,
            ledger,
            own.store(contender.scanner, self.states.of(contender.scanner)),
            own.block_tokens,
            self.point.n_tokens,
            shape.scanned_layers,
            shape.kv_heads,
            own.timed(*self._how(contender)),
        )


def _chunk(contender: Contender, spec: RunSpec) -> int:
    return contender.record.prefill_chunk or spec.prefill_chunk


def _point_record(point: BranchPoint, prefill_from: int, renderer: Renderer, excerpt: int) -> BranchPointRecord:
    tail = renderer.decode(point.prompt_ids[-excerpt:]) if excerpt else ""  # at least a character a token
    return BranchPointRecord(
        step=point.step,
        segment=point.segment,
        prompt_tokens=point.n_tokens,
        prompt_sha256=hashlib.sha256(point.prompt_ids.tobytes()).hexdigest(),
        prefill_from=prefill_from,
        recorded_tokens=tuple(point.recorded_ids.tolist()),
        recorded_text=point.recorded_text,
        prompt_tail=tail[-excerpt:] if excerpt else "",
    )
