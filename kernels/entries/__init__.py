"""Scans of fp16 entries: landmarks, pages, and fp16 coordinates, one entry standing for several tokens."""

from leadline.kernels.entries.dispatch import entry_scan, page_scan

__all__ = ["entry_scan", "page_scan"]
