"""A model without its weights: configuration, tokenizer and the sizes of every tensor, for what is planned, not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from leadline import rope as positions
from leadline.embedded import embedded_gguf
from leadline.errors import UsageError, explain
from leadline.gguf_loader import has_frequency_factors, open_gguf, read_config
from leadline.gguf_tokenizer import build_tokenizer
from leadline.model import DTYPES, EMBEDDED, LoadedModel, from_network
from leadline.model_checks import check_config, check_type

_SMALL_FILES = ["*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError)


def outline(reference: str, *, dtype: str, rope: str | None) -> LoadedModel:
    """The model a reference names, on the meta device: everything but the values of its weights.

    A hub model's small files are downloaded, its weights are not. UsageError as from `load_model`, as far as that can
    be known without reading weights.
    """
    path = Path(reference).expanduser()
    factors = False
    if reference == EMBEDDED or path.is_file():
        file = open_gguf(embedded_gguf() if reference == EMBEDDED else path)
        config, tokenizer, name = read_config(file), build_tokenizer(file), file.path.stem
        factors = has_frequency_factors(file)
    else:
        folder = path if path.is_dir() else _hub_folder(reference)
        config, tokenizer = _folder(folder)
        name = path.resolve().name if path.is_dir() else reference
    check_config(config, reference)
    if rope is not None:
        positions.stretch(config, positions.parse(rope), reference)
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa")
    network.tie_weights()
    return from_network(network, tokenizer, id=name, weights_sha256="", frequency_factors=factors)


def weight_bytes(model: LoadedModel) -> int:
    """Bytes of all weights; tied ones count once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.network.parameters())


def step_weight_bytes(model: LoadedModel) -> int:
    """Bytes of weights a decode step reads: all but an embedding that is not the head too, of which it reads a row."""
    embedding, head = model.network.get_input_embeddings(), model.network.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    table = embedding.weight
    return weight_bytes(model) - (0 if tied else table.numel() * table.element_size())


def _folder(folder: Path) -> tuple[Any, Any]:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        check_type(config.model_type, folder)
        return config, AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except _UNREADABLE as error:
        raise UsageError(
            explain(
                "cannot read this model's configuration and tokenizer",
                file=folder,
                found=f"{type(error).__name__}: {error}",
                expected="config.json and a tokenizer in Hugging Face format",
                do="give a complete folder, a .gguf file, or another hub id",
            )
        ) from error


def _hub_folder(name: str) -> Path:
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or name.endswith(".gguf"):
        raise UsageError(
            explain(
                "no such model",
                field="model",
                found=repr(name),
                expected='"embedded", an existing folder or .gguf file, or a hub id (OWNER/NAME)',
                do="check the path",
            )
        )
    try:
        return Path(snapshot_download(name, allow_patterns=_SMALL_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            explain(
                "no such model here, and the hub did not give its configuration",
                field="model",
                found=f"{name!r} ({said})",
                do="check the spelling; without network use a folder, a .gguf file or embedded",
            )
        ) from error
