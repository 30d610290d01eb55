"""The haystack: plain English sentences from the docstrings of the running Python's standard library.

Nothing is downloaded and nothing depends on anything but the Python version; the sentences' hash is part of a run's
protocol. Modules that the default calibration text takes are left out. Sentences hold no digits, so that every number
in a prompt is one that a task put there. A long haystack repeats them, each time in another order.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from leadline.errors import MachineError, explain
from leadline.fidelity.standard_text import library_files

_SHORTEST, _LONGEST = 40, 200  # characters of a sentence
_FEWEST = 500
_ORDINARY = re.compile(r"[A-Z][A-Za-z ,;:'()\-]+[.]")
_PARAGRAPH = 6  # sentences


@dataclass(frozen=True)
class Filler:
    """Distinct sentences in a fixed order."""

    sentences: tuple[str, ...]

    @cached_property
    def sha256(self) -> str:
        """Hash of all sentences."""
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()

    def take(self, words: int, seed: str) -> list[str]:
        """Sentences of `words` words in all, the last one cut short; of one seed, a longer text begins as a shorter."""
        found: list[str] = []
        left = words
        while left > 0:
            order = list(self.sentences)
            random.Random(f"{seed}/{len(found)}").shuffle(order)
            for sentence in order:
                own = sentence.split()
                if len(own) >= left:
                    return [*found, sentence if len(own) == left else " ".join(own[:left]).rstrip(",;:.") + "."]
                found.append(sentence)
                left -= len(own)
        return found


def standard_library() -> Filler:
    """The sentences of this Python's docstrings. MachineError where the library is installed without its sources."""
    files = library_files("held-out")
    found = tuple(dict.fromkeys(sentence for path in files for sentence in _sentences(path)))
    if len(found) < _FEWEST:
        raise MachineError(
            explain(
                "the standard library's docstrings give no haystack",
                found=f"{len(found)} sentences in {len(files)} modules",
                expected=f"at least {_FEWEST}",
                do="run with a Python that carries the sources of its standard library",
            )
        )
    return Filler(found)


def prose(sentences: list[str]) -> str:
    """Sentences as paragraphs, one a line."""
    return "\n".join(" ".join(sentences[i : i + _PARAGRAPH]) for i in range(0, len(sentences), _PARAGRAPH))


def _sentences(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(ast.get_docstring(node, clean=False) or "")):
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                if _SHORTEST <= len(sentence) <= _LONGEST and _ORDINARY.fullmatch(sentence):
                    yield sentence
