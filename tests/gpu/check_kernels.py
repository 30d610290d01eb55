"""Checks and times every Triton kernel on the GPU: `check_kernels.py [--no-timing] [--small] [--only WORD]`.

Needs torch, triton and numpy. Prints one line a check, then a table of times and rates, and exits 1 if a check failed.
With the environment variable OUT set, the table is also written to $OUT/kernels.json. `--small` checks
small shapes only and times nothing, for compute-sanitizer; `--rehearse` does so through Triton's interpreter, on a
machine without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import kernel_checks
import torch
import triton
from kernel_setup import REHEARSAL, SMALL, Report  # first: it decides whether kernels are interpreted


def main() -> int:
    """Checks, then times; the number of failures decides the exit status."""
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    where = "the interpreter" if REHEARSAL else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, triton {triton.__version__}, {where}", flush=True)
    report = Report()
    checks = {name: check for name, check in vars(kernel_checks).items() if name.startswith("check_") and only in name}
    for check in checks.values():
        check(report)
    print(f"{report.passed} checks passed, {report.failed} failed", flush=True)
    if not SMALL and "--no-timing" not in sys.argv:
        import kernel_timing

        table = kernel_timing.run_all()
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "kernels.json").write_text(json.dumps(table, indent=1))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
