"""What a run records of its machine, on this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import leadline.environment as environment
from leadline.cli.env import env
from leadline.errors import MachineError

ROOT = Path(environment.__file__).resolve().parents[1]


def test_the_cpu_environment_holds_what_the_machine_says() -> None:
    found = environment.capture("cpu")
    assert found.packages["torch"] == importlib.metadata.version("torch")
    assert found.cpu_threads == torch.get_num_threads()
    assert 0 < found.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.cpu
    gpu = ("gpu", "gpu_memory_bytes", "driver", "cuda", "pcie_generation", "link_gb_per_second", "gpu_clock_mhz")
    assert [getattr(found, field) for field in gpu] == [None] * len(gpu)


def test_the_command_is_kept_as_typed_without_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/somewhere/bin/leadline", "replay", "my sessions", "--steps", "2"])
    assert environment.command_line() == "leadline replay 'my sessions' --steps 2"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="leadline is not a checkout here")
def test_the_commit_is_the_checkouts_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("LEADLINE_COMMIT", "another")
    assert environment._commit()[0] == head.stdout.strip()
    assert environment._commit()[1] in (True, False)


def test_an_installed_copy_takes_the_commit_from_the_variable_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "leadline" / "environment.py"))
    monkeypatch.delenv("LEADLINE_COMMIT", raising=False)
    assert environment._commit() == (None, None)
    monkeypatch.setenv("LEADLINE_COMMIT", "c0ffee")
    assert environment._commit() == ("c0ffee", None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_said_not_recorded_as_null() -> None:
    with pytest.raises(MachineError, match="no such CUDA device"):
        environment.capture("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_fields_are_filled() -> None:
    found = environment.capture("cuda")
    assert found.gpu == torch.cuda.get_device_name(0)
    assert found.link_gb_per_second is not None
    assert 1 < found.link_gb_per_second < 1000
    assert found.driver
    assert found.pcie_generation


def test_the_command_prints_the_same_as_json_and_as_text() -> None:
    app = typer.Typer()
    app.command()(env)
    captured = environment.capture("cpu").model_dump()
    printed = json.loads(CliRunner().invoke(app, ["--json", "--device", "cpu"], catch_exceptions=False).stdout)
    assert {**printed, "git_dirty": None} == {**captured, "git_dirty": None}
    text = CliRunner().invoke(app, ["--device", "cpu"], catch_exceptions=False).stdout
    assert captured["cpu"] in text
    assert captured["packages"]["torch"] in text
