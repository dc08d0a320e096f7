"""Attention layers, weights constructed for them, and transformers."""
