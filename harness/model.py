"""Load a language model by reference and say exactly what was loaded: weights, precision, positions, shape.

A reference is "embedded" (a small model that an installed package carries), a folder or hub id in Hugging Face format,
or a `.gguf` file. Whatever it was, the result is an unmodified transformers model in eval mode whose output has been
checked on plain text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import torch
from transformers.utils import logging as transformers_logging

from leadline import rope as positions
from leadline.embedded import FILE, embedded_folder
from leadline.errors import MachineError, UsageError, explain
from leadline.gguf_loader import has_frequency_factors, load_network, open_gguf
from leadline.gguf_tokenizer import build_tokenizer
from leadline.model_checks import check_config, check_output, scanned_layers
from leadline.model_folder import hub_folder, load_folder, weight_files
from leadline.weights import file_sha256, files_sha256

EMBEDDED = "embedded"
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_ANSWER = "leadline"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model. `groups` = query heads per KV head (G); `max_positions` is in tokens, after any stretching."""

    layers: int
    scanned_layers: tuple[int, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    groups: int
    vocabulary: int
    max_positions: int


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what a record must say of it.

    `network` is the transformers module, `tokenizer` its tokenizer with the chat template. `weights_sha256` is taken
    over the weight files as they were given. `rope` describes the positions in one line. `stop_tokens` end a step: the
    model's own end tokens and the template's end of turn, ascending.
    """

    network: Any
    tokenizer: Any
    id: str
    weights_sha256: str
    device: torch.device
    dtype: torch.dtype
    rope: str
    shape: ModelShape
    stop_tokens: tuple[int, ...]


def load_model(
    reference: str = EMBEDDED, *, device: str | None = None, dtype: str | None = None, rope: str | None = None
) -> LoadedModel:
    """Load a model onto `device` (default: a GPU where there is one) in `dtype` (default: fp32 on a CPU, else bf16).

    `rope` is None or "yarn:FACTOR". Everything that is wrong with the arguments or the files is a UsageError, a missing
    device or too little memory a MachineError.
    """
    place = _device(device)
    precision = _dtype(dtype, place)
    factor = None if rope is None else positions.parse(rope)
    factors_in_file = False
    with _no_progress_bars():
        path = Path(reference).expanduser()
        if reference != EMBEDDED and path.is_file():
            file = open_gguf(path)
            factors_in_file = has_frequency_factors(file)
            network = load_network(file, dtype=precision, rope_factor=factor)
            tokenizer, name, digest = build_tokenizer(file), path.stem, file_sha256(path)
        else:
            folder, name, digest = _folder(reference, path)
            network, tokenizer = load_folder(folder, precision, factor)
    network = _move(network, place)
    model = from_network(network, tokenizer, id=name, weights_sha256=digest, frequency_factors=factors_in_file)
    check_output(network, tokenizer, reference)
    return model


def from_network(
    network: Any, tokenizer: Any, *, id: str, weights_sha256: str, frequency_factors: bool = False
) -> LoadedModel:
    """Describe a transformers model that is already built (no check of its output). UsageError if it is not accepted.

    `tokenizer` may be None for work on token ids alone; stop tokens are then the model's own end tokens.
    """
    config = network.config
    check_config(config, id)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    shape = ModelShape(
        layers=config.num_hidden_layers,
        scanned_layers=scanned_layers(config, id),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        groups=heads // kv_heads,
        vocabulary=config.vocab_size,
        max_positions=config.max_position_embeddings,
    )
    parameter = next(network.parameters())
    return LoadedModel(
        network=network.eval(),
        tokenizer=tokenizer,
        id=id,
        weights_sha256=weights_sha256,
        device=parameter.device,
        dtype=parameter.dtype,
        rope=positions.describe(config, frequency_factors),
        shape=shape,
        stop_tokens=_stop_tokens(network, tokenizer),
    )


def end_of_turn(tokenizer: Any) -> int | None:
    """The special token that the chat template writes right after an answer; None where it writes none."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    except (ValueError, TypeError, jinja2.TemplateError):
        return None
    ids: list[int] = tokenizer(text.rpartition(_ANSWER)[2].lstrip(), add_special_tokens=False).input_ids
    added = tokenizer.added_tokens_decoder
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None


def _stop_tokens(network: Any, tokenizer: Any) -> tuple[int, ...]:
    found: set[int] = set()
    for stated in (network.config.eos_token_id, network.generation_config.eos_token_id):
        found |= set(stated) if isinstance(stated, list | tuple) else {stated} - {None}
    if tokenizer is not None and (turn := end_of_turn(tokenizer)) is not None:
        found.add(turn)
    return tuple(sorted(found))


def _folder(reference: str, path: Path) -> tuple[Path, str, str]:
    """Folder, id and weight hash of a reference that is not a file."""
    if reference == EMBEDDED:
        folder, digest = embedded_folder()
        return folder, Path(FILE).stem, digest
    if path.is_dir():
        return path, path.resolve().name, files_sha256(weight_files(path))
    if reference.startswith((".", "/", "~")) or reference.count("/") != 1 or path.suffix == ".gguf":
        raise UsageError(
            explain(
                "no such model",
                field="model",
                found=repr(reference),
                expected='"embedded", an existing folder or .gguf file, or a hub id (OWNER/NAME)',
                do="check the path",
            )
        )
    folder = hub_folder(reference)
    return folder, reference, files_sha256(weight_files(folder))


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            explain("no such device", field="device", found=repr(name), expected="cpu or cuda or cuda:N")
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(explain("no such device", field="device", found=repr(name), expected="cpu or cuda or cuda:N"))
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type == "cuda" and (device.index or 0) >= count:
        do = "use device cpu, or run on a machine with a GPU"
        raise MachineError(explain("no such GPU", field="device", found=f"{count} GPUs", expected=name, do=do))
    return device


def _dtype(name: str | None, device: torch.device) -> torch.dtype:
    if name is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        expected = ", ".join(DTYPES)
        raise UsageError(explain("no such precision", field="dtype", found=repr(name), expected=expected))
    return DTYPES[name]


def _move(network: Any, device: torch.device) -> Any:
    try:
        return network.to(device)
    except torch.OutOfMemoryError as error:
        raise MachineError(
            explain("the model does not fit the GPU's memory", field="device", found=str(error))
        ) from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Progress of a run is shown by one place; transformers' own bars would write over it."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
