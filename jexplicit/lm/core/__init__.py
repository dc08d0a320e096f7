"""The core of a language model: its interface, its softmax, and smoothed counts."""
