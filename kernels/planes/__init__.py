"""The 4-bit key store as bit planes: pack, and exact prefix reads (SPEC section 1)."""

from leadline.kernels.planes.dispatch import pack, pack_rotated
from leadline.kernels.planes.reference import BLOCK, DEPTH, codes, decode, decode_every_depth, unpack_bits

__all__ = ["BLOCK", "DEPTH", "codes", "decode", "decode_every_depth", "pack", "pack_rotated", "unpack_bits"]
