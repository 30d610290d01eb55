"""Exact attention over a selected set of rows."""

from leadline.kernels.attention.reference import attend_selected, union_rows

__all__ = ["attend_selected", "union_rows"]
