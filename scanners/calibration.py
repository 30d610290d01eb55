"""The calibration artifact: statistics of a model's keys and queries on some text, with their provenance (SPEC section
2).
 A safetensors file whose header carries the provenance as JSON, and the same JSON beside it for people. Nothing in it
is executable. An artifact belongs to one model (its weight hash) and one RoPE setting; using it elsewhere is an error,
using it far from its length a warning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leadline.errors import UsageError, explain
from leadline.scanners.decisions import Decisions
from leadline.scanners.depth_statistics import DepthMoments
from leadline.scanners.statistics import LayerStatistics

FORMAT: Final = 2  # 1 had neither the optional tensors nor decisions; it is still read
_TENSORS = ("key_mean", "key_covariance", "query_moment", "abs_query", "abs_key")
_OPTIONAL = ("depth_error", "line_bits")


class Provenance(BaseModel):
    """Where a calibration comes from, and what was decided with it.

    `length`: tokens of a window; `positions`: tokens that entered in all. `decisions`: None where nothing was decided.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1, 2] = FORMAT  # another format is refused, never misread
    model: str
    weights_sha256: str
    rope: str | None
    dtype: str
    text: str
    text_sha256: str
    length: int
    windows: int
    window_sha256s: tuple[str, ...] = ()
    positions: int
    layers: tuple[int, ...]
    versions: dict[str, str]
    decisions: Decisions | None = None


@dataclass(frozen=True)
class Calibration:
    """A loaded artifact: statistics by layer, provenance, and the hash of the file."""

    layers: dict[int, LayerStatistics]
    provenance: Provenance
    sha256: str
    path: Path

    def check(self, *, weights_sha256: str, rope: str | None) -> None:
        """Raise UsageError unless the artifact was made with these weights and this RoPE setting."""
        for name, found, expected in (
            ("weights_sha256", self.provenance.weights_sha256, weights_sha256),
            ("rope", self.provenance.rope, rope),
        ):
            if found != expected:
                raise UsageError(
                    explain(
                        "the calibration belongs to another model or RoPE setting",
                        file=self.path,
                        field=name,
                        found=found,
                        expected=expected,
                        do="make one for this model with `leadline calibrate`",
                    )
                )

    def on(self, device: torch.device | str) -> dict[int, LayerStatistics]:
        """The statistics by layer, on a device."""
        return {layer: statistics.to(device) for layer, statistics in self.layers.items()}

    def made_on(self, name: str) -> bool:
        """Whether a text of this name went into it. Names are kept with the decisions: False where none were made."""
        decided = self.provenance.decisions
        return decided is not None and name in (*decided.fitted_on, *decided.held_out)

    def length_warning(self, tokens: int) -> str | None:
        """A warning when contexts of `tokens` lie outside 0.5x..2x of the calibrated length."""
        length = self.provenance.length
        if 0.5 * length <= tokens <= 2 * length:
            return None
        return f"calibrated at {length} tokens, used at {tokens}: low-frequency RoPE channels vary with length"


class Accumulator:
    """Sums of one layer over windows, in fp64; positions before `skip` of each window are left out.

    `depths` adds what plans by measured errors need (`depth_statistics`).
    """

    def __init__(self, skip: int = 4, depths: bool = True) -> None:
        self._skip = skip
        self._count = 0
        self._sums: dict[str, Tensor] = {}
        self._depths = DepthMoments(skip) if depths else None

    def add(self, query: Tensor, keys: Tensor, first: int) -> None:
        """Add new positions: query `[Hq, T, d]`, their keys `[H, T, d]`, the first of them at position `first`."""
        if self._depths is not None:
            self._depths.add(query, keys, first)
        drop = max(0, self._skip - first)
        k = keys[:, drop:].to(torch.float64)
        q = query[:, drop:].to(torch.float64).unflatten(0, (keys.shape[0], -1)).flatten(1, 2)  # [H, G*T, d]
        if not k.shape[1]:
            return
        self._count += k.shape[1]
        group = q.shape[1] // k.shape[1]
        for name, value in (
            ("key", k.sum(1)),
            ("key_outer", k.transpose(-1, -2) @ k),
            ("query_outer", q.transpose(-1, -2) @ q),
            ("abs_query", q.abs().sum(1) / group),
            ("abs_key", k.abs().sum(1)),
        ):
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    @property
    def positions(self) -> int:
        """Positions added so far."""
        return self._count

    def statistics(self) -> LayerStatistics:
        """The layer's statistics, fp32 on the CPU."""
        n = self._count
        mean = self._sums["key"] / n
        covariance = (self._sums["key_outer"] - n * mean.unsqueeze(-1) * mean.unsqueeze(-2)) / (n - 1)
        found = LayerStatistics(
            key_mean=_plain(mean),
            key_covariance=_plain(covariance),
            query_moment=_plain(self._sums["query_outer"] / n),
            abs_query=_plain(self._sums["abs_query"] / n),
            abs_key=_plain(self._sums["abs_key"] / n),
        )
        if self._depths is None:
            return found
        return replace(found, depth_error=self._depths.depth_error(), line_bits=self._depths.line_bits(found.variance))


def _plain(sums: Tensor) -> Tensor:
    return sums.to("cpu", torch.float32)


def save(path: Path, layers: dict[int, LayerStatistics], provenance: Provenance) -> None:
    """Write the artifact and its JSON; both appear whole or not at all."""
    held = [name for name in _OPTIONAL if all(getattr(layers[n], name) is not None for n in provenance.layers)]
    tensors = {
        name: torch.stack([getattr(layers[n], name) for n in provenance.layers]).contiguous()
        for name in (*_TENSORS, *held)
    }
    text = provenance.model_dump_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata={"leadline": text})
    partial.chmod(0o644)  # save_file makes it private
    partial.replace(path)
    path.with_suffix(".json").write_text(_for_people(json.loads(text)) + "\n")


def load(path: Path) -> Calibration:
    """Read an artifact, onto the CPU. UsageError for a missing, foreign or broken file."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with safe_open(path, framework="pt", device="cpu") as file:
            provenance = Provenance.model_validate_json((file.metadata() or {}).get("leadline", "null"))
            held = [name for name in _OPTIONAL if name in set(file.keys())]
            tensors = {name: file.get_tensor(name) for name in (*_TENSORS, *held)}
    except (OSError, SafetensorError, ValidationError) as error:
        raise UsageError(
            explain(
                f"not a calibration: {type(error).__name__}",
                file=path,
                found=_reason(error),
                expected=f"a safetensors file of `leadline calibrate`, format {FORMAT}",
                do="make it again with `leadline calibrate`",
            )
        ) from None
    _check_shapes(path, provenance.layers, tensors)
    decided = provenance.decisions
    layers = {
        n: LayerStatistics(
            **{name: tensor[i] for name, tensor in tensors.items()},
            basis_choice=decided.basis.choice if decided else None,
            layer_budgets=decided.budgets_of(n) if decided else {},
        )
        for i, n in enumerate(provenance.layers)
    }
    return Calibration(layers, provenance, digest, path)


def _for_people(values: object) -> str:
    """Indented JSON with every list of plain values on one line."""
    text = json.dumps(values, indent=2)
    return re.sub(r"\[([^\[\]{}]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def _reason(error: Exception) -> str:
    """The first thing wrong, on one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'no provenance'}: {first['msg']}"
    return str(error).splitlines()[0]


def _check_shapes(path: Path, layers: Sequence[int], tensors: dict[str, Tensor]) -> None:
    expected = tensors["key_mean"].shape
    for name, tensor in tensors.items():
        shared = expected if name != "line_bits" else expected[:1]
        if (
            tensor.shape[: len(shared)] != shared
            or tensor.shape[0] != len(layers)
            or not bool(torch.isfinite(tensor).all())
        ):
            raise UsageError(
                explain(
                    "the calibration is broken",
                    file=path,
                    field=name,
                    found=tuple(tensor.shape),
                    expected=f"finite, {tuple(shared)}",
                )
            )
