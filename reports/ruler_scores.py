"""Scores of RULER-style tasks: means by task and scanner, and paired differences from exact top-k over samples.

The unit is a sample (one prompt of one task), answered by every scanner from the same prefill. Only samples that both
sides of a difference have answered enter it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.database import Results
from leadline.reports import stats
from leadline.reports.query import Query
from leadline.ruler.records import RulerAnswer, RulerProtocol, RulerScanner
from leadline.ruler.storing import load, protocols
from leadline.ruler.tasks import TASKS

ANSWERS = Query(
    "answers to RULER-style tasks",
    """SELECT p.id AS protocol, p.model, p.length, p.k, a.task, a.sample, s.label, a.prompt_tokens, a.score,
  a.bits_per_token, a.gold, a.text
FROM ruler_answer a
JOIN ruler_protocol p ON p.id = a.protocol_id
JOIN ruler_scanner s ON s.protocol_id = a.protocol_id AND s.sha256 = a.scanner_sha256
ORDER BY p.id, a.task, a.sample, s.position""",
)


@dataclass(frozen=True)
class TaskScore:
    """One scanner in one task: the mean score over its samples."""

    task: str
    mean: stats.Mean


@dataclass(frozen=True)
class ScannerScores:
    """One scanner: scores by task and over all samples, what it read, and its paired difference from exact top-k.

    `bits` is the mean of realised scan bits per token; `stopped` the share of answers that ended their turn.
    `difference` is None for exact itself and where no sample was answered by both; `holm_p` adjusts its sign-flip p
    over all scanners but dense.
    """

    label: str
    role: str
    tasks: tuple[TaskScore, ...]
    overall: stats.Mean
    bits: float
    rows: float
    stopped: float
    difference: stats.Difference | None
    holm_p: float | None


@dataclass(frozen=True)
class RulerScores:
    """One protocol: what was asked, and every scanner's scores, dense first."""

    number: int
    protocol: RulerProtocol
    tasks: tuple[str, ...]
    samples: int
    shortest: int
    longest: int
    scanners: tuple[ScannerScores, ...]


def ruler_scores(results: Results, only: int | None = None) -> tuple[RulerScores, ...]:
    """The scores of every protocol of a database that has answers, or of one."""
    found = []
    for number, protocol in protocols(results):
        scanners, answers = load(results, number)
        if answers and only in (None, number):
            found.append(_scores(number, protocol, scanners, answers))
    return tuple(found)


def _scores(
    number: int, protocol: RulerProtocol, scanners: Sequence[RulerScanner], answers: Sequence[RulerAnswer]
) -> RulerScores:
    by_scanner: dict[str, dict[tuple[str, int], RulerAnswer]] = {}
    for answer in answers:
        by_scanner.setdefault(answer.scanner_sha256, {})[answer.task, answer.sample] = answer
    tasks = tuple(task for task in TASKS if any(answer.task == task for answer in answers))
    reference = next((s.sha256 for s in scanners if s.role == "reference"), None)
    baseline = by_scanner.get(reference or "", {})
    differences = {
        s.sha256: _difference(by_scanner[s.sha256], baseline)
        for s in scanners
        if s.sha256 in by_scanner and s.sha256 != reference
    }
    compared = [s.sha256 for s in scanners if s.role == "scanner" and differences.get(s.sha256) is not None]
    p = [found.flip.p for sha in compared if (found := differences[sha]) is not None]
    adjusted = dict(zip(compared, stats.holm(p), strict=True))
    return RulerScores(
        number=number,
        protocol=protocol,
        tasks=tasks,
        samples=len({(answer.task, answer.sample) for answer in answers}),
        shortest=min(answer.prompt_tokens for answer in answers),
        longest=max(answer.prompt_tokens for answer in answers),
        scanners=tuple(
            _of_scanner(
                s, tasks, list(by_scanner[s.sha256].values()), differences.get(s.sha256), adjusted.get(s.sha256)
            )
            for s in scanners
            if s.sha256 in by_scanner
        ),
    )


def _difference(
    own: dict[tuple[str, int], RulerAnswer], baseline: dict[tuple[str, int], RulerAnswer]
) -> stats.Difference | None:
    shared = sorted(set(own) & set(baseline))
    return stats.paired([own[key].score for key in shared], [baseline[key].score for key in shared])


def _of_scanner(
    scanner: RulerScanner,
    tasks: Sequence[str],
    answers: Sequence[RulerAnswer],
    difference: stats.Difference | None,
    holm_p: float | None,
) -> ScannerScores:
    by_task = [(task, stats.mean_interval([a.score for a in answers if a.task == task])) for task in tasks]
    overall = stats.mean_interval([answer.score for answer in answers])
    assert overall is not None, "a scanner without answers is left out"
    count = len(answers)
    return ScannerScores(
        label=scanner.label,
        role=scanner.role,
        tasks=tuple(TaskScore(task, mean) for task, mean in by_task if mean is not None),
        overall=overall,
        bits=sum(answer.bits_per_token for answer in answers) / count,
        rows=sum(answer.union_rows for answer in answers) / count,
        stopped=sum(answer.stopped for answer in answers) / count,
        difference=difference,
        holm_p=holm_p,
    )
