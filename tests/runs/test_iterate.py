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


@pytest.mark.parametrize(
    ("start", "known", "message"),
    [
        (np.zeros(4), {}, "holds arrays .*: it is another model's; delete it"),
        (np.zeros(3, np.float16), {}, r"was written for dtype \['float64'\], not \['float16', 'float64'\]"),
        (np.zeros(3), {"seed": np.int64(2)}, "was written for seed 1, not 2: choose another folder for checkpoints, or delete"),
        (np.zeros(3), {"text": np.array([0, 1])}, "was written for text '[0-9a-f]{12}', not '[0-9a-f]{12}': choose another"),
        (np.zeros(3), {"radius": 1}, "was written for radius None, not 1: choose another folder"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, start, known, message):
    def once(x, **known):
        return iterate(lambda s, h: (s, {}), (x, np.zeros(0)), done=bool, checkpoints=tmp_path, known=known)

    first = once(np.zeros(3), seed=1, text=np.array([0, 2]))
    with pytest.raises(ValueError, match=message):
        once(start, **{"seed": 1, "text": np.array([0, 2])} | known)
    assert once(np.zeros(3), text=np.array([0, 2]), seed=np.int32(1))[1] == first[1]
