"""Exact attention over a selected set of rows, or over all of them."""

from leadline.kernels.attention.dispatch import attend_all, attend_rows
from leadline.kernels.attention.reference import attend_selected, union_rows

__all__ = ["attend_all", "attend_rows", "attend_selected", "union_rows"]
