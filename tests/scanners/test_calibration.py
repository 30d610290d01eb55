"""Statistics of keys and queries, the basis they give, and the artifact that carries them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.registry import create
from leadline.scanners.calibration import Accumulator, Calibration, Provenance, load, save
from leadline.scanners.statistics import LayerStatistics, of_keys

H, G, D = 2, 3, 8


def draw(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated keys `[H, n, D]` with a mean, and queries `[H G, n, D]`."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(H, D, D, generator=generator)
    keys = torch.randn(H, n, D, generator=generator) @ mix + torch.randn(H, 1, D, generator=generator) * 5
    return keys, torch.randn(H * G, n, D, generator=generator)


def test_statistics_are_those_of_numpy_without_the_first_four_positions() -> None:
    keys, query = draw(200)
    sums = Accumulator()
    for at in range(0, 200, 37):  # chunks of a prefill
        sums.add(query[:, at : at + 37], keys[:, at : at + 37], at)
    found = sums.statistics()
    assert sums.positions == 196
    for h in range(H):
        used = keys[h, 4:].double().numpy()
        np.testing.assert_allclose(found.key_mean[h], used.mean(0), rtol=1e-6)
        np.testing.assert_allclose(found.key_covariance[h], np.cov(used.T, ddof=1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.variance[h], used.var(0, ddof=1), rtol=1e-5)
        heads = query[h * G : (h + 1) * G, 4:].double().numpy()
        assert found.query_moment is not None
        assert found.abs_query is not None
        assert found.abs_key is not None
        np.testing.assert_allclose(
            found.query_moment[h], np.einsum("gni,gnj->ij", heads, heads) / 196, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(found.abs_query[h], np.abs(heads).mean((0, 1)), rtol=1e-6)
        np.testing.assert_allclose(found.abs_key[h], np.abs(used).mean(0), rtol=1e-6)


def test_a_sessions_own_statistics_are_the_same_without_queries() -> None:
    keys, query = draw(100)
    sums = Accumulator()
    sums.add(query, keys, 0)
    calibrated, own = sums.statistics(), of_keys(keys)
    torch.testing.assert_close(own.key_mean, calibrated.key_mean)
    torch.testing.assert_close(own.key_covariance, calibrated.key_covariance)
    assert own.query_moment is None
    with pytest.raises(ValueError, match="at least 6"):
        of_keys(keys[:, :5])


def test_large_means_do_not_drown_small_variances() -> None:
    """The sums are fp64: a channel at 300 +- 0.01 keeps its variance."""
    keys = 300 + 0.01 * torch.randn(1, 5000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = Accumulator()
    sums.add(keys.float().clone(), keys.float(), 0)
    expected = keys.float()[:, 4:].double().var(1)
    torch.testing.assert_close(sums.statistics().variance.double(), expected, rtol=1e-4, atol=0)


def test_the_basis_is_orthonormal_and_ordered_by_score_variance() -> None:
    keys, query = draw(400)
    sums = Accumulator()
    sums.add(query, keys, 0)
    statistics = sums.statistics()
    basis = statistics.basis
    eye = torch.eye(D).expand(H, D, D)
    torch.testing.assert_close(basis.vectors.mT @ basis.vectors, eye, rtol=0, atol=1e-5)
    coordinates = basis.rotate_keys(keys)[:, 4:]
    torch.testing.assert_close(coordinates.var(1), basis.variance, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(coordinates.mean(1), torch.zeros(H, D), rtol=0, atol=1e-4)
    rotated = basis.rotate_query(query[:, 4:].unflatten(0, (H, G)).permute(2, 0, 1, 3))
    score_variance = basis.variance * rotated.square().sum(-2).mean(0)
    assert bool((score_variance.diff(dim=-1) <= 1e-4 * score_variance[..., :1]).all())
    largest = basis.vectors.gather(-2, basis.vectors.abs().argmax(-2, keepdim=True))
    assert bool((largest > 0).all()), "the sign of a vector is fixed"


def test_rotated_scores_differ_from_q_k_by_a_constant_of_the_query() -> None:
    keys, query = draw(300)
    basis = of_keys(keys).basis
    grouped = query.unflatten(0, (H, G))[:, :, :1]  # [H, G, 1, D]
    plain = (grouped[:, :, 0] @ keys.mT).double()
    rotated = (basis.rotate_query(grouped[:, :, 0]) @ basis.rotate_keys(keys).mT).double()
    offset = plain - rotated
    torch.testing.assert_close(offset, offset[..., :1].expand_as(offset), rtol=0, atol=1e-3)


def test_a_scanner_that_needs_queries_says_so() -> None:
    with pytest.raises(ValueError, match="query statistics"):
        create("double_sparsity").calibrate(of_keys(draw(50)[0]))


def artifact(folder: Path) -> tuple[Path, dict[int, LayerStatistics], Provenance]:
    layers = {}
    for layer in (0, 3):
        sums = Accumulator()
        keys, query = draw(60, seed=layer)
        sums.add(query, keys, 0)
        layers[layer] = sums.statistics()
    provenance = Provenance(
        model="tiny",
        weights_sha256="ab" * 32,
        rope=None,
        dtype="float32",
        text="a text",
        text_sha256="cd" * 32,
        length=4096,
        windows=1,
        positions=56,
        layers=(0, 3),
        versions={"torch": torch.__version__},
    )
    path = folder / "made" / "tiny.safetensors"
    save(path, layers, provenance)
    return path, layers, provenance


def test_an_artifact_comes_back_as_it_was(tmp_path: Path) -> None:
    path, layers, provenance = artifact(tmp_path)
    found = load(path)
    assert found.provenance == provenance
    assert set(found.layers) == {0, 3}
    for layer, statistics in layers.items():
        for name in ("key_mean", "key_covariance", "query_moment", "abs_query", "abs_key"):
            assert torch.equal(getattr(found.layers[layer], name), getattr(statistics, name))
    assert Provenance.model_validate_json(path.with_suffix(".json").read_text()) == provenance
    assert {p.name for p in path.parent.iterdir()} == {"tiny.safetensors", "tiny.json"}
    assert load(path).sha256 == found.sha256


def test_an_artifact_of_another_model_is_an_error(tmp_path: Path) -> None:
    found = load(artifact(tmp_path)[0])
    found.check(weights_sha256="ab" * 32, rope=None)
    with pytest.raises(UsageError, match="another model") as caught:
        found.check(weights_sha256="ef" * 32, rope=None)
    assert "leadline calibrate" in str(caught.value)
    with pytest.raises(UsageError, match="rope"):
        found.check(weights_sha256="ab" * 32, rope="yarn:4")


def test_a_length_outside_half_to_double_warns(tmp_path: Path) -> None:
    found: Calibration = load(artifact(tmp_path)[0])
    assert [found.length_warning(n) for n in (2048, 4096, 8192)] == [None] * 3
    for n in (2047, 8193):
        assert "4096" in (found.length_warning(n) or "")


@pytest.mark.parametrize("content", [None, b"", b"not safetensors", b"\x80\x04pickle"])
def test_files_that_are_no_artifact_are_explained(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.safetensors"):
        load(path)


def test_damaged_artifacts_are_explained(tmp_path: Path) -> None:
    path, layers, provenance = artifact(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="not a calibration"):
        load(path)
    layers[3].key_mean[0, 0] = torch.nan
    save(path, layers, provenance)
    with pytest.raises(UsageError, match="broken"):
        load(path)
    save(path, dict.fromkeys((0, 3), layers[0]), provenance.model_copy(update={"format": 3}))
    with pytest.raises(UsageError, match="format: Input should be 1 or 2"):
        load(path)
