"""The label cache of whole 4-bit codes, packed by nibble: the scan that reads every stored channel at full depth."""

from leadline.kernels.nibbles.dispatch import nibble_scan
from leadline.kernels.nibbles.reference import pack_nibbles

__all__ = ["nibble_scan", "pack_nibbles"]
