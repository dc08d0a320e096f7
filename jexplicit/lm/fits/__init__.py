"""Ways to fit a language model, one registry of them."""
