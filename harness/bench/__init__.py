"""Timing decode steps on synthetic contents, at lengths and shapes that no prefill needs to reach (SPEC section 8)."""
