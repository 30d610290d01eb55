"""The specification of a run: everything that decides its numbers, frozen and hashed before any work starts.
 `RunSpec` splits in two: the *protocol* (model, view, k, budgets of context and decode, chunks, declared comparisons)
is the identity of a run in a results database; sessions and scanners may be added to a run later without redoing any of
it. Values come from a TOML file, then `LEADLINE_*` environment variables, then flags, each overriding the one before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from leadline.errors import UsageError, explain

DEFAULT_SCANNERS = (
    "exact",
    "dense",
    "fathom:budget=40",
    "fathom:budget=48",
    "fathom:budget=64",
    "fathom:budget=80",
    "fathom:budget=48,basis=rotated",
    "fathom:budget=48,statistics=session",
    "sparq:r=16",
    "sparq:r=32",
    "loki:r=32",
    "double_sparsity:channels=32",
    "thumbnail",
    "landmarks",
    "quest",
    "streaming",
)

PRIMARY_PAIRS = (("fathom:budget=48", "sparq:r=16"), ("fathom:budget=80", "sparq:r=32"))


def declared_pairs(spec: RunSpec, labels: Collection[str]) -> tuple[tuple[str, str], ...]:
    """The declared comparisons of a run whose scanners have these labels, each (scanner, baseline).

    The family as given; else the primary pairs that take part; else every scanner against the baseline.
    """
    if spec.family:
        return tuple(dict.fromkeys(spec.family))
    primary = tuple(pair for pair in PRIMARY_PAIRS if set(pair) <= set(labels))
    rest = tuple((label, spec.baseline) for label in labels if label not in ("exact", "dense", spec.baseline))
    return primary or rest


def default_k(max_context: int) -> int:
    """The selected tokens per query head for a run's longest context: one constant per run (SPEC section 3)."""
    for limit, k in ((4096, 128), (16384, 256), (32768, 512)):
        if max_context <= limit:
            return k
    return 2048


class RunSpec(BaseModel):
    """One run of `leadline replay`.

    `sessions` are paths, or `hf:OWNER/NAME[:SPLIT]` for a data set on the hub; `filters` keep its rows where a column
    has a value (`column=value`); `redact` replaces keys, addresses and home paths before anything is stored.
    `k` counts sinks and local tokens too. `calibration_sha256` is filled in when the calibration is loaded; given, it
    must be that file's. `family` lists the declared comparisons as (scanner label, baseline label); empty means the
    rule of `declared_pairs`. `margin` is the equivalence margin in agreement. `placement` says where stores and rows
    lie while a GPU decodes: both in its memory ("device"), rows on the host ("rows-host"), both there ("host").
    `timed_steps` steps of every branch are timed by stage there (0: none). `checked` poisons buffers and compares their
    guards at every step, which is slow and changes no result. `exclude_degenerate` sets aside branch points where dense
    attention itself is empty or repeats: there is nothing to agree with. `excerpt` characters of each prompt's end are
    stored for the reader of a report (0: nothing of a session but its recorded steps). Sessions of one source form a
    cluster; `clusters` are groups of sources that count as one, of recordings that tell of the same tasks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sessions: Annotated[tuple[str, ...], NoDecode]
    scanners: Annotated[tuple[str, ...], NoDecode] = DEFAULT_SCANNERS
    limit: int | None = Field(default=None, ge=1)
    filters: Annotated[tuple[str, ...], NoDecode] = ()
    redact: bool = False

    model: str = "embedded"
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    rope: str | None = None
    calibration: str | None = None
    calibration_sha256: str | None = None
    view: Literal["condensed", "full"] = "condensed"
    max_context: int = Field(default=8192, ge=256)
    k: int | None = Field(default=None, ge=1)
    sink: int = Field(default=4, ge=0)
    local: int = Field(default=32, ge=0)
    steps: int = Field(default=2, ge=1)
    max_new_tokens: int = Field(default=64, ge=1)
    prefill_chunk: int = Field(default=512, ge=1)
    noise_chunk: int = Field(default=384, ge=0)
    dense_layers: tuple[int, ...] = ()
    placement: Literal["device", "rows-host", "host"] = "device"
    timed_steps: int = Field(default=0, ge=0)
    checked: bool = False
    exclude_degenerate: bool = False
    excerpt: int = Field(default=1200, ge=0)
    baseline: str = "sparq:r=16"
    family: tuple[tuple[str, str], ...] = ()
    margin: float = Field(default=0.05, gt=0, lt=1)
    clusters: tuple[tuple[str, ...], ...] = ()

    @field_validator("sessions", "scanners", "filters", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value  # an environment variable is one text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        k = self.selected
        if k <= self.sink + self.local:
            raise ValueError(f"k={k} must be larger than sink + local = {self.sink + self.local}, which it counts")
        if self.noise_chunk == self.prefill_chunk:
            raise ValueError(f"noise_chunk={self.noise_chunk} must differ from prefill_chunk; 0 runs no noise floor")
        grouped = [source for group in self.clusters for source in group]
        if len(grouped) != len(set(grouped)):
            twice = next(source for source in grouped if grouped.count(source) > 1)
            raise ValueError(f"clusters name the source {twice!r} twice: join the two groups")
        if self.max_context <= self.max_new_tokens:
            raise ValueError(f"max_context={self.max_context} leaves no room for max_new_tokens={self.max_new_tokens}")
        return self

    @property
    def selected(self) -> int:
        """k, or its default for this max_context."""
        return self.k if self.k is not None else default_k(self.max_context)

    def cluster(self, source: str) -> str:
        """The source that a session of this source counts as: the first of its group, else itself."""
        return next((group[0] for group in self.clusters if source in group), source)

    @property
    def protocol(self) -> dict[str, Any]:
        """The part that identifies a run: not its sessions, scanners or limit, nor what changes no result."""
        beside = {"sessions", "scanners", "limit", "calibration", "checked", "excerpt", "clusters"}
        values = self.model_dump(mode="json", exclude=beside)
        values["k"] = self.selected
        # Named only where they are set, so that runs made before these fields existed keep their identity.
        for name in ("placement", "timed_steps", "exclude_degenerate"):
            if values[name] == RunSpec.model_fields[name].default:
                del values[name]
        return values

    @property
    def protocol_sha256(self) -> str:
        text = json.dumps(self.protocol, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def load_spec(flags: dict[str, Any], toml: Path | None = None) -> RunSpec:
    """The spec from a TOML file, `LEADLINE_*` variables and flags, the later overriding the earlier.

    Flags that are None were not given. Raises UsageError naming the field, what was found and what is expected.
    """
    if toml is not None and not toml.is_file():
        raise UsageError(explain("no such configuration file", file=toml, field="--config"))

    class Settings(BaseSettings, RunSpec):
        model_config = SettingsConfigDict(env_prefix="LEADLINE_", frozen=True, extra="forbid", toml_file=toml)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        found = first.get("input") if field else None
        raise UsageError(
            explain(f"the run cannot be set up: {first['msg']}", file=toml, field=field, found=found)
        ) from None
    except ValueError as error:  # tomllib's decode error
        raise UsageError(explain(f"the configuration is not TOML: {error}", file=toml)) from None
    return RunSpec.model_validate(settings.model_dump())
