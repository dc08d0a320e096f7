"""The suite of small tasks: what it spans, that its parts are apart and standardised, and the baselines that it is tuned by."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from samples import two_classes as part

from icl.blur import backprop_genome, descent_curves, learning_curves, momentum_grid, sgd_rules
from icl.blur.baselines import GRID_OPTIMIZERS, coefficients, descent_grid, one_formula
from icl.blur.data import image_sets
from icl.blur.judging.points import PLANES, mixture, plane
from icl.blur.judging.suite import DATA, DEPTHS, SUITE, WIDTHS, select_tasks, task_sets
from icl.names import TASK_GROUPS
from jexplicit.data.images import read_images
from jexplicit.nn.optimizers import make_optimizer

pytestmark = pytest.mark.slow  # of learners that a learned rule is compared with
AT = (0, 1, 3, 6)
RATES = (0.01, 0.1)
LEARNERS: dict[str, Any] = {"hidden_activation": "relu", "batch_size": 8, "seeds": (0, 3)}
EMBEDDED = [data for group in TASK_GROUPS if group != "mnist" for data in DATA[group]]


def test_the_suite_spans_width_and_depth_evenly():
    assert len(SUITE) == len({task.name for task in SUITE}) == 54
    found = collections.Counter((task.width, task.depth) for task in SUITE)
    assert found == {(width, depth): 3 for width in WIDTHS for depth in DEPTHS}
    assert all(len({task.width for task in SUITE if task.data == data}) == 3 for data in EMBEDDED)
    assert len(select_tasks([group for group in TASK_GROUPS if group != "mnist"])) == 42  # without any files
    assert select_tasks() == SUITE and all(task.hidden == (task.width,) * task.depth for task in SUITE)


def test_tasks_are_chosen_by_task_data_and_group_in_the_order_of_the_suite():
    names = [task.name for task in select_tasks(["xor", "wine/128-128", "mixture@5/512-512"])]
    assert names == [task.name for task in SUITE if task.data == "xor" or task.name in ("wine/128-128", "mixture@5/512-512")]
    assert {task.data for task in select_tasks(["planes"])} == set(PLANES)


@pytest.mark.parametrize("data", EMBEDDED)
def test_parts_are_disjoint_standardised_and_of_all_classes(data):
    """Iris has two equal flowers; 4 x 4 images of different digits may be equal, but not the drawn points."""
    sets, again, other = task_sets(data), task_sets(data), task_sets(data, seed=1)
    train, dev, test = sets[:3]
    M = sum(len(part.X) for part in sets[:3])
    assert len(train.X) == M // 2 and len(dev.X) == M // 4 and len(test.X) == M - M // 2 - M // 4
    assert train.X.dtype == train.Y.dtype == np.float32 and sets.name == data
    np.testing.assert_allclose(train.X.mean(axis=0), 0, atol=1e-5)  # float32 sums
    np.testing.assert_allclose(train.X.std() if data.startswith("digits") else train.X.std(axis=0), 1, atol=1e-4)
    assert 0.5 < test.X.std() < 2  # standardised by the training part, so not exactly
    for one in (train, dev, test):
        assert np.array_equal(one.Y.sum(axis=1), np.ones(len(one.Y))) and one.Y.sum(axis=0).min() > 0
    np.testing.assert_array_equal(sets.test.X, again.test.X)
    assert not np.array_equal(sets.train.X, other.train.X)
    if data not in ("iris", "wine"):
        rows = [{row.tobytes() for row in part.X} for part in sets[:3]]
        assert len(rows[0] & rows[1]) + len(rows[0] & rows[2]) + len(rows[1] & rows[2]) == 0


def test_digits_are_the_images_that_no_search_for_a_genome_sees():
    held_out = image_sets(read_images("digits")).test
    theirs = held_out.X - held_out.X.mean(axis=0, dtype=np.float64)
    for seed in (0, 5):
        ours = np.concatenate([one.X for one in task_sets("digits@8", seed=seed)[:3]]).astype(np.float64)
        ours = ours - ours.mean(axis=0)
        scaled = theirs * (np.linalg.norm(ours) / np.linalg.norm(theirs))
        nearest = np.array([np.abs(scaled - image).max(axis=1).argmin() for image in ours])
        assert len(ours) == len(set(nearest.tolist())) == len(theirs) == 597  # each image once
        np.testing.assert_allclose(ours, scaled[nearest], atol=1e-3)  # two roundings to float32


def test_mnist_comes_from_its_test_images(data_dir):
    sets, small = task_sets("mnist@28"), task_sets("mnist@7")
    assert [len(one.X) for one in sets[:3]] == [3500, 500, 1000] and (sets.inputs, small.inputs) == (784, 49)
    np.testing.assert_array_equal(sets.train.Y, small.train.Y)
    np.testing.assert_allclose(sets.train.X.std(), 1, atol=1e-4)


@pytest.mark.parametrize("name", PLANES)
def test_figures_in_the_plane_are_balanced_and_where_they_should_be(name):
    X, labels = plane(name, 4000, np.random.default_rng(0))
    assert X.shape == (4000, 2) and abs(labels.mean() - 0.5) < 0.04  # five standard deviations
    radius, angle = np.hypot(*X.T), np.arctan2(X[:, 1], X[:, 0])
    centred = X - np.array([[0.0, 0.0], [1.0, 0.5]])[labels]  # each moon is half a unit circle about one of these
    # the angle of a spiral is the radius, plus half a turn for one class; beyond radius 2 noise of 0.1 turns a point by at
    # most 0.05, and moves it along the arm by 0.1 (1 σ)
    turns = np.exp(1j * (angle - radius - np.pi * labels))[radius > 2]
    assert {
        "circles": lambda: [radius[labels == n].mean() for n in (0, 1)] == pytest.approx([1, 0.5], abs=0.02),
        "spirals": lambda: np.abs(turns - 1).max() < 5 * np.hypot(0.05, 0.1),
        "xor": lambda: np.mean(labels == (X.prod(axis=1) < 0)) > 0.99,
        "checkerboard": lambda: (labels == X.astype(int).sum(axis=1) % 2).all(),
        "moons": lambda: (
            abs(np.hypot(*centred.T).mean() - 1) < 0.03 and np.mean(centred[:, 1] * (1 - 2 * labels) > -0.5) > 0.99
        ),
    }[name]()


def test_centres_of_a_mixture_have_the_stated_distance():
    """With unit noise and classes of one cluster each, class means are the centres."""
    X, labels = mixture(40_000, np.random.default_rng(0), inputs=200, classes=8, distance=6.0)
    centres = np.stack([X[labels == n].mean(axis=0) for n in range(8)])
    squares = ((centres[:, None, :] - centres[None, :, :]) ** 2).sum(axis=-1)
    distance = np.sqrt(squares.sum() / (8 * 7))
    np.testing.assert_allclose(distance, 6.0, rtol=0.05)  # of 28 pairs in 200 dimensions
    np.testing.assert_allclose((X - centres[labels]).std(), 1.0, rtol=0.01)


@pytest.mark.parametrize("name", GRID_OPTIMIZERS)
def test_one_formula_is_three_optimisers(name):
    """Equal to optax's, which are written otherwise, to rounding in float64."""
    rng = np.random.default_rng(0)
    ends = []
    gradients = jnp.asarray(rng.normal(size=(4, 6)))
    for optimizer in (one_formula(coefficients(name, 0.3)), make_optimizer(name, 0.3)):
        params = jnp.ones(6)
        state = optimizer.init(params)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            for g in gradients:
                updates, state = optimizer.update(g, state, params)
                params = optax.apply_updates(params, updates)
        ends.append(params)
    np.testing.assert_allclose(*ends, rtol=1e-6)  # optax has float32 counts under Adam's corrections


@pytest.fixture(scope="module")
def curves():
    """`curves(normalised)`: whole curves of the three optimisers, with rates low enough not to amplify rounding."""
    learners = functools.partial(descent_curves, rates=RATES, hidden=(5,), train=part(40), steps=6, **LEARNERS)
    return functools.cache(lambda how: [learners(name, test=part(100, 2), normalised=how) for name in GRID_OPTIMIZERS])


@pytest.mark.parametrize("normalised", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_grid_is_the_curves_at_chosen_updates(curves, normalised):
    """The same networks in another program: the same accuracies."""
    train, dev, test = part(40), part(200, 1), part(100, 2)
    grid_dev, grid_test = descent_grid(RATES, (5,), train, (dev, test), at=AT, normalised=normalised, **LEARNERS)
    assert grid_dev.shape == grid_test.shape == (3, 2, 2, len(AT)) and np.ptp(grid_test) > 0
    for found, curve in zip(grid_test, curves(normalised), strict=True):
        np.testing.assert_allclose(found, curve[..., AT], atol=0.011)  # one example of 100 may change sides


def test_the_grid_of_momenta_is_the_named_optimizers(curves):
    """β = 0 and 0.9 are `sgd` and `momentum` of the baselines, of the same networks and minibatches; both are optax's."""
    train, test = part(40), part(100, 2)
    found = momentum_grid(RATES, (0.0, 0.9, 0.5), (5,), train, test, at=(1, 6), normalised=True, **LEARNERS)
    assert found.shape == (3, 2, 2, 2) and np.ptp(found[:, 1, :, 1], axis=0).max() > 0
    for values, curve in zip(found, curves(True)[:2], strict=False):
        np.testing.assert_allclose(values, curve[..., [1, 6]], atol=1e-6)


def test_accuracies_at_chosen_updates_are_those_of_the_full_curve(curves):
    train, dev, test = part(40), part(30, 1), part(100, 2)
    on_dev, on_test = descent_curves("adam", RATES, (5,), train, (dev, test), normalised=True, steps=6, at=AT, **LEARNERS)
    assert on_dev.shape == on_test.shape == (2, 2, 4)
    np.testing.assert_allclose(on_test, curves(True)[2][..., AT], atol=0.011)  # one example of 100 may change sides
    learn = functools.partial(learning_curves, backprop_genome(2), sgd_rules("tanh", "cross_entropy"), (5,), train)
    full, few = (learn(of, steps=6, batch_size=8, seeds=(0, 3), at=at) for of, at in ((test, None), ((dev, test), AT)))
    np.testing.assert_array_equal(few.accuracy[1], full.accuracy[:, AT])
    np.testing.assert_allclose(few.size, full.size[:, AT], rtol=1e-6)
