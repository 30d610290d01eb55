"""Every command of `leadline` explains itself, keeps its options few, and is named in the README or in docs/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from leadline.cli import app

MOST_OPTIONS = 16  # the rest belongs in the TOML file


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The commands below this one, each with the words that call it (typer brings its own click, hence no class)."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(words), command
        return
    for name in sorted(below):
        yield from walk(below[name], (*words, name))


def options(command: Any) -> list[Any]:
    """What is given as `--name`, `--help` aside."""
    return [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]


COMMANDS = dict(walk(typer.main.get_command(app), ("leadline",)))


def test_the_walk_finds_commands_and_options() -> None:
    assert {"leadline replay", "leadline resume", "leadline calibrate", "leadline sessions list"} <= set(COMMANDS)
    assert "--json" in {name for option in options(COMMANDS["leadline sessions list"]) for name in option.opts}


@pytest.mark.parametrize("words", COMMANDS)
def test_it_explains_itself(words: str) -> None:
    assert (COMMANDS[words].help or "").strip(), "no help text"
    assert [option.opts[0] for option in options(COMMANDS[words]) if not (option.help or "").strip()] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_its_options_are_few(words: str) -> None:
    names = [option.opts[0] for option in options(COMMANDS[words])]
    assert len(names) <= MOST_OPTIONS, names


@pytest.mark.parametrize("words", COMMANDS)
def test_it_is_documented(words: str, root: Path) -> None:
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    assert any(words in page.read_text(encoding="utf-8") for page in pages), f"`{words}` is in none of the pages"
