"""Find and load a model in Hugging Face format: a folder, or a hub id through the hub's own cache.

Only safetensors are read, and no code that comes with a model is run. A model that cannot be had (no network, no such
name, no permission) is an error that says so, never a traceback.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from leadline import rope
from leadline.errors import UsageError, explain
from leadline.model_checks import check_config, check_type

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PATTERNS = ["model*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)


def hub_folder(name: str) -> Path:
    """The folder of a hub model's files, downloaded unless they are in the hub's cache already.

    With HF_HUB_OFFLINE set, only the cache is asked. UsageError when the model cannot be had.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            explain(
                "no such model here, and the hub did not give it",
                field="model",
                found=f"{name!r} ({said})",
                expected='"embedded", a folder, a .gguf file, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct',
                do="check the spelling; log in if it is gated; without network use a folder, a .gguf file or embedded",
            )
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, by name. UsageError if there are none, or some are missing."""
    index = folder / _INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise _refuse(folder, _INDEX, f"{type(error).__name__}: {error}", "an index with a weight_map") from error
    else:
        names = [_SINGLE]
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise _refuse(folder, _INDEX, "a file outside the folder", "names of files in the folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        found = f"no {missing[0]}" + (f", but {others[0]} (pickled weights are never read)" if others else "")
        raise _refuse(folder, "weights", found, "weights as safetensors")
    return [folder / name for name in names]


def load_folder(folder: Path, dtype: torch.dtype, factor: float | None) -> tuple[Any, Any]:
    """Network (on the CPU, eval mode, in `dtype`) and tokenizer of a folder; `factor` stretches the positions."""
    _check_stated(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except _UNREADABLE as error:
        raise _refuse(folder, "config.json", f"{type(error).__name__}: {error}", "a model configuration") from error
    check_config(config, folder)
    if factor is not None:
        rope.stretch(config, factor, folder)
    try:
        network, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            attn_implementation="sdpa",
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except _UNREADABLE as error:
        raise _refuse(folder, "weights", f"{type(error).__name__}: {error}", "weights that fit config.json") from error
    absent = sorted(report["missing_keys"]) or sorted(map(str, report["mismatched_keys"]))
    if absent:
        raise _refuse(
            folder, "weights", f"{len(absent)} tensors missing, the first {absent[0]}", "all of the model's tensors"
        )
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        # transformers would make up an empty vocabulary.
        raise _refuse(folder, "tokenizer", "no vocabulary", " or ".join(_VOCABULARIES))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except _UNREADABLE as error:
        raise _refuse(
            folder, "tokenizer", f"{type(error).__name__}: {error}", "tokenizer.json and its settings"
        ) from error
    return network.eval(), tokenizer


def _check_stated(folder: Path) -> None:
    """Judge config.json by its own words first: transformers may know architectures that this program does not."""
    path = folder / "config.json"
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        model_type, classes = stated["model_type"], stated.get("architectures") or []
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _refuse(
            folder, "config.json", f"{type(error).__name__}: {error}", "a JSON object with a model_type"
        ) from error
    check_type(model_type, folder)
    if classes and not any(str(name).endswith("ForCausalLM") for name in classes):
        raise _refuse(folder, "architectures", classes, "a causal language model (...ForCausalLM)")
    if stated.get("quantization_config"):
        kind = dict(stated["quantization_config"]).get("quant_method")
        raise _refuse(folder, "quantization_config", f"weights quantized as {kind}", "weights in fp32, fp16 or bf16")


def _refuse(folder: Path, field: str, found: object, expected: str) -> UsageError:
    do = "give a complete folder in Hugging Face format with safetensors, a .gguf file, or another hub id"
    return UsageError(
        explain("cannot load this model", file=folder, field=field, found=found, expected=expected, do=do)
    )
