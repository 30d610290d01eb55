"""The rows that winners need: the union of a group's selections, and its fetch from where the rows lie."""

from leadline.kernels.rows.dispatch import fetch, fetch_records, union
from leadline.kernels.rows.reference import Union

__all__ = ["Union", "fetch", "fetch_records", "union"]
