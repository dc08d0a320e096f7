"""Kinds of rows: what a language model is made of."""
