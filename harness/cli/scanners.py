"""`leadline scanners list | new | check`: the scanners there are, a skeleton for another, the contract it must keep."""

from __future__ import annotations

import dataclasses
import json
import keyword
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from leadline.scanners.base import Scanner

app = typer.Typer(no_args_is_help=True)

_LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


@app.command("list")
def list_scanners(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every scanner: options, needs, scan bits, where it comes from; broken plugins with the reason."""
    from leadline.registry import BUILT_IN, names, plugins

    installed = plugins()
    entries = []
    for name in names():
        if name in BUILT_IN:
            origin = "built in"
        else:
            point = installed[name]
            origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        entries.append(_describe(name, origin))
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    for entry in entries:
        print(_text(entry))


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Name of the scanner: lower case, like my_scanner.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(),
) -> None:
    """Write a working scanner file and its test, to change into yours."""
    from leadline.errors import UsageError, explain
    from leadline.registry import names
    from leadline.scanners import skeleton

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            explain("not a name for a scanner", found=name, expected="lower case, digits and _, like my_scanner")
        )
    if name in names():
        raise UsageError(explain("there is a scanner of that name", found=name, do="choose another name"))
    texts = skeleton.files(name)
    for file in texts:
        if (out / file).exists():
            raise UsageError(
                explain("the file exists and is left alone", file=out / file, do="choose another name or --out")
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (out / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            explain("cannot write there", file=out, found=error.strerror, do="name a folder with --out")
        ) from None
    spec = f"{out / name}.py:{skeleton.class_name(name)}"
    print(*(out / file for file in texts), sep="\n")
    print(f"check it:  leadline scanners check {spec}")
    print(f"run it:    leadline replay SESSIONS --scanner {spec}")


@app.command("check")
def check_scanner(
    spec: Annotated[str, typer.Argument(help="name:key=value,..., or path/to/file.py:ClassName:key=value,...")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run the contract suite on a scanner; exit code 1 and the reasons when a clause is broken."""
    from leadline.registry import create
    from leadline.scanners.conformance import check

    scanner = create(spec)
    findings = check(scanner)
    kept = sum(finding.passed for finding in findings)
    passed = kept == len(findings)
    if as_json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"spec": spec, "scanner": scanner.label, "passed": passed, "findings": found}, indent=2))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.name:14}{finding.detail}")
        print(f"{scanner.label}: {kept} of {len(findings)} clauses hold")
    if not passed:
        raise typer.Exit(1)


def _describe(name: str, origin: str) -> dict[str, Any]:
    """One scanner as a record; `broken` says why it cannot be used, None where it can."""
    from leadline.errors import UsageError
    from leadline.registry import load_class

    entry: dict[str, Any] = {"name": name, "origin": origin, "summary": None, "needs": None, "options": []}
    entry |= {"bits_128": None, "bits_64": None, "broken": None}
    try:
        cls = load_class(name)
    except UsageError as error:
        return entry | {"broken": str(error)}
    entry["summary"] = next(iter((cls.__doc__ or "").strip().splitlines()), "")
    entry["options"] = _options(cls)
    try:
        entry |= _numbers(cls())
    except Exception as error:  # a plugin may fail in any way; the others must still be listed
        entry["broken"] = f"does not run with its default options: {type(error).__name__}: {error}"
    return entry


def _numbers(scanner: Scanner) -> dict[str, Any]:
    """What it needs, and its scan bits where every query reads the same number (rows in bf16)."""
    from leadline.scanners.conformance_cases import static_bits

    bits = {f"bits_{d}": None if scanner.kind == "dense" else static_bits(scanner, d) for d in (128, 64)}
    return {"needs": scanner.needs, **bits}


def _options(cls: type[Scanner]) -> list[dict[str, Any]]:
    """Options with defaults and, in words, what they accept."""
    options = []
    for key, schema in cls.model_json_schema().get("properties", {}).items():
        if "enum" in schema:
            accepts = " | ".join(str(value) for value in schema["enum"])
        elif "const" in schema:
            accepts = str(schema["const"])
        else:
            limits = [f"{words} {schema[limit]}" for limit, words in _LIMITS.items() if limit in schema]
            accepts = ", ".join([schema.get("type", "see its documentation"), *limits])
        options.append({"name": key, "default": schema.get("default"), "accepts": accepts})
    return options


def _text(entry: dict[str, Any]) -> str:
    lines = [f"{entry['name']}  ({entry['origin']})"]
    if entry["summary"]:
        lines.append(f"    {entry['summary']}")
    if entry["needs"] is not None:
        bits = [entry["bits_128"], entry["bits_64"]]
        shown = "depend on the query" if None in bits else f"{bits[0]:g} at d = 128, {bits[1]:g} at d = 64"
        shown = "none, no scan" if entry["name"] == "dense" else shown
        needs = {"nothing": "no statistics"}.get(entry["needs"], f"{entry['needs']} statistics")
        lines.append(f"    needs {needs}; scan bits per token: {shown}")
    lines += [f"    {o['name']}={o['default']}  ({o['accepts']})" for o in entry["options"]]
    if entry["broken"]:
        lines.append("    BROKEN: " + entry["broken"].replace("\n", "\n    "))
    return "\n".join(lines)
