"""Which tokens a query attends to: sinks, the local window, and the best of the rest by score."""

from leadline.kernels.topk.dispatch import select_ids
from leadline.kernels.topk.reference import select

__all__ = ["select", "select_ids"]
