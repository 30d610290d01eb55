"""The results database: one writer that stores the records of runs, and gives back what was stored.

A run is its protocol: `start_run` with the same protocol continues the run that is there. What is added twice is
stored once; what contradicts the stored record is an error, never an overwrite. `save` writes a branch (result, cost,
teacher-forced figures) in one transaction with a synced log, so that a kill at any moment loses at most the branch in
flight. Reports open the same file read-only, also while a run is writing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from leadline.config import RunSpec
from leadline.database_checks import agree, record_of, refuse_not_finite
from leadline.database_file import open_engine
from leadline.database_schema import (
    BranchPointRow,
    EnvironmentRow,
    ExclusionRow,
    MeasurementRow,
    ModelRow,
    RunRow,
    ScannerRow,
    SessionRow,
    StepCostRow,
    StepResultRow,
    TeacherForcedRow,
)
from leadline.database_shared import SharedCopyRow
from leadline.errors import LeadlineError, MachineError, UsageError, explain
from leadline.records import (
    BranchPointRecord,
    BranchRecord,
    Environment,
    Exclusion,
    ModelRecord,
    ScannerRecord,
    SessionRecord,
    StepCost,
    StepResult,
    TeacherForced,
)

R = TypeVar("R", bound=BaseModel)
Status = Literal["running", "complete", "partial", "interrupted"]


@dataclass(frozen=True)
class RunSummary:
    """One run of a database, in brief. `created` and `updated` are UTC, ISO 8601."""

    id: int
    protocol_sha256: str
    model: str
    status: str
    created: str
    updated: str
    sessions: int
    scanners: int
    results: int


class Results:
    """A results database, open. One writer at a time; any number of read-only readers beside it."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine
        self._invocation: dict[int, int] = {}
        self._snapshot: Connection | None = None

    @classmethod
    def open(cls, path: str | Path, create: bool = False, read_only: bool = False) -> Self:
        """Open the database at `path`; `create` makes it where it is missing.

        An older file is upgraded when it is opened for writing. Raises UsageError where the file is missing, is no
        leadline database, or has a schema version this leadline does not know.
        """
        return cls(Path(path), open_engine(Path(path), create=create, read_only=read_only))

    def close(self) -> None:
        """Close every connection; the last one to close folds the write-ahead log into the file."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def start_run(self, spec: RunSpec, model: ModelRecord, environment: Environment, command: str) -> int:
        """Begin the run of this protocol, or continue it, and record this invocation; returns the run's id.

        The stored spec becomes the latest call's, with the sessions and scanners of earlier calls in front. Another
        model (any field but the device) under the same protocol is a UsageError, and so is a copy by `leadline share`.
        """
        with self.transaction() as db:
            if db.scalar(select(func.count()).select_from(SharedCopyRow)):
                raise UsageError(
                    explain(
                        "no run goes on in a shared copy",
                        file=self.path,
                        found="a copy by `leadline share`, without the recorded steps",
                        do="go on in the original, or replay into a new file",
                    )
                )
            run = db.scalar(select(RunRow).where(RunRow.protocol_sha256 == spec.protocol_sha256))
            if run is None:
                run = RunRow(
                    protocol_sha256=spec.protocol_sha256,
                    protocol=spec.protocol,
                    spec={},
                    created=_now(),
                    status="",
                    updated="",
                )
                db.add(run)
                db.flush()
                db.add(ModelRow(run_id=run.id, **model.model_dump(mode="json")))
            else:
                spec = _merged(self._load(RunSpec, run.spec), spec)
                agree(self.path, "model", model, db.get_one(ModelRow, run.id), ModelRecord, lenient={"device"})
            run.spec = spec.model_dump(mode="json")
            run.status = "running"
            run.updated = _now()
            values = environment.model_dump(mode="json")
            invocation = EnvironmentRow(run_id=run.id, command=command, started=_now(), ended=None, **values)
            db.add(invocation)
            db.flush()
            self._invocation[run.id] = invocation.id
            return run.id

    def finish(self, run: int, status: Status = "complete") -> None:
        """Close this invocation: "partial" where some items failed, "interrupted" after Ctrl-C."""
        with self.transaction() as db:
            row = db.get_one(RunRow, run)
            row.status = status
            row.updated = _now()
            if run in self._invocation:
                db.get_one(EnvironmentRow, self._invocation[run]).ended = _now()

    def runs(self) -> list[RunSummary]:
        """Every run of the file, oldest first."""
        with self.transaction() as db:
            return [
                RunSummary(
                    id=run.id,
                    protocol_sha256=run.protocol_sha256,
                    model=db.get_one(ModelRow, run.id).id,
                    status=run.status,
                    created=run.created,
                    updated=run.updated,
                    sessions=_count(db, SessionRow, run.id),
                    scanners=_count(db, ScannerRow, run.id),
                    results=_count(db, StepResultRow, run.id),
                )
                for run in db.scalars(select(RunRow).order_by(RunRow.id))
            ]

    def spec(self, run: int) -> RunSpec:
        """The spec of the run: the latest call's, with every session and scanner ever asked for."""
        with self.transaction() as db:
            row = db.get(RunRow, run)
            if row is None:
                known = ", ".join(str(id) for id in db.scalars(select(RunRow.id).order_by(RunRow.id)))
                raise UsageError(
                    explain(
                        "no such run", file=self.path, found=run, expected=f"one of {known}" if known else "no run yet"
                    )
                )
            return self._load(RunSpec, row.spec)

    def model(self, run: int) -> ModelRecord:
        """The model of the run."""
        with self.transaction() as db:
            return record_of(ModelRecord, db.get_one(ModelRow, run))

    # --- measurements without a run -----------------------------------------------------------------------------------

    def start_measurement(self, kind: str, spec: BaseModel, environment: Environment, command: str) -> int:
        """Record one invocation of a command that measures without replaying; returns the id its figures point to."""
        with self.transaction() as db:
            values = environment.model_dump(mode="json") | {"spec": spec.model_dump(mode="json"), "command": command}
            row = MeasurementRow(kind=kind, started=_now(), ended=None, **values)
            db.add(row)
            db.flush()
            return row.id

    def finish_measurement(self, measurement: int) -> None:
        """Say that the invocation ended by itself."""
        with self.transaction() as db:
            db.get_one(MeasurementRow, measurement).ended = _now()

    # --- what a run works on ------------------------------------------------------------------------------------------

    def add_session(self, run: int, session: SessionRecord) -> None:
        """Store a session. What the same content is called and where it lies is kept from the first time, the source
        that it counts as from the last.
        """
        lenient = {"id", "format", "path", "source", "notes", "dense_perplexity"}
        with self.transaction() as db:
            row = db.get(SessionRow, (run, session.sha256))
            if row is None:
                position = _count(db, SessionRow, run)
                db.add(SessionRow(run_id=run, position=position, **session.model_dump(mode="json")))
            else:
                agree(self.path, f"session {session.id}", session, row, SessionRecord, lenient)
                row.source = session.source

    def set_dense_perplexity(self, run: int, session_sha256: str, value: float) -> None:
        """Store the perplexity of the session's recorded steps under dense attention."""
        refuse_not_finite({"dense_perplexity": value}, session_sha256)
        with self.transaction() as db:
            db.get_one(SessionRow, (run, session_sha256)).dense_perplexity = value

    def add_exclusions(self, run: int, exclusions: Sequence[Exclusion]) -> None:
        """Store what was not replayed and why; an exclusion of identical content is stored once."""
        with self.transaction() as db:
            seen = set(db.scalars(select(ExclusionRow.content_sha256).where(ExclusionRow.run_id == run)))
            for exclusion in exclusions:
                values = exclusion.model_dump(mode="json")
                digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
                if digest not in seen:
                    seen.add(digest)
                    db.add(ExclusionRow(run_id=run, content_sha256=digest, **values))

    def excluded_steps(self, run: int, session_sha256: str, reason: str) -> set[int]:
        """The steps of a session that were left out for a reason that begins so."""
        mine = select(ExclusionRow.step).where(
            ExclusionRow.run_id == run, ExclusionRow.session_sha256 == session_sha256
        )
        with self.transaction() as db:
            found = db.scalars(mine.where(ExclusionRow.reason.startswith(reason, autoescape=True)))
            return {step for step in found if step is not None}

    def add_branch_point(self, run: int, session_sha256: str, point: BranchPointRecord) -> None:
        """Store a branch point of a stored session."""
        with self.transaction() as db:
            row = db.get(BranchPointRow, (run, session_sha256, point.step))
            if row is None:
                values = point.model_dump(mode="json")
                db.add(BranchPointRow(run_id=run, session_sha256=session_sha256, **values))
            else:
                name = f"step {point.step} of session {session_sha256[:12]}"
                agree(self.path, name, point, row, BranchPointRecord, lenient={"prompt_tail"})

    def add_scanner(self, run: int, scanner: ScannerRecord) -> None:
        """Store a scanner. Label and whether kernels decoded it are kept from the first time."""
        with self.transaction() as db:
            row = db.get(ScannerRow, (run, scanner.sha256))
            if row is None:
                position = _count(db, ScannerRow, run)
                db.add(ScannerRow(run_id=run, position=position, **scanner.model_dump(mode="json")))
            else:
                agree(self.path, f"scanner {scanner.label}", scanner, row, ScannerRecord, lenient={"label", "fused"})

    # --- results ------------------------------------------------------------------------------------------------------

    def done(self, run: int, session_sha256: str) -> set[tuple[int, str]]:
        """The (step, scanner sha256) pairs of a session that are stored."""
        query = select(StepResultRow.step, StepResultRow.scanner_sha256)
        query = query.where(StepResultRow.run_id == run, StepResultRow.session_sha256 == session_sha256)
        with self.transaction() as db:
            return {(step, scanner) for step, scanner in db.execute(query)}

    def save(self, run: int, branch: BranchRecord) -> None:
        """Store one branch in one transaction; on return it is on disk.

        Raises LeadlineError where a figure is not finite, or the branch point or scanner was not added, and UsageError
        where the branch is stored already: results are never overwritten.
        """
        if run not in self._invocation:
            raise LeadlineError(f"run {run} was not started by this process: call start_run before save")
        key = (branch.session_sha256, branch.step, branch.scanner_sha256)
        name = f"session {key[0][:12]}, step {key[1]}, scanner {key[2][:12]}"
        refuse_not_finite(branch.model_dump(), name)
        with self.transaction() as db:
            if db.scalar(_one_result(run, *key)) is not None:
                raise UsageError(
                    explain(
                        "this branch is stored already",
                        file=self.path,
                        found=name,
                        expected="one result per session, step and scanner",
                        do="let one process at a time write to a results database",
                    )
                )
            row = StepResultRow(
                run_id=run,
                session_sha256=branch.session_sha256,
                step=branch.step,
                scanner_sha256=branch.scanner_sha256,
                environment_id=self._invocation[run],
                created=_now(),
                **branch.result.model_dump(mode="json", exclude={"teacher_forced"}),
            )
            db.add(row)
            try:
                db.flush()
            except IntegrityError as error:
                raise LeadlineError(
                    explain(
                        "a branch of an unknown branch point or scanner",
                        file=self.path,
                        found=f"{name} ({error.orig})",
                        do="add the session, the branch point and the scanner before saving the branch",
                    )
                ) from None
            db.add(StepCostRow(step_result_id=row.id, **branch.cost.model_dump(mode="json")))
            for forced in branch.result.teacher_forced:
                db.add(TeacherForcedRow(step_result_id=row.id, **forced.model_dump(mode="json")))
            db.get_one(RunRow, run).updated = _now()

    def result(self, run: int, session_sha256: str, step: int, scanner_sha256: str) -> StepResult | None:
        """The stored result of one branch, or None."""
        with self.transaction() as db:
            row = db.scalar(_one_result(run, session_sha256, step, scanner_sha256))
            if row is None:
                return None
            query = select(TeacherForcedRow).where(TeacherForcedRow.step_result_id == row.id)
            forced = db.scalars(query.order_by(TeacherForcedRow.text.desc()))
            return record_of(StepResult, row, teacher_forced=tuple(record_of(TeacherForced, each) for each in forced))

    def cost(self, run: int, session_sha256: str, step: int, scanner_sha256: str) -> StepCost | None:
        """The stored cost of one branch, or None."""
        with self.transaction() as db:
            row = db.scalar(_one_result(run, session_sha256, step, scanner_sha256))
            return None if row is None else record_of(StepCost, db.get_one(StepCostRow, row.id))

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT as dicts, in its order; JSON columns come as text. Parameters are `:name` in the text."""
        with nullcontext(self._snapshot) if self._snapshot else self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(sql), dict(parameters or {})).mappings()]

    def has(self, table: str) -> bool:
        """Whether the file holds a table; one that an older version wrote may be without the later ones."""
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table"
        return bool(self.query(query, {"table": table}))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment, whatever a writer commits meanwhile. For reading only."""
        with self._engine.connect() as connection, connection.begin():
            self._snapshot = connection
            try:
                yield
            finally:
                self._snapshot = None

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One transaction, for the modules that own further tables. Raises MachineError where it cannot be had."""
        try:
            with Session(self._snapshot or self._engine) as db, db.begin():
                yield db
        except OperationalError as error:
            raise MachineError(
                explain(
                    "the results database cannot be used now",
                    file=self.path,
                    found=error.orig,
                    do="let one process at a time write to it, on a local disk with free space",
                )
            ) from None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _load(self, record: type[R], values: Mapping[str, Any]) -> R:
        try:
            return record.model_validate(values)
        except ValidationError as error:
            what = f"the stored {record.__name__} is not one this version of leadline can read"
            raise UsageError(
                explain(what, file=self.path, found=error, do="read it with the version that wrote it")
            ) from None


def _one_result(run: int, session_sha256: str, step: int, scanner_sha256: str) -> Any:
    return select(StepResultRow).where(
        StepResultRow.run_id == run,
        StepResultRow.session_sha256 == session_sha256,
        StepResultRow.step == step,
        StepResultRow.scanner_sha256 == scanner_sha256,
    )


def _merged(stored: RunSpec, spec: RunSpec) -> RunSpec:
    def join(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(old + new))

    return spec.model_copy(
        update={"sessions": join(stored.sessions, spec.sessions), "scanners": join(stored.scanners, spec.scanners)}
    )


def _count(db: Session, table: type[SessionRow | ScannerRow | StepResultRow], run: int) -> int:
    return db.execute(select(func.count()).select_from(table).where(table.run_id == run)).scalar_one()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
