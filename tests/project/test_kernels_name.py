"""A top-level folder called `kernels` must not be taken for the PyPI package that transformers looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROBE = """
import json, sys
from pathlib import Path
from transformers import LlamaForCausalLM
from transformers.utils.import_utils import is_kernels_available
import leadline.kernels.planes
import kernels

print(json.dumps({
    "path": [str(Path(entry or ".").resolve()) for entry in sys.path],
    "available": is_kernels_available(),
    "model": LlamaForCausalLM.__name__,
    "get_kernel": hasattr(kernels, "get_kernel"),
    "kernels": kernels.__file__,
    "ours": leadline.kernels.__file__,
}))
"""

STAND_IN = """
import enum

class Mode(enum.Flag):
    TRAINING = enum.auto()
    INFERENCE = enum.auto()
    TORCH_COMPILE = enum.auto()
    FALLBACK = enum.auto()

class Device:
    def __init__(self, *args, **kwargs): ...

class CUDAProperties(Device): ...
class LayerRepository(Device): ...
class LocalLayerRepository(Device): ...

def _decorator(*args, **kwargs):
    return lambda decorated: decorated

get_kernel = kernelize = register_kernel_mapping = use_kernel_mapping = _decorator
replace_kernel_forward_from_hub = use_kernel_forward_from_hub = use_kernelized_func = _decorator
"""


def stand_in(folder: Path) -> None:
    """Write what an installed `kernels` looks like, in the version range that transformers accepts."""
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    metadata = folder / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    (metadata / "top_level.txt").write_text("kernels\n")
    (metadata / "RECORD").write_text("kernels/__init__.py,,\n")


def probe(style: str, root: Path, beside: Path, *installed: Path) -> dict[str, Any]:
    """Run the probe so that `root` is on `sys.path` the way `style` puts it there: -c, -m or PYTHONPATH."""
    script = beside / "probe_kernels_name.py"
    script.write_text(textwrap.dedent(PROBE), encoding="utf-8")
    added = [beside, *installed]
    command = {"-c": ["-c", PROBE], "-m": ["-m", script.stem], "PYTHONPATH": [str(script)]}[style]
    if style == "PYTHONPATH":
        added.insert(0, root)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, added)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # Without this the trap is not set and the test would prove nothing.
    assert answer["path"].index(str(root)) < min((answer["path"].index(str(path)) for path in installed), default=99)
    assert Path(answer["ours"]) == root / "kernels" / "__init__.py"
    return answer


@pytest.mark.parametrize("style", ["-c", "PYTHONPATH"])
def test_without_the_other_package(style: str, root: Path, tmp_path: Path) -> None:
    answer = probe(style, root, tmp_path)
    assert not answer["available"]
    assert not answer["get_kernel"]


@pytest.mark.parametrize("style", ["-m", "PYTHONPATH"])
def test_with_the_other_package_installed(style: str, root: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    stand_in(site)
    answer = probe(style, root, tmp_path, site)
    assert answer["available"]
    assert answer["get_kernel"]
    assert Path(answer["kernels"]) == site / "kernels" / "__init__.py"


def test_a_test_run_never_sees_it(root: Path) -> None:
    # `pytest` with importlib mode leaves the root off sys.path; `python -m pytest` would not.
    assert str(root) not in sys.path
    found = getattr(sys.modules.get("kernels"), "__file__", None)  # None also for tests/kernels, a plain folder
    assert found is None or Path(found).parents[1] != root
