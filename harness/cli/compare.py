"""`leadline compare`: two runs over the same items, as Markdown for a pull request; exit 4 on a declared regression."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="Results database to compare with; read-only.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Results database to judge; may be the same file.")],
    run_a: Annotated[int | None, typer.Option(help="Run id in A; the one updated last where left out.")] = None,
    run_b: Annotated[int | None, typer.Option(help="Run id in B; the one updated last where left out.")] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC:AMOUNT",
            help="What counts as a regression, repeatable: agreement:0.02, kl_dense:0.01, missing:0, scan_bytes:0%, "
            "row_bytes:1%, index_bytes:0%, gpu_ms:5%, wall_ms:10%, cpu_seconds:10%, or none. "
            "Where left out: agreement at the margin that A's run declared.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output where left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of Markdown.")] = False,
) -> None:
    """Compare run B with run A over the same items: agreement, bytes, time."""
    import json

    from leadline.database import Results
    from leadline.errors import RegressionError, UsageError, explain
    from leadline.reports.compare_markdown import compare_markdown
    from leadline.reports.gates import broken, parse_rules, unanswered
    from leadline.reports.json_report import plain
    from leadline.reports.paired_runs import pair_runs

    with Results.open(before, read_only=True) as a, Results.open(after, read_only=True) as b:
        runs = pair_runs(a, b, run_a, run_b)
    if runs.a.database == runs.b.database and runs.a.run == runs.b.run:
        raise UsageError(
            explain(
                "a run was to be compared with itself",
                file=before,
                found=f"run {runs.a.run} twice",
                do="name two runs of the file with --run-a and --run-b",
            )
        )
    rules = parse_rules(fail or [], runs.a.margin)
    regressions, blind = broken(runs, rules), unanswered(runs, rules)
    if as_json:
        found = {"rules": list(map(str, rules)), "regressions": regressions, "not_judged": blind, **plain(runs)}
        text = json.dumps(found, indent=2, allow_nan=False) + "\n"
    else:
        text = compare_markdown(runs, rules, regressions, blind)
    if out is None:
        print(text, end="")
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                explain("cannot write the comparison", file=out, found=error.strerror, do="name another file")
            ) from None
    if regressions:
        raise RegressionError("declared regression:\n" + "\n".join(f"  {text}" for text in regressions))
