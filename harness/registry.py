"""Finds scanners by name: built-ins, entry points in group `leadline.scanners`, and single files
`path/to/file.py:Name`.

A spec is `name`, or `name:key=value,key=value`; for a file, `path/to/file.py:Name` or `path/to/file.py:Name:key=value`.
Classes are imported only when asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from leadline.errors import UsageError, explain
from leadline.scanners.base import Scanner

GROUP = "leadline.scanners"

BUILT_IN = {
    "exact": "leadline.scanners.oracle:Exact",
    "dense": "leadline.scanners.oracle:Dense",
    "streaming": "leadline.scanners.oracle:Streaming",
    "fathom": "leadline.scanners.fathom:Fathom",
    "fathom_global": "leadline.scanners.fathom_global:FathomGlobal",
    "fathom_measured": "leadline.scanners.fathom_measured:FathomMeasured",
    "landmark_fathom": "leadline.scanners.landmark_fathom:LandmarkFathom",
    "sparq": "leadline.scanners.sparq:Sparq",
    "loki": "leadline.scanners.loki:Loki",
    "double_sparsity": "leadline.scanners.double_sparsity:DoubleSparsity",
    "thumbnail": "leadline.scanners.uniform:Thumbnail",
    "full4": "leadline.scanners.uniform:Full4",
    "landmarks": "leadline.scanners.landmarks:Landmarks",
    "quest": "leadline.scanners.quest:Quest",
}


def plugins() -> dict[str, EntryPoint]:
    """Installed entry points by name; a name that a built-in or another package holds is qualified `package/name`."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.dist.name if e.dist else "")):
        clash = entry.name in BUILT_IN or entry.name in found
        found[f"{entry.dist.name}/{entry.name}" if clash and entry.dist else entry.name] = entry
    return found


def names() -> list[str]:
    """Every name `create` knows, built-ins first."""
    return [*BUILT_IN, *plugins()]


def create(spec: str) -> Scanner:
    """Make the scanner a spec describes. Raises UsageError for an unknown name or option, with what was meant."""
    cls, options, shown = _resolve(spec)
    try:
        return cls(**_parse_options(options, spec))
    except ValidationError as error:
        fields = ", ".join(f"{k}={f.default!r}" for k, f in cls.model_fields.items()) or "none"
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"]) or None
        near = difflib.get_close_matches(option or "", list(cls.model_fields), n=1)
        hint = f" Did you mean {near[0]}?" if near and option not in cls.model_fields else ""
        raise UsageError(
            explain(
                f"scanner {shown}: {first['msg']}.{hint}",
                field=option,
                found=spec,
                expected=f"options {fields}",
                do="correct the spec",
            )
        ) from None


def load_class(name: str) -> type[Scanner]:
    """The class behind a name or `path/to/file.py:Name`."""
    return _resolve(name)[0]


def _resolve(spec: str) -> tuple[type[Scanner], str, str]:
    if ".py:" in spec:
        path, _, rest = spec.partition(".py:")
        class_name, _, options = rest.partition(":")
        return _from_file(Path(path + ".py"), class_name), options, f"{path}.py:{class_name}"
    name, _, options = spec.partition(":")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(module), attribute), options, name
    installed = plugins()
    if name in installed:
        try:
            loaded = installed[name].load()
        except Exception as error:  # a plugin's import can fail in any way; the user must see which plugin and why
            raise UsageError(
                explain(f"plugin {name} does not import: {type(error).__name__}: {error}", found=installed[name].value)
            ) from error
        return _checked(loaded, name), options, name
    near = difflib.get_close_matches(name, names(), n=1)
    raise UsageError(
        explain(
            f"there is no scanner {name!r}." + (f" Did you mean {near[0]}?" if near else ""),
            found=spec,
            expected=", ".join(names()) + ", or path/to/file.py:Name",
            do="run `leadline scanners list`",
        )
    )


def _from_file(path: Path, class_name: str) -> type[Scanner]:
    if not path.is_file():
        raise UsageError(explain("no such scanner file", file=path, do="give path/to/file.py:ClassName"))
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    module_name = f"leadline_plugin_{path.stem}_{key}"
    if module_name not in sys.modules:
        location = importlib.util.spec_from_file_location(module_name, path)
        assert location is not None
        assert location.loader is not None
        module = importlib.util.module_from_spec(location)
        sys.modules[module_name] = module
        try:
            location.loader.exec_module(module)
        except Exception as error:  # any error of the user's file is reported as theirs
            del sys.modules[module_name]
            raise UsageError(
                explain(f"the scanner file does not import: {type(error).__name__}: {error}", file=path)
            ) from error
    module = sys.modules[module_name]
    found = getattr(module, class_name, None)
    if found is None:
        offered = [
            n
            for n, v in vars(module).items()
            if isinstance(v, type) and issubclass(v, Scanner) and v.__module__ == module_name
        ]
        raise UsageError(
            explain(
                f"no class {class_name!r} there",
                file=path,
                found=", ".join(offered) or "no scanner",
                do="name one of these",
            )
        )
    return _checked(found, f"{path}:{class_name}")


def _checked(found: Any, shown: str) -> type[Scanner]:
    if not (isinstance(found, type) and issubclass(found, Scanner)):
        raise UsageError(
            explain(
                f"{shown} is not a scanner", found=repr(found), expected="a subclass of leadline.scanners.base.Scanner"
            )
        )
    if not isinstance(getattr(found, "name", None), str):
        raise UsageError(explain(f"{shown} has no name", expected='name: ClassVar[str] = "..."'))
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise UsageError(
            explain(f"{shown} lacks methods", found=f"no {', '.join(missing)}", expected="build, plan and score")
        )
    return found


def _parse_options(text: str, spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(explain(f"option {part!r} has no value", found=spec, expected="name:key=value,key=value"))
        options[key.strip()] = value.strip()
    return options
