"""Attention layers, constructed weights, and transformers."""
