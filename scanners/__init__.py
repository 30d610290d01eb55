"""Scanners: cheap ways to rank all keys before exact top-k attention, one per file."""
