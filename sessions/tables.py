"""Rows of a data set as documents: Parquet and Arrow files on disk, and data sets of the Hugging Face hub, streamed.

`datasets` does the reading, one row at a time. A filter keeps the rows whose column has a value, as text: `resolved=1`
keeps 1, 1.0, true and "1".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leadline.errors import UsageError, explain

from .files import UnreadableError

HUB = "hf:"
_PARQUET = b"PAR1"
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")

Filters = Mapping[str, str]


def table_kind(head: bytes, name: str) -> str | None:
    """The `datasets` builder for a file that starts with `head`; None when it is no table."""
    if head.startswith(_PARQUET):
        return "parquet"
    return "arrow" if head.startswith(_ARROW) and (name.endswith(".arrow") or head.startswith(_ARROW[0])) else None


def file_rows(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Every row of a Parquet or Arrow file; raises `UnreadableError` with the reason where one cannot be read."""
    import datasets

    loud = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it would print what is raised, too
    try:
        rows = datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
        yield from rows
    except Exception as error:  # the library raises whatever its parts raise
        raise UnreadableError(f"broken {kind} file: {_reason(error)}") from None
    finally:
        datasets.logging.set_verbosity(loud)


def hub_rows(reference: str) -> Iterator[dict[str, Any]]:
    """Every row of a hub data set, `hf:OWNER/NAME` or `hf:OWNER/NAME:SPLIT` (default: train).

    A data set that cannot be reached or has no such split is a UsageError.
    """
    name, _, split = reference.removeprefix(HUB).strip("/").partition(":")
    import datasets

    try:
        yield from datasets.load_dataset(name, split=split or "train", streaming=True)
    except Exception as error:
        raise UsageError(
            explain(
                "the data set cannot be read",
                field="sessions",
                found=f"{reference}: {_reason(error)}",
                expected="hf:OWNER/NAME or hf:OWNER/NAME:SPLIT",
                do="check the name and the split, or give a downloaded Parquet file",
            )
        ) from error


def parse_filters(texts: list[str]) -> dict[str, str]:
    """`column=value` texts as a mapping; a UsageError for any other form."""
    filters = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise UsageError(explain("not a filter", field="--filter", found=text, expected="column=value"))
        filters[column] = value
    return filters


def keeps(row: Mapping[str, Any], filters: Filters) -> bool:
    """Whether a row has the value of every filter."""
    return all(column in row and _equal(row[column], value) for column, value in filters.items())


def _equal(value: object, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return text.lower() in (("true", "1") if value else ("false", "0"))
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except (ValueError, OverflowError):
            return False
    try:
        return json.dumps(value) == text
    except (TypeError, ValueError, RecursionError):
        return False


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
