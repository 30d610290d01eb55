"""Decoding on a GPU: one step of the model under one scanner as one CUDA graph."""
