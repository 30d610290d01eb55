"""The plane store: prefixes are exact quantizers, streaming changes nothing, the layout is that of SPEC section 1."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leadline.kernels.planes import BLOCK, DEPTH, codes, decode, pack, unpack_bits

_TINY = float(np.finfo(np.float32).tiny)


def mid_rise(block: list[float], t: int) -> list[float]:
    """The t-bit mid-rise quantizer of [-a, a), from its definition, in exact rational arithmetic but for the division.

    `block` holds fp32 values of one channel; a is their fp16 maximum, and the division k / (a / 8) is IEEE fp32.
    """
    largest = max(abs(x) for x in block)
    a = np.float32(np.float16(largest))
    values = []
    for x in block:
        if a == 0 or largest < _TINY:
            code = 8
        else:
            code = min(max(math.floor(float(np.float32(x) / (a / np.float32(8)))), -8), 7) + 8
        if t == 0:
            values.append(0.0)
            continue
        cell = 2 * Fraction(float(a)) / 2**t  # width of a t-bit cell
        values.append(float((Fraction(code >> (DEPTH - t)) + Fraction(1, 2)) * cell - Fraction(float(a))))
    return values


def read(keys: Tensor, t: int, block: int) -> Tensor:
    """Values of a t-plane read of keys `[n, d]`, `[n, d]`."""
    planes, scales = pack(keys.unsqueeze(0), block)
    units = decode(planes, torch.full(planes.shape[:2], t), block)
    return (units.unflatten(-1, (-1, block)) * scales.float().unsqueeze(-1)).flatten(-2)[0].T


def assert_prefixes(values: list[float]) -> None:
    """Every prefix of a block of one channel is the quantizer of its depth."""
    keys = torch.tensor(values, dtype=torch.float32).unsqueeze(-1)
    for t in range(DEPTH + 1):
        expected = torch.tensor(mid_rise([float(x) for x in keys[:, 0]], t), dtype=torch.float64)
        assert torch.equal(read(keys, t, len(values))[:, 0].double(), expected), f"{t} planes"


ordinary = st.floats(-65504, 65504, width=32)
dyadic = st.integers(-64, 64).map(lambda i: i / 8)  # lands on cell boundaries
extreme = st.sampled_from([0.0, -0.0, 1e4, -1e4, 1e-40, -1e-45, _TINY, 5.96e-8, 2.9e-8, 65504.0, -65504.0])


@settings(max_examples=150, deadline=None)
@given(st.lists(ordinary | dyadic | extreme, min_size=1, max_size=BLOCK))
def test_prefix_is_the_mid_rise_quantizer(values: list[float]) -> None:
    assert_prefixes(values)


@settings(max_examples=100, deadline=None)
@given(st.floats(2**-14, 65504, width=16), st.integers(-9, 9))
def test_prefix_at_and_beside_cell_boundaries(a: float, step: int) -> None:
    edge = np.float32(a) * np.float32(step) / np.float32(8)
    beside = [float(np.nextafter(edge, np.float32(side))) for side in (-np.inf, np.inf)]
    assert_prefixes([a, *(x for x in (float(edge), *beside) if abs(x) <= a)])


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * BLOCK,
        [0.0] * 31 + [1e4] + [0.0] * 32,
        [-1e4] + [1e-3] * 63,
        [0.7] * BLOCK,
        [-0.7] * BLOCK,
        [1e-40] * 32 + [-1e-40] * 32,
        [math.ldexp(1, -149)] * BLOCK,
        [1.0, math.nextafter(1.0, 0.0), -1.0, -math.nextafter(1.0, 0.0)] * 16,
        [1.0004, 1.0, -1.0004, 0.99] * 16,  # fp16 rounds the maximum down: keys a hair outside [-a, a)
        [65504.0, -65504.0] * 32,
        [2.9e-8, -2.9e-8] * 32,  # the maximum rounds to fp16 zero
    ],
    ids=lambda values: f"{values[0]:g}..{values[-1]:g}",
)
def test_prefix_of_adversarial_blocks(values: list[float]) -> None:
    assert_prefixes(values)


def test_plus_a_falls_in_the_last_cell_and_minus_a_in_the_first() -> None:
    code, scales = codes(torch.tensor([[2.0], [-2.0], [1.75], [1.7499]]), block=4)
    assert code[:, 0].tolist() == [15, 0, 15, 14]
    assert scales.dtype == torch.float16
    assert scales.item() == 2.0


def test_division_is_ieee() -> None:
    generator = torch.Generator().manual_seed(3)
    keys = torch.randn(BLOCK, 512, generator=generator)
    code, scales = codes(keys)
    cell = scales.float().numpy() / np.float32(8)
    expected = np.clip(np.floor(keys.numpy() / cell), -8, 7) + 8
    assert np.array_equal(code.numpy(), expected.astype(np.uint8))


def test_word_and_bit_layout() -> None:
    """Channel-major, plane 0 the most significant bit, bit i of a word is token i of its block."""
    keys = torch.zeros(2 * BLOCK, 2)
    keys[:, 0] = -1.0  # code 0 everywhere but:
    keys[5, 0] = 0.9  # code 15 at token 5 of block 0
    keys[BLOCK + 63, 0] = 0.3  # floor(2.4) + 8 = 10 = 0b1010 at the last token of block 1
    planes, scales = pack(keys.unsqueeze(0))
    assert planes.shape == (1, 2, DEPTH, 2)
    assert scales.shape == (1, 2, 2)
    sign = -(1 << 63)
    assert planes[0, 0].tolist() == [[1 << 5, sign], [1 << 5, 0], [1 << 5, sign], [1 << 5, 0]]
    assert planes[0, 1].tolist() == [[-1, -1], [0, 0], [0, 0], [0, 0]]  # an all-zero channel is code 8
    assert planes.is_contiguous()
    assert scales.is_contiguous()


def test_four_planes_are_the_code_and_planes_past_the_depth_do_not_matter() -> None:
    keys = torch.randn(3, 2 * BLOCK, 16, generator=torch.Generator().manual_seed(0))
    code, _ = codes(keys)
    planes, _ = pack(keys)
    units = decode(planes, torch.full((3, 16), 4))
    assert torch.equal((units * 8 + 7.5).transpose(-1, -2), code.float())
    depth = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(1))
    spoilt = torch.where(torch.arange(DEPTH) < depth.unsqueeze(-1), 0, -1).unsqueeze(-1) ^ planes
    assert torch.equal(decode(planes, depth), decode(spoilt, depth))


@pytest.mark.parametrize("step", [1, 7, 64, 100])
def test_streaming_equals_quantizing_at_once(step: int) -> None:
    """Tokens arrive `step` at a time; only complete blocks are packed. The words are those of one pass."""
    keys = torch.randn(2, 3 * BLOCK + 17, 8, generator=torch.Generator().manual_seed(step))
    waiting = keys[:, :0]
    parts: list[tuple[Tensor, Tensor]] = []
    for at in range(0, keys.shape[1], step):
        waiting = torch.cat([waiting, keys[:, at : at + step]], 1)
        whole = waiting.shape[1] // BLOCK * BLOCK
        if whole:
            parts.append(pack(waiting[:, :whole]))
            waiting = waiting[:, whole:]
    at_once = pack(keys[:, : 3 * BLOCK])
    for streamed, expected in zip(zip(*parts, strict=True), at_once, strict=True):
        assert torch.equal(torch.cat(streamed, -1), expected)
    assert waiting.shape[1] == 17


@pytest.mark.parametrize(("d", "per_token"), [(128, 68), (64, 34)])
def test_stored_bytes(d: int, per_token: int) -> None:
    planes, scales = pack(torch.randn(2, 5 * BLOCK, d))
    stored = planes.numel() * planes.element_size() + scales.numel() * scales.element_size()
    assert stored == per_token * 5 * BLOCK * 2


@pytest.mark.parametrize("bad", [65520.0, -7e4, math.inf, math.nan])
def test_keys_that_no_scale_holds_are_an_error(bad: float) -> None:
    keys = torch.zeros(BLOCK, 2)
    keys[3, 1] = bad
    with pytest.raises(ValueError, match="65504"):
        pack(keys)


def test_incomplete_blocks_are_an_error() -> None:
    with pytest.raises(ValueError, match="complete blocks of 64"):
        pack(torch.zeros(65, 2))


def test_no_tokens_pack_to_nothing() -> None:
    planes, scales = pack(torch.zeros(2, 0, 8))
    assert planes.shape == (2, 8, 4, 0)
    assert scales.shape == (2, 8, 0)


def test_a_single_word_of_any_stride_unpacks() -> None:
    """A slice of one word keeps the strides of the store it was cut from."""
    words = torch.arange(12).reshape(1, 3, 4)[:, :1, 1:2].transpose(-1, -2)
    assert unpack_bits(words)[0, 0, :4].tolist() == [1, 0, 0, 0]
    assert unpack_bits(torch.arange(6).reshape(2, 3).T[1:2, 1:2])[0, :4].tolist() == [0, 0, 1, 0]
