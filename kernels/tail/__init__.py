"""How tokens in no complete block compete with the scan: on the plan's channels, or by q.k (SPEC section 1)."""

from leadline.kernels.tail.dispatch import rotate_one, rotate_query, tail_scores

__all__ = ["rotate_one", "rotate_query", "tail_scores"]
