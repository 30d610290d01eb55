"""Times of a finished run, read from its results database, to predict another by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from leadline.database import Results
from leadline.errors import UsageError, explain


@dataclass(frozen=True)
class Measured:
    """Times of a finished run: milliseconds of a decode step by scanner, and what a branch takes besides decoding."""

    by_label: dict[str, float]
    other_seconds: float
    source: str

    def step_ms(self, label: str) -> float:
        """The scanner's own, or the mean of all."""
        return self.by_label.get(label, sum(self.by_label.values()) / len(self.by_label))

    @classmethod
    def of(cls, path: Path) -> Measured:
        """From the latest run of a results database that wrote anything. UsageError where there is none."""
        with Results.open(path, read_only=True) as results:
            branches = results.query(
                "SELECT r.run_id AS run, s.label AS label, c.wall_ms AS ms, c.decode_steps AS steps, "
                "c.context_tokens AS context FROM step_result r JOIN step_cost c ON c.step_result_id = r.id "
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
        elapsed = sum((_time(row["ended"]) - _time(row["started"])).total_seconds() for row in machine)
        decode = sum(branch["ms"] * branch["steps"] for branch in branches) / 1000
        labels = {branch["label"] for branch in branches}
        own = {label: [branch["ms"] for branch in branches if branch["label"] == label] for label in labels}
        context = sum(branch["context"] for branch in branches) / len(branches)
        where = machine[-1]["gpu"] or machine[-1]["cpu"]
        return cls(
            {label: sum(values) / len(values) for label, values in own.items()},
            max(0.0, elapsed - decode) / len(branches),
            f"run {run} of {path}: {len(branches)} branches at {context:.0f} tokens in the mean, on {where}",
        )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
