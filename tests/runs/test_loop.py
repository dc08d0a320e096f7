"""The loop of all iterations: interrupted anywhere, it ends as if it had not been."""

import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jexplicit.runs import loop
from jexplicit.runs.devices import AXIS, data_mesh
from jexplicit.runs.loop import is_checkpoint, iterate, load_checkpoint, load_latest, save_checkpoint, save_latest

TEXT = b"position"


class State(NamedTuple):
    tables: tuple
    steps: Any


def a_tree(seed=0, devices=1):
    """Leaves of every kind that a run keeps: sharded, scalar, on the host, text."""
    rng = np.random.default_rng(seed)
    sharding = NamedSharding(data_mesh(devices), PartitionSpec(None, AXIS))
    tables = (
        jax.device_put(jnp.asarray(rng.normal(size=(3, 8)), jnp.float32), sharding),
        jax.device_put(jnp.asarray(rng.normal(size=(3, 8))), sharding),
    )
    state = State(tables, jnp.array(seed, jnp.int32))
    return {"state": state, "best": rng.normal(size=5), "text": np.frombuffer(TEXT, np.uint8)}


def like(devices=1):
    return a_tree(99, devices) | {"text": np.zeros(0, np.uint8)}


def assert_equal(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype and isinstance(leaf, jax.Array) == isinstance(other, jax.Array)
        np.testing.assert_array_equal(leaf, other)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_checkpoint_is_left_and_it_is_the_last(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert load_latest(folder, like()) is None and load_latest(tmp_path, like()) is None
    for number, seed in ((1, 1), (9, 9), (10, 10), (100, 100), (100, 7)):  # as text, 9 is the last; one is written again
        save_latest(folder, number, a_tree(seed))
        assert names(folder) == [str(number)]
        found: Any = load_latest(folder, like())
        assert_equal(found, a_tree(seed))
        assert found["text"].tobytes() == TEXT


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 2)])
def test_leaves_are_placed_as_their_likeness_whatever_devices_they_came_from(before, after, tmp_path):
    save_latest(tmp_path, 1, a_tree(0, before))
    found = load_latest(tmp_path, like(after))
    assert found is not None
    assert_equal(found, a_tree())
    for leaf, other in zip(jax.tree.leaves(found["state"]), jax.tree.leaves(like(after)["state"]), strict=True):
        assert leaf.sharding == other.sharding


def test_a_crash_leaves_two_of_which_the_newer_counts_and_an_interrupted_write_is_none(tmp_path, monkeypatch):
    save_latest(tmp_path, 9, a_tree(9))

    def crash(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.shutil, "rmtree", crash)
        save_latest(tmp_path, 10, a_tree(10))
    assert names(tmp_path) == ["10", "9"]
    unfinished = tmp_path / "11.orbax-checkpoint-tmp"  # the name that orbax writes under, and renames in the end
    shutil.copytree(tmp_path / "9", unfinished)
    (unfinished / "commit_success.txt").unlink()
    shutil.rmtree(unfinished / "state")
    assert_equal(load_latest(tmp_path, like()), a_tree(10))
    save_latest(tmp_path, 12, a_tree(12))
    assert names(tmp_path) == ["12"]


def test_a_write_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    save_latest(tmp_path, 1, a_tree(1))
    monkeypatch.setattr(loop.orbax(), "save", full)
    with pytest.raises(ValueError, match="cannot be written .No space left on device.: choose another --out"):
        save_latest(tmp_path, 2, a_tree(2))
    assert_equal(load_latest(tmp_path, like()), a_tree(1))


def test_what_is_not_of_the_series_stays(tmp_path):
    save_checkpoint(tmp_path / "counts", {"C": np.ones(3)})
    (tmp_path / "7.txt").write_text("a note")
    (tmp_path / "8").write_text("a file")
    save_latest(tmp_path, 1, a_tree(1))
    assert_equal(load_latest(tmp_path, like()), a_tree(1))
    save_latest(tmp_path, 2, a_tree(2))
    assert names(tmp_path) == ["2", "7.txt", "8", "counts"]


OTHERS: list[dict[str, Any]] = [
    {"state": State((np.zeros((3, 8)), np.zeros((4, 8))), np.array(0))},  # a larger table
    {"state": State((np.zeros((3, 8)),), np.array(0))},  # fewer
    *({"best": other} for other in (np.zeros(6), np.zeros((5, 1)), np.float64(0))),  # longer, another number of axes
    {"text": np.zeros((0, 2), np.uint8)},
]


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path):
    save_latest(tmp_path, 4, a_tree())
    shapes = r"\[\(5,\), \(3, 8\), \(3, 8\), \(\), \(8,\)\]"
    for other in OTHERS:
        with pytest.raises(ValueError, match=rf"4 holds arrays {shapes}, wanted \[.*\]: it is another model's; delete it"):
            load_latest(tmp_path, like() | other)
    for no_text in (np.uint8(0), np.zeros((2, 2), np.uint8)):
        save_latest(tmp_path, 4, a_tree() | {"text": no_text})
        with pytest.raises(ValueError, match="another model's"):
            load_latest(tmp_path, like())


@pytest.mark.parametrize("damage", [None, lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"x" * len(data)])
def test_damaged_files_are_named(damage, tmp_path):
    table = np.random.default_rng(0).normal(size=(50, 50))  # one array: orbax leaves threads behind where several reads fail
    save_latest(tmp_path, 5, table)
    data = [path for path in (tmp_path / "5" / "state").rglob("*") if path.is_file() and path.parent.name == "d"]
    assert data
    for path in data:
        path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(ValueError, match=r"(?s)5 cannot be read .*: delete it and run again"):
        load_latest(tmp_path, table)


def test_a_single_checkpoint_is_whole_or_missing(tmp_path):
    path = tmp_path / "counts"
    assert not is_checkpoint(path)
    with pytest.raises(ValueError, match="no checkpoint at .*counts: finish the run first"):
        load_checkpoint(path)
    save_checkpoint(path, {"C": [np.arange(3), np.ones((2, 2), np.float32)]})
    assert is_checkpoint(path)
    found = load_checkpoint(path)
    np.testing.assert_array_equal(found["C"][0], np.arange(3))
    assert found["C"][1].dtype == np.float32
    save_checkpoint(path, {"C": [np.arange(4)]})
    np.testing.assert_array_equal(load_checkpoint(path)["C"][0], np.arange(4))


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
