"""Features of images that are computed, not trained."""
