"""The staged transfer: planned runs copied from the store into a buffer on the GPU, to be scanned there."""

from leadline.kernels.gather.dispatch import Staging, stage, staging

__all__ = ["Staging", "stage", "staging"]
