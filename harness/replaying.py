"""Sets a run up and runs it: sessions, scanners, calibration, model, database; what fails cheaply fails first."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from leadline.config import RunSpec
from leadline.contenders import canonical, contenders, needing_calibration
from leadline.database import Results
from leadline.engine import Outcome, Replay
from leadline.environment import capture
from leadline.errors import UsageError, explain
from leadline.model import LoadedModel, load_model
from leadline.progress import on_stderr
from leadline.records import Exclusion, ModelRecord
from leadline.scanners.calibration import Calibration, load
from leadline.sessions.directory import Discovery, discover
from leadline.sessions.render import Renderer
from leadline.sessions.schema import Session
from leadline.sessions.tables import parse_filters
from leadline.settling import settled

EMBEDDED = "embedded"
BUNDLED = "smollm2-135m-instruct.safetensors"


@dataclass(frozen=True)
class Part:
    """The sessions that one of several processes works on: every `of`-th, starting with number `index` (from 1)."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """From "1/2". UsageError for anything else."""
        index, slash, of = text.partition("/")
        if not (slash and index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
            raise UsageError(
                explain("no such part", field="--part", found=text, expected="I/N with I from 1 to N", do="e.g. 1/2")
            )
        return cls(int(index), int(of))


WHOLE = Part(1, 1)


def replay(spec: RunSpec, database: Path, command: str, part: Part = WHOLE) -> tuple[int, Outcome]:
    """Run `spec` into `database`, doing only what is missing. Returns the run's id and what was done.

    part: the share of the sessions to work on; other processes may work on the others at the same time, into the same
    database. A run of parts is complete when a call without a part has found nothing missing. Raises UsageError before
    any model is loaded for unknown scanners, missing sessions or a missing calibration. KeyboardInterrupt leaves the
    run marked as interrupted and is raised on.
    """
    if part != WHOLE and spec.limit is not None:
        raise UsageError(
            explain(
                "a limit counts the sessions of one process",
                field="--limit",
                found=f"{spec.limit} with --part {part.index}/{part.of}",
                do="leave one of them out",
            )
        )
    spec = canonical(spec)
    contenders(spec, None)  # names and options are checked before anything slow
    filters = parse_filters(list(spec.filters))
    found = [
        discover(path, view=spec.view, redact=spec.redact, filters=filters) for path in map(_existing, spec.sessions)
    ]
    if not any(discovery.sessions for discovery in found):
        raise UsageError(_no_sessions(spec, found))
    calibration = find_calibration(spec)
    spec = settled(spec, calibration)
    spec = spec.model_copy(update={"calibration_sha256": calibration.sha256 if calibration else None})
    with Results.open(database, create=True) as results:
        model = load_model(spec.model, device=spec.device, dtype=spec.dtype, rope=spec.rope)
        renderer = Renderer(model.tokenizer)
        if calibration is not None:
            calibration.check(weights_sha256=model.weights_sha256, rope=model.rope)
        parts = contenders(spec, calibration.sha256 if calibration else None)
        run = results.start_run(spec, model_record(model, renderer), capture(str(model.device)), command)
        results.add_exclusions(run, list(_unread(found)))
        sessions = list(_sessions(found))[part.index - 1 :: part.of]
        status: Any = "interrupted"
        try:
            with on_stderr(min(len(sessions), spec.limit or len(sessions))) as progress:
                work = Replay(spec, run, results, model, renderer, parts, calibration, progress)
                outcome = work.sessions(sessions)
            if part == WHOLE:
                status = "partial" if outcome.failed else "complete"
        finally:
            results.finish(run, status)
        return run, outcome


def find_calibration(spec: RunSpec) -> Calibration | None:
    """The calibration of a run: the one named, or the bundled one of the embedded model; None where no scanner needs
    one.

    UsageError, naming the `calibrate` command, where one is needed and there is none.
    """
    needing = needing_calibration(spec)
    if spec.calibration is not None:
        found = load(Path(spec.calibration))
        if spec.calibration_sha256 not in (None, found.sha256):
            raise UsageError(
                explain(
                    "the calibration is not the one the run was made with",
                    file=spec.calibration,
                    field="sha256",
                    found=found.sha256,
                    expected=spec.calibration_sha256,
                    do="put the old file back, or start a new run with `leadline replay`",
                )
            )
        return found
    if not needing:
        return None
    if spec.model == EMBEDDED:
        with as_file(files("leadline.scanners") / "calibrations" / BUNDLED) as path:
            return load(path)
    length = f"--length {spec.max_context}"
    calibrate = f"leadline calibrate {shlex.quote(spec.model)} --text TEXT {length} --out calibration.safetensors"
    raise UsageError(
        explain(
            f"{len(needing)} scanners need a calibration of {spec.model}",
            field="--calibration",
            found="none",
            expected=f"an artifact for {', '.join(needing)}",
            do=f"make one:\n              {calibrate}\n            or leave these scanners out",
        )
    )


def model_record(model: LoadedModel, renderer: Renderer) -> ModelRecord:
    """The model's row in a results database."""
    shape = model.shape
    template = str(model.tokenizer.chat_template)
    return ModelRecord(
        id=model.id,
        weights_sha256=model.weights_sha256,
        architecture=type(model.network).__name__,
        layers=shape.layers,
        scanned_layers=shape.scanned_layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        rope=model.rope,
        template_sha256=hashlib.sha256(template.encode()).hexdigest(),
        template_traits=_plain(asdict(renderer.traits))
        | {"stop_tokens": sorted({*model.stop_tokens, *renderer.stop_ids})},
    )


def resume_command(database: Path, run: int | None = None) -> str:
    """The exact command that goes on with a run."""
    return shlex.join(["leadline", "resume", str(database), *(["--run", str(run)] if run is not None else [])])


def _sessions(found: list[Discovery]) -> Iterator[Session]:
    seen: set[str] = set()
    for discovery in found:
        for session in discovery.sessions:
            if session.sha256 not in seen:
                seen.add(session.sha256)
                yield session


def _unread(found: list[Discovery]) -> Iterator[Exclusion]:
    for discovery in found:
        for skipped in discovery.skipped:
            yield Exclusion(path=str(skipped.path), session_sha256=None, step=None, reason=skipped.reason)


def _existing(text: str) -> str | Path:
    if text.startswith("hf:"):
        return text
    path = Path(text)
    if not path.exists():
        raise UsageError(
            explain(
                "no such file or directory", field="sessions", found=text, do="give a directory of recorded sessions"
            )
        )
    return path


def _no_sessions(spec: RunSpec, found: list[Discovery]) -> str:
    skipped = [s for discovery in found for s in discovery.skipped]
    reasons = "; ".join(f"{s.path}: {s.reason}" for s in skipped[:3]) or "empty"
    return explain(
        "no recorded sessions there",
        field="sessions",
        found=f"{', '.join(spec.sessions)} ({reasons}{' ...' if len(skipped) > 3 else ''})",
        expected="recorded sessions in a format `leadline sessions list` reads",
        do="run `leadline sessions list` on it to see why each file was left out",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
