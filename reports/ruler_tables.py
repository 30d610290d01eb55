"""The tables of RULER-style tasks: scores by task, dense first, and paired differences from exact top-k."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.reports.ruler_scores import ANSWERS, RulerScores, ScannerScores
from leadline.reports.table import Table
from leadline.reports.words import NOTHING, number, plural, probability, signed, with_interval
from leadline.ruler.fitting import tolerance


def ruler(found: Sequence[RulerScores]) -> list[Table]:
    """Two tables for every protocol: scores, differences."""
    return [table for scores in found for table in (_scores(scores), _differences(scores))]


def title(scores: RulerScores) -> str:
    """The protocol in a line: "SmolLM2 at 4,096 tokens, k = 128"."""
    protocol = scores.protocol
    return f"{protocol.model} at {protocol.length:,} tokens, k = {protocol.k}, seed {protocol.seed}"


def _scores(scores: RulerScores) -> Table:
    def row(scanner: ScannerScores) -> tuple[str, ...]:
        by_task = {each.task: each.mean for each in scanner.tasks}
        return (
            scanner.label,
            number(scanner.bits, 1),
            with_interval(scanner.overall),
            *(number(by_task[task].mean if task in by_task else None) for task in scores.tasks),
            number(scanner.stopped, 2),
            str(scanner.overall.n),
        )

    protocol = scores.protocol
    notes = [
        "Score: the fraction of gold strings that the answer holds, each as a word of its own, case aside. Overall: "
        "the mean over samples [95% t interval]. Ended: the share of answers that ended their turn within "
        f"{protocol.max_new_tokens} tokens.",
        f"Prompts of {scores.shortest:,} to {scores.longest:,} tokens (asked: {protocol.length:,}, never longer, at "
        f"most {tolerance(protocol.length):,} shorter), {plural(scores.samples, 'sample')} in all. One dense prefill "
        "each; the prompt's last token and every generated one are decoded under the scanner.",
        "The tasks are in the manner of the RULER benchmark and their texts are not its texts: scores compare scanners "
        "here, not models with published RULER scores.",
    ]
    dense = next((each for each in scores.scanners if each.role == "dense"), None)
    if dense is not None and dense.overall.mean < 0.5:
        notes.insert(
            0,
            f"Dense attention itself scores {number(dense.overall.mean)}: the model is weak at these tasks, and a "
            "small difference between scanners says little.",
        )
    if any(len({each.mean.n for each in scanner.tasks}) > 1 for scanner in scores.scanners):
        notes.append("Tasks with more samples weigh more in the overall mean.")
    return Table(
        f"ruler-scores-{scores.number}",
        f"RULER-style scores: {title(scores)}",
        ("scanner", "bits per token", "overall", *scores.tasks, "ended", "samples"),
        tuple(row(scanner) for scanner in scores.scanners),
        notes=tuple(notes),
        queries=(ANSWERS,),
    )


def _differences(scores: RulerScores) -> Table:
    rows = []
    for scanner in scores.scanners:
        d = scanner.difference
        if d is None:
            continue
        interval = f"[{signed(d.low)}, {signed(d.high)}]" if d.low is not None else NOTHING
        rows.append(
            (
                f"{scanner.label} − exact",
                str(d.n),
                f"{number(d.mean)} − {number(d.baseline_mean)}",
                signed(d.difference),
                interval,
                f"{d.wins} / {d.ties} / {d.losses}",
                probability(d.flip.p),
                probability(scanner.holm_p),
                number(d.mde),
            )
        )
    return Table(
        f"ruler-differences-{scores.number}",
        f"Paired differences in RULER-style scores: {title(scores)}",
        (
            "pair", "samples", "means", "difference", "95% t interval", "wins / ties / losses", "p", "Holm p",
            "detectable at 80%",
        ),
        tuple(rows),
        intro="Scanner minus exact top-k over the samples both answered, all tasks together. Higher is better.",
        notes=(
            "p: sign-flip test over samples; Holm p: adjusted over the scanners of the table, dense aside. No interval "
            "where all differences are equal.",
        ),
        queries=(ANSWERS,),
    )  # fmt: skip
