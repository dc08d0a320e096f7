"""Gradient descent in context, closed forms and polynomials in the eigenvalues."""
