"""Solutions that need no trained attention: steps of descent, closed forms, optimal polynomials."""
