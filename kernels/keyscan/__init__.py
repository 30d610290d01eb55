"""Scores of all tokens of the complete blocks by q.k from the key rows themselves: the scan of exact top-k."""

from leadline.kernels.keyscan.dispatch import key_scan

__all__ = ["key_scan"]
