"""Fidelity without generation: how far attention over each scanner's selected set lies from dense attention (SPEC
section 6), measured on queries, keys and values captured from the model on held-out text.
"""
