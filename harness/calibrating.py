"""Makes a calibration: key and query statistics of a model on text, captured from its attention (SPEC section 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from leadline.attention import dense, forward, hooked
from leadline.errors import UsageError, explain
from leadline.fidelity.window import ids_sha256
from leadline.model import LoadedModel
from leadline.prefill import chunk_ends
from leadline.rows import Rows
from leadline.scanners.calibration import Accumulator, Provenance
from leadline.scanners.statistics import LayerStatistics
from leadline.sessions.directory import discover
from leadline.sessions.render import Renderer
from leadline.sessions.transcript import transcript

CHUNK = 512
_TEXTS = (".md", ".py", ".rst", ".txt")


class _Capture:
    """An attention that is dense and adds every new position's queries and keys to the accumulators."""

    def __init__(self, layers: Sequence[int], depths: bool) -> None:
        self.accumulators = {layer: Accumulator(depths=depths) for layer in layers}

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        first = keys.shape[1] - query.shape[1]
        self.accumulators[layer].add(query, keys[:, first:], first)
        return dense(query, keys, values, scaling)


def windows(
    model: LoadedModel, text: Path, length: int, most: int | None = None, beside: Collection[str] = ()
) -> list[tuple[str, list[int]]]:
    """Token windows of up to `length` tokens, (name, ids): the longest prompt of every session, or text cut up.

    `text` is a directory of sessions, a text file, or a directory of text files (by name, each cut up by itself). A
    session's window is the front of its longest rendered prompt; windows under an eighth of `length` are left out.
    Of windows with the same tokens the first is kept. With `most`, reading stops at that many windows of the full
    length, those whose sha256 is in `beside` not counted.
    """
    if not text.exists():
        raise UsageError(
            explain(
                "no such file or directory",
                field="--text",
                found=text,
                do="give a text file, or a directory of sessions or of text files",
            )
        )
    found = _first(_of_sessions(model, text, length), length, most, beside)
    if not found:
        files = [text] if text.is_file() else sorted(p for p in text.rglob("*") if p.suffix in _TEXTS and p.is_file())
        found = _first(_of_files(model, files, length), length, most, beside)
    kept = [(name, ids) for name, ids in found if len(ids) * 8 >= length]
    if not kept:
        longest = max((len(ids) for _, ids in found), default=0)
        raise UsageError(
            explain(
                "no text to calibrate on",
                field="--text",
                found=f"{text}: {len(found)} texts, the longest of {longest} tokens",
                expected=f"at least one of {-(-length // 8)} tokens",
                do="give longer text or a smaller --length",
            )
        )
    return kept


def calibrate(
    model: LoadedModel, texts: Sequence[tuple[str, Sequence[int]]], length: int, source: str, depths: bool = True
) -> tuple[dict[int, LayerStatistics], Provenance]:
    """Statistics of every scanned layer over the windows, and where they come from.

    Without `depths` the errors of every depth and the bits of water lines are left out.
    """
    layers = model.shape.scanned_layers
    capture = _Capture(layers, depths)
    with hooked(model):
        for _, ids in texts:
            rows = Rows.for_model(model, len(ids))
            tokens = torch.tensor(ids)
            for end in chunk_ends(0, len(ids), CHUNK, ()):
                forward(model, tokens[rows.length : end], rows, attend=capture)
    provenance = Provenance(
        model=model.id,
        weights_sha256=model.weights_sha256,
        rope=model.rope,
        dtype=str(model.dtype).removeprefix("torch."),
        text=source,
        text_sha256=hashlib.sha256(repr([list(ids) for _, ids in texts]).encode()).hexdigest(),
        length=max(len(ids) for _, ids in texts) if texts else length,
        windows=len(texts),
        window_sha256s=tuple(ids_sha256(ids) for _, ids in texts),
        positions=capture.accumulators[layers[0]].positions,
        layers=tuple(layers),
        versions={name: version(name) for name in ("leadline", "torch", "transformers")},
    )
    if not depths:
        return {layer: sums.statistics() for layer, sums in capture.accumulators.items()}, provenance
    return _one_line({layer: sums.statistics() for layer, sums in capture.accumulators.items()}), provenance


def _one_line(layers: dict[int, LayerStatistics]) -> dict[int, LayerStatistics]:
    """Every layer gets the mean over layers of the bits that a water line costs: the line is one for the model."""
    found = [statistics.line_bits for statistics in layers.values() if statistics.line_bits is not None]
    mean = torch.stack(found).mean(0)
    return {layer: replace(statistics, line_bits=mean) for layer, statistics in layers.items()}


def _of_sessions(model: LoadedModel, text: Path, length: int) -> Iterator[tuple[str, list[int]]]:
    sessions = discover(text).sessions
    if not model.tokenizer.chat_template:  # a base model: attention over the same text, without its turns
        for session in sessions:
            ids = model.tokenizer(transcript(session), add_special_tokens=False)["input_ids"]
            yield f"{session.id} as plain text", ids[:length]
        return
    renderer = Renderer(model.tokenizer) if sessions else None
    for session in sessions:
        assert renderer is not None
        points = renderer.render(session).points
        if points:
            longest = max(points, key=lambda point: point.n_tokens)
            yield session.id, longest.prompt_ids[:length].tolist()


def _of_files(model: LoadedModel, files: Sequence[Path], length: int) -> Iterator[tuple[str, list[int]]]:
    for file in files:
        ids = model.tokenizer(_read(file), add_special_tokens=False)["input_ids"]
        yield from ((f"{file.name}[{i}:{i + length}]", ids[i : i + length]) for i in range(0, len(ids), length))


def _first(
    texts: Iterator[tuple[str, list[int]]], length: int, most: int | None, beside: Collection[str]
) -> list[tuple[str, list[int]]]:
    """All of them, or with `most` only those of the full length once there are so many; each text once."""
    found: list[tuple[str, list[int]]] = []
    seen: set[str] = set()
    whole = 0
    for name, ids in texts:
        identity = ids_sha256(ids)
        if identity in seen:
            continue
        seen.add(identity)
        found.append((name, ids))
        whole += len(ids) == length and identity not in beside
        if most is not None and whole == most:
            return [(name, ids) for name, ids in found if len(ids) == length]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(explain("the text cannot be read", file=path, found=error, expected="UTF-8 text")) from None
