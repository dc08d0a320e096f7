"""Studies of training: optimiser paths, gradient noise, learned representations."""
