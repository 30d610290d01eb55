"""Asks every sample of every scanner: one dense prefill a sample, greedy decoding branched from it (SPEC section 7).

Dense decodes first, then the reference, then the scanners, all from the same rows; what a database holds already is not
decoded again. The prompt's last token is the first decode step under the scanner, as in a replay. A sample's prefill is
its own from the first token on, so that it is cut into chunks alike whether or not a run was interrupted before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leadline.attention import hooked
from leadline.contenders import Contender, contenders
from leadline.database import Results
from leadline.environment import capture
from leadline.errors import MachineError, UsageError, explain
from leadline.model import LoadedModel, load_model
from leadline.prefilled import Prefilled, decode_network
from leadline.progress import Progress, on_stderr
from leadline.replaying import find_calibration, model_record
from leadline.ruler.filler import Filler, standard_library
from leadline.ruler.fitting import Sample, fit
from leadline.ruler.records import RulerAnswer, RulerProtocol, RulerScanner, RulerSpec
from leadline.ruler.scoring import score
from leadline.ruler.storing import KIND, RulerStore
from leadline.ruler.tasks import VERSION
from leadline.scanners.calibration import Calibration
from leadline.sessions.render import Renderer
from leadline.settling import settled
from leadline.states import States


@dataclass
class RulerOutcome:
    """What one invocation did, and the protocol its answers belong to in the database."""

    protocol: int
    written: int = 0
    kept: int = 0
    failed: int = 0


def run(spec: RulerSpec, database: Path, command: str, progress: Progress | None = None) -> RulerOutcome:
    """Answer what is missing of `spec` into `database`.

    Raises UsageError before the model is loaded for unknown scanners or a missing calibration, and where the length is
    beyond the model's positions. KeyboardInterrupt is raised on; what was answered is kept.
    """
    contenders(spec.run, None)
    calibration = find_calibration(spec.run)
    settings: dict[str, Any] = {"calibration_sha256": calibration.sha256 if calibration else None}
    spec = spec.model_copy(update=settings | {"scanners": settled(spec.run, calibration).scanners})
    filler = standard_library()
    with Results.open(database, create=True) as results:
        model = load_model(spec.model, device=spec.device, dtype=spec.dtype, rope=spec.rope)
        if calibration is not None:
            calibration.check(weights_sha256=model.weights_sha256, rope=model.rope)
        _check_positions(spec, model)
        measurement = results.start_measurement(KIND, spec, capture(str(model.device)), command)
        asking = _Asking(spec, model, calibration, filler, results, measurement)
        if progress is not None:
            asking.all(progress)
        else:
            with on_stderr(len(spec.tasks) * spec.samples) as shown:
                asking.all(shown)
        results.finish_measurement(measurement)
        return asking.outcome


class _Asking:
    """One invocation at work."""

    def __init__(
        self,
        spec: RulerSpec,
        model: LoadedModel,
        calibration: Calibration | None,
        filler: Filler,
        results: Results,
        measurement: int,
    ) -> None:
        self.spec, self.model, self.calibration, self.filler = spec, model, calibration, filler
        self.renderer = Renderer(model.tokenizer)
        self.network, _ = decode_network(model)
        self.contenders = _dense_first(contenders(spec.run, spec.calibration_sha256))
        self.store = RulerStore(results, measurement, self._protocol())
        self.outcome = RulerOutcome(self.store.protocol)
        for position, contender in enumerate(self.contenders):
            self.store.add_scanner(_scanner_record(contender, position))

    def all(self, progress: Progress) -> None:
        """Every sample of every task, task by task."""
        with hooked(self.model):
            for task in self.spec.tasks:
                for number in range(self.spec.samples):
                    done = self.store.done(task, number)
                    missing = [contender for contender in self.contenders if contender.sha256 not in done]
                    self.outcome.kept += len(self.contenders) - len(missing)
                    progress.start_session(f"{task} {number}", points=1, branches=len(missing))
                    if missing:
                        sample = fit(self.renderer, self.filler, task, number, self.spec.seed, self.spec.length)
                        self._ask(sample, missing, progress)
                    progress.finish_session()

    def _ask(self, sample: Sample, missing: Sequence[Contender], progress: Progress) -> None:
        point, run = sample.point, self.spec.run
        stop = frozenset(self.model.stop_tokens) | self.renderer.stop_ids
        room = point.n_tokens + run.max_new_tokens
        prefilled = Prefilled(self.model, self.network, run, room, run.prefill_chunk, [point.n_tokens - 1])
        progress.prefill(point.n_tokens - 1)
        prefilled.advance(point, progress.prefilled)
        layers = self.calibration.on(self.model.device) if self.calibration else None
        states = States(self.model.shape.scanned_layers, layers)
        states.observe_session(prefilled.rows)
        for contender in missing:
            try:
                own = states.of(contender.scanner)
                last = int(point.prompt_ids[-1])
                decoded, ledger, _ = prefilled.branch(contender.sha256, contender.scanner, own, last, stop)
                text = self.renderer.decode(np.asarray(decoded.tokens, dtype=np.int32))
                answer = RulerAnswer(
                    task=sample.task,
                    sample=sample.number,
                    scanner_sha256=contender.sha256,
                    prompt_tokens=point.n_tokens,
                    prompt_sha256=hashlib.sha256(point.prompt_ids.tobytes()).hexdigest(),
                    gold=sample.gold,
                    text=text,
                    tokens=decoded.tokens,
                    stopped=decoded.stopped,
                    score=score(sample.gold, text),
                    bits_per_token=8 * ledger.realised / max(1, ledger.scanned_tokens),
                    union_rows=ledger.union / (max(1, ledger.calls) * self.model.shape.kv_heads),
                )
                self.store.save(answer)
                self.outcome.written += 1
            except MachineError:
                raise
            except Exception as error:  # a scanner may be anybody's: its failure costs its own answer
                if contender.record.role != "scanner":
                    raise
                self.outcome.failed += 1
                reason = f"{contender.record.label}: {type(error).__name__}: {error}"
                progress.failure(f"{sample.task} {sample.number}", None, reason)
            progress.branch(contender.record.label)

    def _protocol(self) -> RulerProtocol:
        run, record = self.spec.run, model_record(self.model, self.renderer)
        return RulerProtocol(
            model=record.id,
            weights_sha256=record.weights_sha256,
            dtype=record.dtype,
            rope=self.model.rope,
            template_sha256=record.template_sha256,
            length=self.spec.length,
            seed=self.spec.seed,
            k=run.selected,
            sink=run.sink,
            local=run.local,
            max_new_tokens=run.max_new_tokens,
            prefill_chunk=run.prefill_chunk,
            tasks_version=VERSION,
            haystack_sha256=self.filler.sha256,
        )


def _dense_first(found: Sequence[Contender]) -> list[Contender]:
    order = {"dense": 0, "reference": 1}
    return sorted(found, key=lambda contender: order.get(contender.record.role, 2))


def _scanner_record(contender: Contender, position: int) -> RulerScanner:
    record = contender.record
    return RulerScanner(
        sha256=record.sha256,
        position=position,
        label=record.label,
        role=record.role,
        config=record.config,
        calibration_sha256=record.calibration_sha256,
    )


def _check_positions(spec: RulerSpec, model: LoadedModel) -> None:
    needed = spec.length + spec.max_new_tokens
    if needed > model.shape.max_positions:
        raise UsageError(
            explain(
                "the length is beyond the model's positions",
                field="--length",
                found=f"{spec.length} + {spec.max_new_tokens} new tokens",
                expected=f"at most {model.shape.max_positions} together for {model.id} (rope {model.rope})",
                do="give a smaller --length, or stretch the positions with --rope yarn:FACTOR",
            )
        )
