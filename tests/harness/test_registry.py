"""Scanners are found by name, by file and by entry point, and what cannot be found is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.errors import UsageError
from leadline.registry import BUILT_IN, create, load_class, names, plugins
from leadline.scanners.fathom import Fathom
from leadline.scanners.skeleton import files


def write(folder: Path, name: str) -> Path:
    """A working scanner file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(files(name)[f"{name}.py"])
    return path


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, entries: str) -> None:
    """A distribution with entry points on the path, as an installer would leave it."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[leadline.scanners]\n{entries}\n")
    monkeypatch.syspath_prepend(folder)


def refused(spec: str) -> str:
    with pytest.raises(UsageError) as caught:
        create(spec)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_built_in_goes_by_its_own_name(name: str) -> None:
    assert create(name).name == name
    assert load_class(name).name == name


def test_options_are_parsed_into_their_types() -> None:
    scanner = create("fathom: budget = 64 , basis=rotated")
    assert scanner == Fathom(budget=64, basis="rotated")
    assert create("fathom:") == Fathom()


@pytest.mark.parametrize(
    ("wrong", "meant"), [("fathmo", "fathom"), ("double-sparsity", "double_sparsity"), ("Quest", "quest")]
)
def test_unknown_names_get_did_you_mean(wrong: str, meant: str) -> None:
    text = refused(wrong)
    assert f"Did you mean {meant}?" in text
    assert "thumbnail" in text, "lists what there is"
    assert "Did you mean" not in refused("zzzzzz")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("fathom:budgte=3", "Did you mean budget?"),
        ("fathom:budget=0", "greater than or equal to 1"),
        ("fathom:budget=many", "valid integer"),
        ("fathom:budget=", "valid integer"),
        ("fathom:budget", "no value"),
        ("fathom:basis=tilted", "'raw', 'rotated' or 'auto'"),
        ("sparq:r=129", "less than or equal to 128"),
        ("landmarks:block=7", "must divide"),
        ("streaming:k=4", "not permitted"),
    ],
)
def test_wrong_options_are_explained(spec: str, said: str) -> None:
    text = refused(spec)
    assert said in text
    assert spec in text


def test_a_scanner_from_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mine")
    assert create(f"{path}:Mine").label == "mine:planes=1"
    assert create(f"{path}:Mine:planes=3").label == "mine:planes=3"
    assert load_class(f"{path}:Mine") is load_class(f"{path}:Mine"), "imported once"


def test_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", "mine"), write(tmp_path / "b", "mine")
    assert load_class(f"{one}:Mine") is not load_class(f"{two}:Mine")


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "Mine", "no such scanner file"),
        ("x = (", "Mine", "SyntaxError"),
        ("import no_such_module_here", "Mine", "no_such_module_here"),
        ("raise RuntimeError('at import')", "Mine", "at import"),
        ("class Mine: pass", "Mine", "not a scanner"),
        ("x = 1", "Mine", "no class 'Mine'"),
        ("x = 1", "x", "not a scanner"),
        ("from leadline.scanners.base import Scanner\nclass Mine(Scanner): pass", "Mine", "has no name"),
        (
            "from typing import ClassVar\nfrom leadline.scanners.base import Scanner\n"
            "class Mine(Scanner):\n    name: ClassVar[str] = 'mine'",
            "Mine",
            "no build, plan, score",
        ),
    ],
)
def test_bad_files_are_explained(text: str | None, name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    found = refused(f"{path}:{name}")
    assert said in found
    assert "bad.py" in found


def test_a_file_without_the_class_says_which_it_has(tmp_path: Path) -> None:
    path = write(tmp_path, "mine")
    found = refused(f"{path}:Mein")
    assert "no class 'Mein'" in found
    assert "Mine" in found.splitlines()[2]
    assert "no class ''" in refused(f"{path}:")


def test_an_entry_point_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "leadline_test_pointed")
    install(tmp_path, monkeypatch, "own-package", "pointed = leadline_test_pointed:LeadlineTestPointed")
    assert "pointed" in names()
    assert create("pointed:planes=2").model_dump() == {"planes": 2}
    assert "Did you mean pointed?" in refused("pionted")


def test_name_clashes_are_qualified_by_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one", "leadline_test_one")
    write(tmp_path / "two", "leadline_test_two")
    ones = "fathom = leadline_test_one:LeadlineTestOne\nshared_name = leadline_test_one:LeadlineTestOne"
    install(tmp_path / "one", monkeypatch, "one-pack", ones)
    install(tmp_path / "two", monkeypatch, "two-pack", "shared_name = leadline_test_two:LeadlineTestTwo")
    assert {"one-pack/fathom", "shared_name", "two-pack/shared_name"} <= set(plugins())
    assert isinstance(create("fathom"), Fathom), "a plugin never takes a built-in's place"
    assert create("one-pack/fathom:planes=4").name == "leadline_test_one"
    assert create("shared_name").name == "leadline_test_one"
    assert create("two-pack/shared_name").name == "leadline_test_two"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module_here:X", "does not import"),
        ("leadline.scanners.base:Index", "not a scanner"),
        ("json:Missing", "Missing"),
    ],
)
def test_broken_entry_points_are_explained(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "torn-package", f"torn = {value}")
    assert said in refused("torn")
    assert create("quest").name == "quest", "the others still work"
