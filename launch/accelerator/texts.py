"""Texts that are drawn."""

import numpy as np


def draw_stream(tokens: int, N: int, seed: int = 0) -> np.ndarray:
    """Tokens by Zipf's law, every fortieth one a `<pad>`, and at both ends."""
    p = 1 / np.arange(1, N)
    x = 1 + np.random.default_rng(seed).choice(N - 1, tokens + 2, p=p / p.sum()).astype(np.uint16)
    x[::40] = x[-1] = 0
    return x
