"""Networks trained by gradients, the baselines of the explicit solution."""
