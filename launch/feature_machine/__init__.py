"""Recursive feature machines: modular arithmetic."""
