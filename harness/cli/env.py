"""`leadline env`: the machine and the software, as a run records them."""

from __future__ import annotations

from typing import Annotated

import typer


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="The device to describe; cuda where there is one.")] = None,
) -> None:
    """Print the machine, the software and, with a GPU, its link's measured speed."""
    from leadline.environment import capture, default_device

    environment = capture(device or default_device())
    if as_json:
        print(environment.model_dump_json(indent=2))
        return
    values = environment.model_dump()
    packages = values.pop("packages")
    for name, value in values.items():
        print(f"{name:20} {'-' if value is None else value}")
    for name, version in packages.items():
        print(f"{'package ' + name:20} {version}")
