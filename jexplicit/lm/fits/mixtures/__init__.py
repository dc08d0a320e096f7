"""Mixtures of counted rows: which rows, and their exponents."""
