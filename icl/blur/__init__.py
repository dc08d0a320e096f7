"""BLUR."""
