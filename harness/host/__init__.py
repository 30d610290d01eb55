"""Host memory as a store: pinned at its exact size, filled by the GPU behind the prefill, read by it at every step."""
