"""Recorded agent sessions: one reader per format, discovery of a directory, rendering to tokens."""
