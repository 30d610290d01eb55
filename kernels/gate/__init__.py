"""The gated activation of a model's feed-forward part."""

from leadline.kernels.gate.dispatch import gated

__all__ = ["gated"]
