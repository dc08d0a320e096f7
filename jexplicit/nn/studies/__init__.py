"""Studies of training: where it goes, how noisy its gradients are, what it learns."""
