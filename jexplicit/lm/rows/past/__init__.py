"""Rows of the text before a prediction, which is counted as it is read."""
