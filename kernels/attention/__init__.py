"""Exact attention over a selected set of rows."""

from leadline.kernels.attention.dispatch import attend_rows
from leadline.kernels.attention.reference import attend_selected, union_rows

__all__ = ["attend_rows", "attend_selected", "union_rows"]
