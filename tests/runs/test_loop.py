"""The loop of all iterations: interrupted anywhere, it ends as if it had not been."""

from typing import Any, NamedTuple
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from refusals import refused

from jexplicit.runs import devices as module
from jexplicit.runs.devices import AXIS, data_mesh, iterate, load_checkpoint, load_latest, save_checkpoint, save_latest


class State(NamedTuple):
    tables: tuple
    steps: Any


def a_tree(seed=0, devices=1):
    """Leaves of every kind that a run keeps: sharded, scalar, on the host, text."""
    rng = np.random.default_rng(seed)
    sharding = NamedSharding(data_mesh(devices), PartitionSpec(None, AXIS))
    tables = tuple(jax.device_put(jnp.asarray(rng.normal(size=(3, 8)), dtype), sharding) for dtype in ("float32", "float64"))
    state = State(tables, jnp.array(seed, jnp.int32))
    return {"state": state, "best": rng.normal(size=5), "text": np.frombuffer(b"position", np.uint8)}


def like(devices=1):
    return a_tree(99, devices) | {"text": np.zeros(0, np.uint8)}


def assert_equal(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype and isinstance(leaf, jax.Array) == isinstance(other, jax.Array)
        np.testing.assert_array_equal(leaf, other)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_checkpoint_alone_is_left_and_what_is_not_of_the_series_stays(tmp_path):
    refused("no checkpoint at .*counts: finish the run first", load_checkpoint, tmp_path / "counts")
    save_checkpoint(tmp_path / "counts", {"C": [np.arange(3)]})
    assert load_checkpoint(tmp_path / "counts")["C"][0].tolist() == [0, 1, 2]
    (tmp_path / "7.txt").write_text("a note")
    (tmp_path / "8").write_text("a file")
    assert load_latest(tmp_path / "new", like()) is None and load_latest(tmp_path, like()) is None
    for number, seed in ((9, 9), (10, 10), (10, 7)):  # as text, 9 is the last; one is written again
        save_latest(tmp_path, number, a_tree(seed))
        assert names(tmp_path) == sorted([str(number), "7.txt", "8", "counts"])
        assert_equal(load_latest(tmp_path, like()), a_tree(seed))


def test_leaves_are_placed_as_their_likeness_whatever_devices_they_came_from(tmp_path):
    for before, after in ((8, 1), (1, 8)):
        save_latest(tmp_path, 1, a_tree(0, before))
        found: Any = load_latest(tmp_path, like(after))
        assert_equal(found, a_tree())
        for leaf, other in zip(jax.tree.leaves(found["state"]), jax.tree.leaves(like(after)["state"]), strict=True):
            assert leaf.sharding == other.sharding


def test_a_crash_leaves_two_whose_newer_counts_and_neither_an_interrupted_write_nor_one_that_fails(tmp_path, monkeypatch):
    save_latest(tmp_path, 9, a_tree(9))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        save_latest(tmp_path, 10, a_tree(10))
    assert names(tmp_path) == ["10", "9"]
    with monkeypatch.context() as patch:
        patch.setattr(module.orbax(), "save", Mock(side_effect=OSError("No space left on device")))
        refused("cannot be written .No space left.*: choose another", save_latest, tmp_path, 11, a_tree(2))
    assert_equal(load_latest(tmp_path, like()), a_tree(10))
    save_latest(tmp_path, 12, a_tree(12))
    assert names(tmp_path) == ["12"]


def test_a_checkpoint_of_other_shapes_and_damaged_files_are_named(tmp_path):
    save_latest(tmp_path, 4, a_tree())
    others: list[dict[str, Any]] = [
        {"state": State((np.zeros((3, 8)), np.zeros((4, 8))), np.array(0))},  # a larger table
        {"state": State((np.zeros((3, 8)),), np.array(0))},  # fewer
        {"best": np.zeros((5, 1))},
    ]
    shapes = r"\[\(5,\), \(3, 8\), \(3, 8\), \(\), \(8,\)\]"
    for other in others:
        said = rf"4 holds arrays {shapes}, wanted \[.*\]: it is another model's; delete it"
        refused(said, load_latest, tmp_path, like() | other)
    table = np.random.default_rng(0).normal(size=(50, 50))  # one array: orbax leaves threads behind where several reads fail
    save_latest(tmp_path, 5, table)
    data = {path: path.read_bytes() for path in (tmp_path / "5/state").rglob("d/*") if path.is_file()}
    assert data
    for damage in (lambda data: data[: len(data) // 2], lambda data: b"x" * len(data), None):
        for path, whole in data.items():
            path.write_bytes(damage(whole)) if damage else path.unlink()
        refused(r"(?s)5 cannot be read .*: delete it and run again", load_latest, tmp_path, table)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    def once(x, **known):
        return iterate(lambda s, h: (s, {}), (x, np.zeros(0)), done=bool, checkpoints=tmp_path, known=known)

    known = {"seed": 1, "text": np.array([0, 2])}
    first = once(np.zeros(3), **known)
    for start, changed, message in [
        (np.zeros(4), {}, "holds arrays .*: it is another model's; delete it"),
        (np.zeros(3, np.float16), {}, r"was written for dtype \['float64'\], not \['float16', 'float64'\]"),
        (np.zeros(3), {"seed": np.int64(2)}, "was written for seed 1, not 2: choose another folder for checkpoints, or delete"),
        (np.zeros(3), {"text": np.array([0, 1])}, "was written for text '[0-9a-f]{12}', not '[0-9a-f]{12}': choose another"),
        (np.zeros(3), {"radius": 1}, "was written for radius None, not 1: choose another folder"),
    ]:
        refused(message, once, start, **known | changed)
    assert once(np.zeros(3), text=np.array([0, 2]), seed=np.int32(1))[1] == first[1]
