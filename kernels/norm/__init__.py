"""RMSNorm of one position of each sequence, with the residual's addition before it."""

from leadline.kernels.norm.dispatch import add_norm

__all__ = ["add_norm"]
