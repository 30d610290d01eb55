"""Copy from the GPU into a strided place in pinned host or GPU memory, on the stream and without staging."""

from leadline.kernels.place.dispatch import place

__all__ = ["place"]
