"""Attention layers, constructions and transformers."""
