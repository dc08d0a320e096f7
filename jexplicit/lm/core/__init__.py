"""What a language model is: its interface, its softmax, and smoothed counts."""
