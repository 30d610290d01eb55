"""Times of a finished run, read from its results database, to predict another by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from leadline.database import Results
from leadline.errors import UsageError, explain
from leadline.plan_records import PointPlan


@dataclass(frozen=True)
class Measured:
    """Times of a finished run: milliseconds of a decode step by scanner, the share of `max_new_tokens` that a branch
    took before it ended its turn, and seconds per prompt token of a branch for all else (prefill, capture, loading;
    teacher forcing too where no kernels did it). `fused` are the scanners whose steps feed the teacher-forced texts
    beside the branch; such a branch steps on to the end of the longest of them, `beside` of `max_new_tokens`.
    """

    by_label: dict[str, float]
    fused: frozenset[str]
    share: float
    beside: float
    other_seconds: float
    source: str

    def step_ms(self, label: str) -> float:
        """The scanner's own, or the mean of all."""
        return self.by_label.get(label, sum(self.by_label.values()) / len(self.by_label))

    def seconds(self, labels: Sequence[str], points: Sequence[PointPlan], max_new_tokens: int) -> float:
        """Seconds that one process takes for these branch points under these scanners."""
        total = 0.0
        for point in points:
            for label in labels:
                by_kernels = label in self.fused or (label not in self.by_label and bool(self.fused))
                steps = (self.beside if by_kernels else self.share) * max_new_tokens
                total += steps * self.step_ms(label) / 1000 + self.other_seconds * point.prompt_tokens
        return total

    @classmethod
    def of(cls, path: Path) -> Measured:
        """From the latest run of a results database that wrote anything. UsageError where there is none."""
        with Results.open(path, read_only=True) as results:
            branches = results.query(
                "SELECT r.run_id AS run, s.label AS label, s.fused AS fused, c.wall_ms AS ms, c.decode_steps AS steps, "
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
            longest = results.spec(run).max_new_tokens
        elapsed = sum((_time(row["ended"]) - _time(row["started"])).total_seconds() for row in machine)
        beside = [max(b["steps"], b["text"]) for b in branches if b["fused"]]
        stepped = sum(b["ms"] * (max(b["steps"], b["text"]) if b["fused"] else b["steps"]) for b in branches) / 1000
        labels = {branch["label"] for branch in branches}
        own = {label: [branch["ms"] for branch in branches if branch["label"] == label] for label in labels}
        tokens = sum(branch["context"] for branch in branches)
        where = f"{tokens / len(branches):.0f} tokens in the mean, on {machine[-1]['gpu'] or machine[-1]['cpu']}"
        return cls(
            {label: sum(values) / len(values) for label, values in own.items()},
            frozenset(branch["label"] for branch in branches if branch["fused"]),
            sum(branch["steps"] for branch in branches) / (len(branches) * longest),
            sum(beside) / (max(1, len(beside)) * longest),
            max(0.0, elapsed - stepped) / tokens,
            f"run {run} of {path}: {len(branches)} branches, {where}",
        )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
