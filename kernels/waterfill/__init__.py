"""How many planes of each channel a query reads: reverse water-filling under a budget (SPEC section 2)."""

from leadline.kernels.waterfill.dispatch import plan
from leadline.kernels.waterfill.reference import depths, depths_by_bisection

__all__ = ["depths", "depths_by_bisection", "plan"]
