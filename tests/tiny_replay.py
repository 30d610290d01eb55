"""A whole replay in seconds: a random model of four layers, a byte tokenizer with a chat template, hand-made sessions.

Run as a script it is the process that the crash test kills: `tiny_replay.py SESSIONS DATABASE CALIBRATION`.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import tiny_models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import leadline.replaying
from leadline.calibrating import calibrate
from leadline.config import RunSpec
from leadline.engine import Outcome
from leadline.model import LoadedModel, from_network
from leadline.replaying import WHOLE, Part, replay
from leadline.scanners.calibration import save

TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")
SCANNERS = (
    "fathom:budget=48",
    "fathom:budget=48,basis=rotated",
    "fathom:budget=48,statistics=session",
    "sparq:r=16",
    "landmarks",
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*alphabet, *SPECIAL))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", additional_special_tokens=[SPECIAL[0]]
    )
    fast.chat_template = TEMPLATE
    return fast


def model(kind: str = "llama", seed: int = 0) -> LoadedModel:
    """A random model over the byte tokenizer's vocabulary, positions for 4,096 tokens."""
    words = tokenizer()
    network = tiny_models.network(kind, seed, vocab_size=len(words), max_position_embeddings=4096)
    return from_network(network, words, id=f"tiny-{kind}", weights_sha256=f"{seed:064d}")


def _text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("abcdefgh ()=\n_.,") for _ in range(length))


def messages(seed: int, steps: int) -> list[dict[str, Any]]:
    """A chat with `steps` assistant turns, about 200 characters a round."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = [
        {"role": "system", "content": "You fix code."},
        {"role": "user", "content": _text(rng, 260)},
    ]
    for step in range(steps):
        call = {
            "id": f"c{step}",
            "type": "function",
            "function": {"name": "run", "arguments": json.dumps({"command": _text(rng, 12)})},
        }
        found.append({"role": "assistant", "content": _text(rng, 30), "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": f"c{step}", "content": _text(rng, 90)})
    return found


def write_sessions(folder: Path, count: int = 2, steps: int = 6) -> Path:
    """Chat-message records, one file a session."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        record = {"instance_id": f"repo__task-{i}", "messages": messages(i, steps)}
        (folder / f"session-{i}.json").write_text(json.dumps(record))
    return folder


def write_calibration(path: Path, loaded: LoadedModel) -> Path:
    """An artifact for the model, from random text."""
    ids = loaded.tokenizer(_text(random.Random(9), 700), add_special_tokens=False)["input_ids"]
    save(path, *calibrate(loaded, [("noise", ids)], 700, "random text"))
    return path


def spec(sessions: Path, calibration: Path, **changes: Any) -> RunSpec:
    """k = 40 of prompts of 320 tokens and more, 8 new tokens, two branch points a session."""
    values: dict[str, Any] = {
        "sessions": (str(sessions),),
        "scanners": SCANNERS,
        "model": "tiny",
        "calibration": str(calibration),
        "max_context": 1500,
        "k": 40,
        "steps": 2,
        "max_new_tokens": 8,
        "prefill_chunk": 128,
        "noise_chunk": 96,
    }
    return RunSpec.model_validate(values | changes)


def run(wanted: RunSpec, database: Path, loaded: LoadedModel | None = None, part: Part = WHOLE) -> tuple[int, Outcome]:
    """`leadline.replaying.replay` with the tiny model in place of a loaded one."""
    original = leadline.replaying.load_model
    found = loaded or model()
    leadline.replaying.load_model = lambda *_, **__: found
    try:
        return replay(wanted, database, "tiny", part)
    finally:
        leadline.replaying.load_model = original


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    share = Part.parse(sys.argv[4]) if len(sys.argv) > 4 else WHOLE
    run(spec(Path(sys.argv[1]), Path(sys.argv[3])), Path(sys.argv[2]), part=share)
