"""Networks trained by gradients, as baselines of the explicit solution."""
