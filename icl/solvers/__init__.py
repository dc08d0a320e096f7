"""Solutions without training: gradient descent, closed forms, optimal polynomials."""
