"""`leadline bench decode` as a user meets it: errors without a GPU, and with a timer's figures in its place, output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decode_times import STEPS, decode_time
from typer.testing import CliRunner

import leadline.bench.decode
import leadline.environment
from leadline.bench.records import DecodeSpec, DecodeTime
from leadline.bench.storage import load
from leadline.cli import app
from leadline.cli.bench import parse_contexts
from leadline.database import Results
from leadline.errors import MachineError, UsageError
from reports import factory

MACHINE = factory.environment(gpu="NVIDIA H200", pcie_generation=5, pcie_width=16, link_gb_per_second=55.0)


def bench(*arguments: str) -> str:
    """Standard output of the command; what goes wrong is raised."""
    ran = CliRunner().invoke(app, ["bench", "decode", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DecodeSpec]:
    """Everything but the timing is the command's own; the specs it asks to time."""
    specs: list[DecodeSpec] = []

    def run(spec: DecodeSpec, say: Any) -> Iterator[list[DecodeTime]]:
        specs.append(spec)
        for context in spec.contexts:
            say(f"timing {context}")
            yield [decode_time(label, context) for label in spec.scanners if label in STEPS]

    monkeypatch.setattr(leadline.bench.decode, "run", run)
    monkeypatch.setattr(leadline.bench.decode, "require_gpu", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(leadline.environment, "capture", lambda device: MACHINE)
    return specs


def test_without_a_gpu_it_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    db = tmp_path / "results.sqlite"
    with pytest.raises(MachineError, match=r"found: +no CUDA device[\s\S]*NVIDIA GPU") as caught:
        bench("--db", str(db))
    assert caught.value.exit_code == 3
    assert not db.exists()


def test_the_tables_name_the_machine_and_the_published_one(asked: list[DecodeSpec]) -> None:
    out = bench("--context", "128k,1M")
    assert asked[0].contexts == (1 << 17, 1 << 20)
    assert (asked[0].shape, asked[0].placement, asked[0].k, asked[0].batch) == ("qwen3-8b", "host", 512, 1)
    assert "qwen3-8b, 1M tokens x 1, host, fused, k = 512: decode step on NVIDIA H200, PCIe 5 x16" in out
    assert "copy 55.0 and 56.0 GB/s" in out
    assert "GPU ms (cupti)" in out
    assert "scan (fused)" in out
    line = next(line for line in out.splitlines() if line.startswith("thumbnail "))
    assert "200.000" in line
    assert "4.00" in line
    published = out[out.index("Published figures beside ours") :]
    assert "A100, PCIe 4" in published
    row = next(line for line in published.splitlines() if "landmarks" in line and "GPU time" in line)
    assert "2.5" in row
    assert "3.50" in row
    assert "rows of 8 and indexes of 36 of 36 layers are stored" in " ".join(out.split()).lower()


def test_json_is_one_document_and_the_file_the_same(asked: list[DecodeSpec], tmp_path: Path) -> None:
    target = tmp_path / "decode.json"
    printed = json.loads(bench("--context", "1M", "--scanner", "fathom:budget=48", "--scanner", "landmarks",
                               "--json", "--out", str(target)))  # fmt: skip
    assert printed == json.loads(target.read_text())
    assert printed["environment"]["gpu"] == "NVIDIA H200"
    assert printed["spec"]["scanners"] == ["fathom:budget=48", "landmarks"]
    assert [time["label"] for time in printed["times"]] == ["fathom:budget=48", "landmarks"]
    assert printed["ratios"][1]["gpu_ratio"] == 3.5
    assert {row["published"] for row in printed["beside_published"] if row["label"] == "landmarks"} == {2.5, 2.07}
    assert [DecodeTime.model_validate(time) for time in printed["times"]] == [
        decode_time(label) for label in ("fathom:budget=48", "landmarks")
    ]


def test_figures_go_to_the_database_context_by_context(asked: list[DecodeSpec], tmp_path: Path) -> None:
    db = tmp_path / "results.sqlite"
    bench("--context", "128k,256k", "--scanner", "sparq:r=16", "--db", str(db), "--batch", "2", "--seed", "3")
    assert (asked[0].batch, asked[0].seed) == (2, 3)
    bench("--context", "1M", "--scanner", "sparq:r=16", "--db", str(db))
    with Results.open(db, read_only=True) as results:
        assert [(number, time.context) for number, time in load(results)] == [(1, 1 << 17), (1, 1 << 18), (2, 1 << 20)]
        measured = results.query("SELECT kind, gpu, ended, command FROM measurement")
        assert [(row["kind"], row["gpu"]) for row in measured] == [("decode", "NVIDIA H200")] * 2
        assert all(row["ended"] and row["command"].startswith("leadline") for row in measured)


def test_what_was_timed_before_a_failure_is_kept(
    asked: list[DecodeSpec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(spec: DecodeSpec, say: Any) -> Iterator[list[DecodeTime]]:
        yield [decode_time(context=1 << 17)]
        raise MachineError("out of memory")

    monkeypatch.setattr(leadline.bench.decode, "run", run)
    db, out = tmp_path / "results.sqlite", tmp_path / "decode.json"
    with pytest.raises(MachineError, match="out of memory"):
        bench("--db", str(db), "--out", str(out))
    with Results.open(db, read_only=True) as results:
        assert len(load(results)) == 1
        assert results.query("SELECT ended FROM measurement") == [{"ended": None}]
    assert len(json.loads(out.read_text())["times"]) == 1


@pytest.mark.parametrize(
    ("text", "expected"), [("128k,1M", (131072, 1048576)), ("4096", (4096,)), (" 1m , 1M ", (1048576,))]
)
def test_contexts_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert parse_contexts(text) == expected


@pytest.mark.parametrize("text", ["", "k", "12q", "-1k", "1.5M", "0", "128kk", "٣k", "1M,,2M"])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a context length"):
        parse_contexts(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape", "qwen3"), r"Did you mean qwen3-8b\?"),
        (("--scanner", "fathim"), r"Did you mean fathom\?"),
        (("--scanner", "dense"), "every row at every step"),
        (("--context", "512"), "selects every token"),
        (("--k", "20"), "nothing to select"),
        (("--out", "no/such/folder/x.json"), "no such directory"),
    ],
)
def test_wrong_options_are_explained(asked: list[DecodeSpec], arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bench(*arguments)
    assert asked == []
