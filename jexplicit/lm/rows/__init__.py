"""Kinds of rows, the parts of a language model."""
