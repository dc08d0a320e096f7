"""Corpora: sources, held-out text, cached and sharded token streams."""
