"""Every kernel compiles for the GPU of the reference figures, on a machine that has none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import compile_kernels
import pytest

from leadline.kernels.jit import jit


@pytest.mark.slow
def test_every_launched_kernel_compiles() -> None:
    script = Path(compile_kernels.__file__)
    environment = os.environ | {"PYTHONPATH": str(script.parent), "PYTHONSAFEPATH": "1"}
    found = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    compiled = {line.split()[0] for line in found.stdout.splitlines()}
    folder = Path(jit.__code__.co_filename).parent
    launched = {
        name for source in folder.glob("*/triton.py") for name in re.findall(r"\b(_[a-z_0-9]+)\[", source.read_text())
    }
    assert compiled == launched
