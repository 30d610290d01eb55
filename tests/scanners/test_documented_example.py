"""The example scanner of the documentation, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leadline.registry import create
from leadline.scanners.conformance import check
from leadline.scanners.conformance_cases import static_bits

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "new-scanner.md"


def example() -> str:
    if not PAGE.is_file():
        pytest.skip("the documentation is not beside these tests")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_the_example_keeps_the_contract_and_reads_what_it_says(tmp_path: Path) -> None:
    text = example()
    assert len(text.splitlines()) <= 25
    path = tmp_path / "strided.py"
    path.write_text(text, encoding="utf-8")
    for options, bits in (("", 256), (":step=4", 512), (":step=200", 16)):
        scanner = create(f"{path}:Strided{options}")
        assert [f"{f.name}: {f.detail}" for f in check(scanner) if not f.passed] == []
        assert static_bits(scanner, 128) == bits


def test_the_readme_shows_the_same_text() -> None:
    text = example()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if "class Strided" not in readme:
        pytest.skip("the README does not show the example")
    assert text in readme
