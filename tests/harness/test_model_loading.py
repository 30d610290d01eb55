"""Loading by reference: what is accepted, what is said of it, and that every refusal is a message, not a traceback."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
import tiny_models
import torch

from leadline.errors import MachineError, UsageError
from leadline.gguf_loader import open_gguf
from leadline.gguf_tokenizer import build_tokenizer
from leadline.model import from_network, load_model
from leadline.model_folder import load_folder, weight_files
from leadline.weights import files_sha256


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny random model in Hugging Face format, in two shards, with a tokenizer."""
    network = tiny_models.network("qwen3")
    file = tiny_gguf.write(tmp_path / "source.gguf", network, "qwen3")
    path = tmp_path / "tiny-model"
    network.save_pretrained(path, max_shard_size="100KB")
    build_tokenizer(open_gguf(file)).save_pretrained(path)
    return path


def edit(folder: Path, **changes: Any) -> None:
    """Change entries of the folder's config.json; None removes."""
    path = folder / "config.json"
    stated = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in stated.items() if value is not None}))


def test_a_sharded_folder_loads_whole(folder: Path) -> None:
    files = weight_files(folder)
    assert len(files) > 1
    network, tokenizer = load_folder(folder, torch.float32, None)
    expected = tiny_models.network("qwen3").state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in network.state_dict().items())
    assert not network.training
    assert network.config._attn_implementation == "sdpa"
    assert tokenizer("hi").input_ids == [4]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert files_sha256(files) == digest == files_sha256(files)


def test_a_changed_file_is_hashed_anew(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert files_sha256([path]) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"other")
    assert files_sha256([path]) == hashlib.sha256(b"other").hexdigest()
    (tmp_path / "cache" / "sha256.json").write_text("[")
    assert files_sha256([path]) == hashlib.sha256(b"other").hexdigest()


def test_a_model_that_cannot_predict_text_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="perplexity"):
        load_model(str(folder), device="cpu")


def test_tensors_that_are_not_finite_are_refused(folder: Path) -> None:
    network = tiny_models.network("qwen3")
    network.model.norm.weight.data.fill_(torch.nan)
    (folder / "model.safetensors.index.json").unlink()
    network.save_pretrained(folder)
    with pytest.raises(UsageError, match="perplexity"):
        load_model(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"model_type": "gemma3"}, "'gemma3'"),
        ({"model_type": None}, "model_type"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "ForSequenceClassification"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized as awq"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"attention_sink_size": 4}, "attention_sink_size"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"hidden_size": 96}, "weights"),
        ({"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}, "tensors missing"),
    ],
)
def test_folders_that_are_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    edit(folder, **changes)
    with pytest.raises(UsageError, match=message) as caught:
        load_model(str(folder), device="cpu")
    assert str(folder) in str(caught.value)


def test_pickled_and_missing_and_damaged_weights_are_refused(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("the pickle was read",))

    shard = weight_files(folder)[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="weights that fit"):
        load_model(str(folder), device="cpu")
    shard.unlink()
    with pytest.raises(UsageError, match=f"no {shard.name}"):
        load_model(str(folder), device="cpu")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UsageError, match="pickled weights are never read"):
        load_model(str(folder), device="cpu")


def test_an_index_cannot_point_outside_the_folder(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(UsageError, match="outside the folder"):
        load_model(str(folder), device="cpu")


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(UsageError, match="tokenizer"):
        load_model(str(folder), device="cpu")


@pytest.mark.parametrize("reference", ["./nowhere", "/no/such/place", "one-word", "a/b/c", "gone/model.gguf"])
def test_references_to_nothing(reference: str) -> None:
    with pytest.raises(UsageError, match="no such model"):
        load_model(reference, device="cpu")


@pytest.mark.parametrize("reference", ["owner/not-in-the-cache", "owner/what is this?"])
def test_a_hub_model_that_cannot_be_had(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UsageError, match="the hub did not give it") as caught:
        load_model(reference, device="cpu")
    assert reference in str(caught.value)


def test_devices_and_precisions() -> None:
    with pytest.raises(UsageError, match="'int4'"):
        load_model(device="cpu", dtype="int4")
    for wrong in ("gpu", "mps", "cpu:x"):
        with pytest.raises(UsageError, match="no such device"):
            load_model(device=wrong)
    with pytest.raises(MachineError, match="no such GPU"):
        load_model(device=f"cuda:{torch.cuda.device_count()}")


@pytest.mark.parametrize(
    "text", ["yarn", "yarn:", "yarn:one", "yarn:1", "yarn:-2", "yarn:inf", "yarn:nan", "ntk:2", ""]
)
def test_bad_rope_settings(text: str) -> None:
    with pytest.raises(UsageError, match="yarn:FACTOR"):
        load_model(device="cpu", rope=text)


@pytest.mark.parametrize("kind", tiny_models.ARCHITECTURES)
def test_yarn_stretches_the_layers_that_see_everything(kind: str, tmp_path: Path) -> None:
    network = tiny_models.network(kind)
    network.save_pretrained(tmp_path / "m")
    build_tokenizer(
        open_gguf(tiny_gguf.write(tmp_path / "t.gguf", tiny_models.network("llama"), "llama"))
    ).save_pretrained(tmp_path / "m")
    stretched, _ = load_folder(tmp_path / "m", torch.float32, 4.0)
    model = from_network(stretched, None, id="tiny", weights_sha256="")
    assert model.shape.max_positions == 2048
    theta = 50000.0 if kind == "gemma3" else 10000.0
    line = f"yarn factor=4 original_max_position_embeddings=512 rope_theta={theta:g}"
    if kind == "gemma3":
        assert model.rope == f"full_attention: {line}; sliding_attention: default rope_theta=1000"
        rotary = network.model.rotary_emb, stretched.model.rotary_emb
        assert torch.equal(*(found.sliding_attention_inv_freq for found in rotary))
        before, after = (found.full_attention_inv_freq for found in rotary)
    else:
        assert model.rope == line
        before, after = (found.model.rotary_emb.inv_freq for found in (network, stretched))
    assert after[0] == before[0], "the fastest pair keeps its frequency"
    assert after[-1] == pytest.approx(before[-1] / 4), "the slowest is divided by the factor"


def test_yarn_on_top_of_another_scaling_is_refused(folder: Path) -> None:
    edit(folder, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(UsageError, match="already scaled"):
        load_model(str(folder), device="cpu", rope="yarn:2")
    original = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
    edit(folder, rope_parameters=original)
    network, _ = load_folder(folder, torch.float32, 8.0)
    assert network.config.max_position_embeddings == 1024
    assert network.config.rope_parameters["original_max_position_embeddings"] == 128


def test_shape_and_stop_tokens_of_a_network() -> None:
    network = tiny_models.network("gemma3", eos_token_id=[7, 3])
    network.generation_config.eos_token_id = 9
    model = from_network(network, None, id="tiny", weights_sha256="abc")
    shape = model.shape
    assert (shape.layers, shape.scanned_layers) == (4, (1, 3))
    assert (shape.query_heads, shape.kv_heads, shape.groups, shape.head_dim) == (6, 2, 3, 16)
    assert (shape.vocabulary, shape.max_positions) == (tiny_models.VOCABULARY, 512)
    assert model.stop_tokens == (3, 7, 9)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert tiny_models.model("qwen2").shape.head_dim == 8


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mistral", {"sliding_window": 64}, "no layer can be scanned"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_networks_that_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_models.model(kind, **changes)
