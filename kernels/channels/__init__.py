"""Which channels a query reads in full: those where it is largest (SparQ's rule, SPEC section 2)."""

from leadline.kernels.channels.dispatch import largest

__all__ = ["largest"]
