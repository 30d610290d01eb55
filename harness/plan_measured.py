"""Times of a finished run, read from its results database, to predict another by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from leadline.database import Results
from leadline.errors import UsageError, explain
from leadline.plan_records import PointPlan


@dataclass(frozen=True)
class Measured:
    """Times of a finished run by scanner: milliseconds of a decode step, and the share of `max_new_tokens` that a
    branch took in steps; and seconds per prompt token of a branch for all else (prefill, capture, loading; teacher
    forcing too where no kernels did it). A branch decoded by kernels steps on to the end of the longest text beside it;
    the reference, whose step is one of the texts, and dense where it was looked at first, take the texts' steps
    besides.
    """

    by_label: dict[str, float]
    taken: dict[str, float]
    other_seconds: float
    source: str

    def seconds(self, labels: Sequence[str], points: Sequence[PointPlan], max_new_tokens: int) -> float:
        """Seconds that one process takes for these branch points under these scanners; the mean of all for others."""
        per_step, taken = _mean(self.by_label), _mean(self.taken)
        steps = sum(self.taken.get(label, taken) * self.by_label.get(label, per_step) / 1000 for label in labels)
        tokens = sum(point.prompt_tokens for point in points)
        return steps * max_new_tokens * len(points) + self.other_seconds * tokens * len(labels)

    @classmethod
    def of(cls, path: Path) -> Measured:
        """From the latest run of a results database that wrote anything. UsageError where there is none."""
        with Results.open(path, read_only=True) as results:
            branches = results.query(
                "SELECT r.run_id AS run, s.label AS label, s.role AS role, s.fused AS fused, c.wall_ms AS ms, "
                "c.decode_steps AS steps, "
                "c.context_tokens AS context, (SELECT COALESCE(MAX(f.tokens), 0) FROM teacher_forced f "
                "WHERE f.step_result_id = r.id) AS text FROM step_result r "
                "JOIN step_cost c ON c.step_result_id = r.id "
                "JOIN scanner s ON s.run_id = r.run_id AND s.sha256 = r.scanner_sha256 "
                "JOIN environment e ON e.id = r.environment_id WHERE e.ended IS NOT NULL ORDER BY r.id"
            )
            if not branches:
                raise UsageError(
                    explain(
                        "nothing was measured there", file=path, field="--like", do="name a finished run's database"
                    )
                )
            run = branches[-1]["run"]
            branches = [branch for branch in branches if branch["run"] == run]
            machine = results.query(
                "SELECT started, ended, cpu, gpu FROM environment WHERE run_id = :run AND ended IS NOT NULL "
                "AND id IN (SELECT environment_id FROM step_result)",
                {"run": run},
            )
            spec = results.spec(run)
        apart = {"reference", "dense"} if spec.exclude_degenerate else {"reference"}
        elapsed = sum((_time(row["ended"]) - _time(row["started"])).total_seconds() for row in machine)
        ms: dict[str, list[float]] = {}
        steps: dict[str, list[float]] = {}
        for branch in branches:
            ms.setdefault(branch["label"], []).append(branch["ms"])
            steps.setdefault(branch["label"], []).append(_steps(branch, apart))
        stepped = sum(a * b for label in ms for a, b in zip(ms[label], steps[label], strict=True)) / 1000
        tokens = sum(branch["context"] for branch in branches)
        where = f"{tokens / len(branches):.0f} tokens in the mean, on {machine[-1]['gpu'] or machine[-1]['cpu']}"
        return cls(
            {label: sum(values) / len(values) for label, values in ms.items()},
            {label: sum(values) / len(values) / spec.max_new_tokens for label, values in steps.items()},
            max(0.0, elapsed - stepped) / tokens,
            f"run {run} of {path}: {len(branches)} branches, {where}",
        )


def _steps(branch: Any, apart: Collection[str]) -> float:
    """Decode steps of a branch with the texts beside it; `apart`: roles whose texts were fed in a pass of their own."""
    steps, text = branch["steps"], branch["text"]
    if not branch["fused"]:
        return float(steps)
    return float(steps + text if branch["role"] in apart else max(steps, text))


def _mean(by_label: Mapping[str, float]) -> float:
    return sum(by_label.values()) / len(by_label)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
