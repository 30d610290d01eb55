"""The contract every scanner keeps, as importable code: `check(scanner)` runs each clause on small key sets.

`leadline scanners check` prints its findings; the tests run it over every built-in. It needs no test runner. What
cannot be seen from one process on a CPU (work launched on a side stream of a GPU) is not part of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.scanners import conformance_form as form
from leadline.scanners import conformance_isolation as isolation
from leadline.scanners import conformance_storage as storage
from leadline.scanners.base import Scanner
from leadline.scanners.conformance_cases import CASES, Case, Trial, ViolationError

Clause = Callable[[Trial], None]

CLAUSES: dict[str, Clause] = {
    "config": form.config,
    "calibrate": form.calibrate,
    "index": form.index,
    "plan": form.plan,
    "scores": form.scores,
    "bytes": form.nbytes,
    "positions": form.positions,
    "heads": form.heads,
    "reference": form.reference,
    "deterministic": isolation.deterministic,
    "untouched": isolation.untouched,
    "poison-index": isolation.poison_index,
    "poison-keys": isolation.poison_keys,
    "plan-blind": isolation.plan_blind,
    "only-reads": isolation.only_reads,
    "stored": storage.stored,
}


@dataclass(frozen=True)
class Finding:
    """One clause: whether it held on every case, and if not, what was expected and found, and on which keys."""

    name: str
    passed: bool
    detail: str


def check(scanner: Scanner, cases: Sequence[Case] = CASES) -> list[Finding]:
    """Run every clause. Never raises for what the scanner does: an exception of its own is a failed finding."""
    return [_run(name, clause, scanner, cases) for name, clause in CLAUSES.items()]


def describe(name: str) -> str:
    """What a clause demands, one sentence."""
    return (CLAUSES[name].__doc__ or "").strip()


def _run(name: str, clause: Clause, scanner: Scanner, cases: Sequence[Case]) -> Finding:
    for case in cases:
        try:
            clause(Trial(scanner, case))
        except ViolationError as error:
            return Finding(name, False, f"{error} (on {case})")
        except Exception as error:  # a plugin may fail in any way; its author needs the place and the keys
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"raised {type(error).__name__}: {error}, at {where.filename}:{where.lineno} in {where.name}"
            return Finding(name, False, f"{text} (on {case})")
    return Finding(name, True, describe(name))
