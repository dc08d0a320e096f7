"""Recursive feature machines: modular arithmetic, and tables."""
