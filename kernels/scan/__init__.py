"""Scores of all tokens of the complete blocks from what was read of a store."""

from leadline.kernels.scan.dispatch import fused_scan
from leadline.kernels.scan.reference import dot, plane_scan

__all__ = ["dot", "fused_scan", "plane_scan"]
