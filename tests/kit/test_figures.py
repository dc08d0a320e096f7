"""Figures: zeros on log axes are drawn, long texts wrap, files have ordinary permissions."""

import os
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from jexplicit.runs.files import save_arrays, write_whole
from launch.explain import draw_attribution
from launch.kit.figures import figure, legend_outside, log_ticks


@pytest.mark.parametrize(
    ("y", "scale"),
    [([1.0, 0.1, 1e-3], "log"), ([1.0, 1e-3, 0.0], "symlog"), ([1.0, np.nan, 0.1], "log"), ([0.0, 0.0, 0.0], "linear")],
)
def test_zeros_on_a_log_axis_are_drawn(tmp_path, y, scale):
    with figure(tmp_path / "a.png", size=(3, 2)) as axes:
        ax = axes[0, 0]
        ax.plot([1, 10, 100], y, "o", label="loss")
        if max(y):
            ax.axhline(0.5)  # its x are no data
        ax.set(xscale="log", yscale="log")
        log_ticks(ax)
        legend_outside(ax)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", scale)
    seen = np.asarray(y)[np.isfinite(y)]
    low, high = ax.get_ylim()
    assert scale == "linear" or low < seen.min() and seen.max() < high  # every point lies within
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize(("tokens", "lines"), [(25, 1), (26, 2), (60, 3)])
def test_a_long_attribution_map_wraps(tmp_path, monkeypatch, tokens, lines):
    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    words, evidence = [f"w{n}" for n in range(tokens)], np.linspace(-1, 1, 2 * tokens).reshape(tokens, 2)
    why: Any = SimpleNamespace(names=["x1", "x2"], evidence=evidence)
    draw_attribution(words, [["a", "$b"]] * tokens, why, tmp_path / "a.png")
    (fig,) = drawn
    axes = fig.axes[:-1]  # the last is the colour bar
    assert [label.get_text() for ax in axes for label in ax.get_xticklabels()] == words
    assert len(axes) == lines and len({ax.get_xlim() for ax in axes}) == 1
    assert fig.get_size_inches()[0] < 17
    np.testing.assert_array_equal(
        np.concatenate([ax.images[0].get_array() for ax in axes], axis=1).T.ravel(), np.linspace(-1, 1, 2 * tokens)
    )
    monkeypatch.undo()
    plt.close(fig)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_have_the_permissions_that_the_umask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "a", lambda file: file.write(b"a"))
        save_arrays(tmp_path / "a.npz", {"x": np.zeros(2)})
        with figure(tmp_path / "a.png", size=(2, 2)):
            pass
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}
