"""What a run of RULER-style tasks is and records: its protocol, and one answer per sample and scanner."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from leadline.config import RunSpec
from leadline.errors import UsageError, explain
from leadline.records import Record
from leadline.ruler.tasks import TASKS

DEFAULT_SCANNERS = (
    "fathom:budget=48",
    "fathom:budget=80",
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "landmarks",
    "streaming",
)


class RulerSpec(Record):
    """What was asked for. `length` counts the prompt's tokens; k by the rule of replays for length + max_new_tokens.

    `calibration_sha256` is filled in when the calibration is loaded. Everything but tasks, samples and scanners decides
    what a single answer is.
    """

    model: str = "embedded"
    length: int = Field(ge=256)
    tasks: tuple[str, ...] = tuple(TASKS)
    samples: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    scanners: tuple[str, ...] = DEFAULT_SCANNERS
    k: int | None = Field(default=None, ge=1)
    max_new_tokens: int = Field(default=96, ge=1)
    device: str | None = None
    dtype: str | None = None
    rope: str | None = None
    calibration: str | None = None
    calibration_sha256: str | None = None

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [task for task in tasks if task not in TASKS]
        if unknown or not tasks:
            found = ", ".join(unknown) or "none"
            raise UsageError(
                explain(
                    "no such task", field="--task", found=found, expected=", ".join(TASKS), do="name tasks of these"
                )
            )
        return tuple(dict.fromkeys(tasks))

    @property
    def run(self) -> RunSpec:
        """The same as a replay's specification: what the shared parts of the harness take."""
        return RunSpec.model_validate(
            {
                "sessions": (),
                "scanners": self.scanners,
                "max_context": self.length + self.max_new_tokens,
                "noise_chunk": 0,
                **self.model_dump(
                    include={
                        "model", "k", "max_new_tokens", "device", "dtype", "rope", "calibration", "calibration_sha256",
                    }
                ),
            }
        )  # fmt: skip


class RulerProtocol(Record):
    """What decides an answer, apart from its task, sample and scanner: the identity of a run in a results database.

    `tasks_version` and `haystack_sha256` stand for the prompts' texts, `template_sha256` for the chat template.
    """

    model: str
    weights_sha256: str
    dtype: str
    rope: str
    template_sha256: str
    length: int
    seed: int
    k: int
    sink: int
    local: int
    max_new_tokens: int
    prefill_chunk: int
    tasks_version: int
    haystack_sha256: str

    @cached_property
    def sha256(self) -> str:
        """Hash of all fields."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class RulerScanner(Record):
    """A scanner that takes part; `position` is its place in tables: dense first, then the reference."""

    sha256: str
    position: int
    label: str
    role: str
    config: dict[str, Any]
    calibration_sha256: str | None


class RulerAnswer(Record):
    """One answer. `bits_per_token`: realised scan bits per token of complete blocks, 0 where nothing was scanned.

    `union_rows`: rows of K and V fetched per KV head, layer and step. `score`: the fraction of gold strings in `text`.
    """

    task: str
    sample: int
    scanner_sha256: str
    prompt_tokens: int
    prompt_sha256: str
    gold: tuple[str, ...]
    text: str
    tokens: tuple[int, ...]
    stopped: bool
    score: float = Field(ge=0, le=1)
    bits_per_token: float
    union_rows: float
