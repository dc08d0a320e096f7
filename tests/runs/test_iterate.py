"""The loop that everything which iterates runs on: interrupted anywhere, it ends as if it had not been."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.runs.iterate import iterate


class Interrupted(Exception):
    pass


def run(folder=None, *, stop: int | None = None, seconds: float = 0.0, steps: int = 6) -> tuple[Any, list[dict[str, Any]]]:
    """A state of which one array grows, and steps that depend on state and history alone."""

    def step(state, history):
        if len(history) == stop:
            raise Interrupted
        x, seen = state
        return (x * 1.5 + len(history), np.append(seen, x[0])), {"x": float(x[1])}

    start = jnp.arange(3.0), np.zeros(0)
    return iterate(step, start, done=lambda h: len(h) == steps, checkpoints=folder, checkpoint_seconds=seconds)


@pytest.mark.parametrize("stop", range(6))
def test_an_interrupted_iteration_ends_as_an_uninterrupted_one(tmp_path, stop):
    (x, seen), history = run()
    with pytest.raises(Interrupted):
        run(tmp_path, stop=stop)
    (x2, seen2), history2 = run(tmp_path)
    np.testing.assert_array_equal(x, x2)
    np.testing.assert_array_equal(seen, seen2)
    assert [entry["x"] for entry in history] == [entry["x"] for entry in history2]
    times = [entry["seconds"] for entry in history2]
    assert times == sorted(times)


def test_a_finished_iteration_has_nothing_left_to_do(tmp_path):
    first = run(tmp_path, seconds=1e9)  # the end is kept however rare checkpoints are
    again = run(tmp_path, stop=0)
    np.testing.assert_array_equal(first[0][0], again[0][0])
    assert first[1] == again[1] and len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match="it is another model's; delete it"):
        iterate(lambda s, h: (s, {}), (np.zeros(4), np.zeros(0)), done=lambda h: False, checkpoints=tmp_path)
