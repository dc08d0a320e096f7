"""Report."""

WAVES, HEADS = "waves.npz", "heads.npz"
