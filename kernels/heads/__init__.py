"""From the joint projection of one new token to its queries and its K/V record: norm, rotary positions, append."""

from leadline.kernels.heads.dispatch import split_heads
from leadline.kernels.heads.reference import HeadForm

__all__ = ["HeadForm", "split_heads"]
