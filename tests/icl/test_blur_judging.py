"""What learned rules are judged by: small tasks, tuned descent, the cost of an update by hand, neighbours, speed."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import two_classes

from icl.blur import baselines, descent_curves, learning_curves, load_genome, minibatches, sgd_rules
from icl.blur.baselines import initial_layers, network_loss
from icl.blur.rules import backprop_genome

pytestmark = pytest.mark.slow  # of learners that a learned rule is compared with
A, B, C = np.ones((2, 3)), np.ones((3, 5)), np.ones((4, 3, 3))


def test_tasks_are_chosen_by_name_and_data_in_their_order():
    assert len({task.data for task in baselines.TASKS}) == len({task.name for task in baselines.TASKS}) == 12
    assert [task.name for task in baselines.select_tasks(["mixture@5/128", "iris"])] == ["iris/128", "mixture@5/128"]


@pytest.mark.parametrize("data", [task.data for task in baselines.TASKS if not task.data.startswith("mnist")])
def test_parts_are_disjoint_standardised_and_of_all_classes(data):
    """Iris has two equal flowers."""
    sets, again, other = baselines.task_sets(data), baselines.task_sets(data), baselines.task_sets(data, seed=1)
    train, dev, test = sets[:3]
    M = sum(len(part.X) for part in sets[:3])
    assert len(train.X) == M // 2 and len(dev.X) == M // 4 and len(test.X) == M - M // 2 - M // 4
    assert train.X.dtype == train.Y.dtype == np.float32 and sets.name == data
    np.testing.assert_allclose(train.X.mean(axis=0), 0, atol=1e-5)  # float32 sums
    np.testing.assert_allclose(train.X.std(axis=0), 1, atol=1e-4)
    assert 0.5 < test.X.std() < 2  # standardised by the training part, so not exactly
    for one in (train, dev, test):
        assert np.array_equal(one.Y.sum(axis=1), np.ones(len(one.Y))) and one.Y.sum(axis=0).min() > 0
    np.testing.assert_array_equal(sets.test.X, again.test.X)
    assert not np.array_equal(sets.train.X, other.train.X)
    if data != "iris":
        rows = [{row.tobytes() for row in part.X} for part in sets[:3]]
        assert len(rows[0] & rows[1]) + len(rows[0] & rows[2]) + len(rows[1] & rows[2]) == 0


def test_mnist_comes_from_its_test_images(data_dir):
    sets, small = baselines.task_sets("mnist@28"), baselines.task_sets("mnist@7")
    assert [len(one.X) for one in sets[:3]] == [3500, 500, 1000] and (sets.inputs, small.inputs) == (784, 49)
    np.testing.assert_array_equal(sets.train.Y, small.train.Y)
    np.testing.assert_allclose(sets.train.X.std(), 1, atol=1e-4)


# --- descent -------------------------------------------------------------------------------------------------------------


def test_descent_is_a_loop_over_the_minibatches_of_the_rule():
    """`W -= rate dL/dW` by another loss of the same network, in float32: at most one of 200 examples may change sides."""
    train, test, seed = two_classes(), two_classes(200, 1), 3
    found = descent_curves("sgd", (0.7,), (4,), train, test, normalised=False, steps=5, batch_size=8, seeds=(seed,))
    gradient = jax.jit(jax.grad(functools.partial(network_loss, sgd_rules("tanh", "cross_entropy"))))
    layers = initial_layers((3, 4, 2), "tanh", jnp.stack([jax.random.key(seed)]))
    weights = [np.concatenate([layer["W"][0], layer["b"]]) for layer in layers]
    for batch in minibatches(seed, len(train.X), steps=5, batch_size=8):
        changes = gradient(weights, train.X[batch], train.Y[batch])
        weights = [W - np.float32(0.7) * np.asarray(g) for W, g in zip(weights, changes, strict=True)]
    logits = np.tanh(test.X @ weights[0][:-1] + weights[0][-1]) @ weights[1][:-1] + weights[1][-1]
    accuracy = np.mean(logits.argmax(axis=1) == test.Y.argmax(axis=1))
    assert found.shape == (1, 1, 6) and found[0, 0, -1] == pytest.approx(accuracy, abs=0.0051)


def test_accuracies_at_chosen_updates_are_those_of_the_full_curve():
    at, learners = (0, 1, 3, 6), {"hidden_activation": "relu", "batch_size": 8, "seeds": (0, 3), "normalised": True, "steps": 6}
    train, dev, test = two_classes(40), two_classes(30, 1), two_classes(100, 2)
    curves: Any = functools.partial(descent_curves, "adam", (0.01, 0.1), (5,), train, **learners)
    full, (on_dev, on_test) = curves(test), curves((dev, test), at=at)
    assert on_dev.shape == on_test.shape == (2, 2, 4) and np.ptp(full) > 0
    np.testing.assert_allclose(on_test, full[..., at], atol=0.011)  # one example of 100 may change sides
    learn = functools.partial(learning_curves, backprop_genome(2), sgd_rules("tanh", "cross_entropy"), (5,), train)
    full, few = (learn(of, steps=6, batch_size=8, seeds=(0, 3), at=when) for of, when in ((test, None), ((dev, test), at)))
    np.testing.assert_array_equal(few[1], full[:, at])


# --- costs ---------------------------------------------------------------------------------------------------------------


def product(m, k, n):
    """FLOPs of [m, k] by [k, n]."""
    return 2 * m * k * n


def test_descent_costs_three_products_a_layer_but_no_error_of_the_inputs():
    sizes, M = (7, 5, 4, 3), 6
    weights = [np.ones((a + 1, b)) for a, b in zip(sizes, sizes[1:], strict=False)]
    loss = functools.partial(network_loss, sgd_rules("tanh", "cross_entropy"))
    assert baselines.descent_flops(sizes, M) == baselines.matrix_flops(
        jax.grad(loss), weights, np.ones((M, 7)), np.ones((M, 3))
    )


def test_an_update_of_the_shipped_rules_by_hand():
    """Every product of a step, in its order; fewer neurons than examples, so that the ridge systems have a column for each."""
    (n0, n1, n2), M = (7, 5, 3), 8
    k, passes = 2, 8
    forward = product(k, 1, M * n0) + k * product(M, n0, n1), product(k, k, M * n1) + k * product(M, n1, n2)
    back = product(k, k, M * n2) + k * product(M, n2, n1)
    first = product(1, 1, M * n0) + product(1, k, M * n1)  # states before and after, mixed into one channel
    first += product(M, n0 + 1, M) + passes * product(n1, M, M) + product(n0 + 1, M, n1) + product(M, M, n1)  # with trust
    last = product(1, k, M * n1) + product(1, k, M * n2)
    last += product(M, n1 + 1, M) + passes * product(n2, M, M) + product(n1 + 1, M, n2)
    genome, rules, _ = load_genome("digits")
    assert (
        baselines.rule_flops(genome, rules, (n0, n1, n2), M) == 2 * sum(forward) + back + first + last
    )  # in sequence: forward twice
    assert baselines.rule_flops(genome, rules, (64, 32, 10), 64) / baselines.descent_flops((64, 32, 10), 64) == pytest.approx(
        8.53, abs=0.005
    )

    k = 4
    forward = product(k, 1, M * n0) + k * product(M, n0, n1), product(k, k, M * n1) + k * product(M, n1, n2)
    back = product(k, k, M * n2) + k * product(M, n2, n1)
    first = product(k, 1, M * n0) + product(k, k, M * n1) + k * product(n0 + 1, M, n1)
    last = product(k, k, M * n1) + product(k, k, M * n2) + k * product(n1 + 1, M, n2)
    genome, rules, _ = load_genome("hebbian")
    assert baselines.rule_flops(genome, rules, (n0, n1, n2), M) == sum(forward) + back + first + last


# --- neighbours and speed ------------------------------------------------------------------------------------------------


def test_the_nearest_neighbour_is_among_the_examples_of_the_learners_and_no_others():
    """By loops over the examples of the first n minibatches; both learners share the one of all examples."""
    train, test = two_classes(20), two_classes(50, 1)
    found = baselines.nearest_neighbour_accuracies(train, test, at=(1, 2, 5), batch_size=4, seeds=(0, 3))
    labels, wanted = train.Y.argmax(axis=1), test.Y.argmax(axis=1)
    for row, seed in zip(found, (0, 3), strict=True):
        batches = minibatches(seed, 20, steps=5, batch_size=4)
        for accuracy, n in zip(row, (1, 2, 5), strict=True):
            nearest = [min(batches[:n].ravel(), key=lambda m, x=x: ((train.X[m] - x) ** 2).sum()) for x in test.X]
            assert accuracy == np.mean(labels[nearest] == wanted)
    assert found.shape == (2, 3) and found[0, 2] == found[1, 2]


@pytest.mark.parametrize(
    ("accuracy", "updates"), [(0.2, 1), (0.5, 1), (0.6, 2), (0.65, np.sqrt(2 * 8)), (0.7, 8), (0.75, np.inf)]
)
def test_updates_to_reach_an_accuracy_by_hand(accuracy, updates):
    """From 2 to 8 updates a curve rises by 0.1, so that half of it is reached after 4; a later fall does not matter."""
    assert baselines.updates_to_reach(accuracy, (1, 2, 8, 16), (0.5, 0.6, 0.7, 0.65)) == pytest.approx(updates)


def test_updates_have_an_accuracy_each():
    for at, curve in (((1, 2), (0.5,)), ((), ()), ((0, 1), (0.1, 0.2)), ((2, 1), (0.1, 0.2))):
        with pytest.raises(ValueError, match="give one for each, ascending from 1 on"):
            baselines.updates_to_reach(0.5, at, curve)
