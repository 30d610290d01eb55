"""The report as JSON: the same figures as numbers, not as the text of table cells.

Single steps and their texts, which would be most of the file, are left to `leadline export`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import BaseModel

from leadline.reports.contents import Contents
from leadline.reports.summary import summary


def report_json(contents: Contents) -> str:
    """The figures of one run as a JSON document; its keys are the field names of `Contents`."""
    figures = {name: value for name, value in plain(contents).items() if name not in ("steps", "texts")}
    return json.dumps({"summary": summary(contents), **figures}, indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Dataclasses and records as dicts, tuples as lists, all else as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
