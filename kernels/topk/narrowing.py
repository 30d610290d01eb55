"""How top-k finds a line among scores, in Triton: keys in the order of the floats, and their range cut in four."""

from __future__ import annotations

import triton.language as tl

from leadline.kernels.jit import jit


@jit
def key_of(score: tl.tensor) -> tl.tensor:
    """int32 in the order of the floats, -0 equal to 0, NaN above all."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(score == score, key, 0x7FFFFFFF)


@jit
def quarters(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Three lines that divide low + 1 .. high, ascending, none above high."""
    step = (high - low + 3) // 4
    first = low + step
    second = tl.minimum(first + step, high)
    return first, second, tl.minimum(second + step, high)


@jit
def reaching(key: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor) -> tl.tensor:
    """How many keys reach each of three lines, by one sum (fewer than 2^20 keys)."""
    one = (key >= first.to(tl.int32)).to(tl.int64)
    two = (key >= second.to(tl.int32)).to(tl.int64)
    packed = tl.sum(one + (two << 20) + ((key >= third.to(tl.int32)).to(tl.int64) << 40))
    return (packed & 0xFFFFF).to(tl.int32), ((packed >> 20) & 0xFFFFF).to(tl.int32), (packed >> 40).to(tl.int32)


@jit
def narrowed(
    low: tl.tensor,
    high: tl.tensor,
    lines: tl.tensor,
    counts: tl.tensor,
    wanted: tl.tensor,
    enough: tl.tensor,
) -> tl.tensor:
    """The part of low..high that holds the highest line that `wanted` keys reach; a line that no more than `enough`
    reach will do.
    """
    first, second, third = lines
    one, two, three = counts
    line = tl.where(three >= wanted, third, tl.where(two >= wanted, second, tl.where(one >= wanted, first, low)))
    count = tl.where(three >= wanted, three, tl.where(two >= wanted, two, tl.where(one >= wanted, one, enough + 1)))
    above = tl.where(two >= wanted, third - 1, tl.where(one >= wanted, second - 1, first - 1))
    above = tl.where(three >= wanted, high, above)
    return line, tl.where(count <= enough, line, above)
