"""The training loop: the order of the data, the best epoch, and resumption bit for bit.

What is lost or repeated anywhere shows in the last bits of `quadratic`, least squares by gradient descent with momentum.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from jexplicit.nn.training import TrainingResult, epoch_order, shorter_epochs, train

SIZE, DIMENSION = 37, 3  # at one example a step: losses are checked, and checkpoints made, after 16, 32 and 37 steps
EPOCHS = 3


class State(NamedTuple):
    w: jax.Array
    momentum: jax.Array


@jax.jit
def squares(w, A, y):
    return ((A @ w - y) ** 2).sum()


@functools.partial(jax.jit, donate_argnums=0)
def descend(state, batch):
    loss, gradient = jax.value_and_grad(squares)(state.w, *batch)
    momentum = 0.9 * state.momentum + gradient
    return State(state.w - 0.02 * momentum, momentum), loss


A, NOISE = (np.random.default_rng(seed).normal(size=(SIZE, DIMENSION)) for seed in (0, 1))
Y = A @ np.ones(DIMENSION) + NOISE[:, 0]


def quadratic(**changes) -> dict[str, Any]:
    """Arguments of `train`."""
    arguments = {
        "state": State(jnp.zeros(DIMENSION), jnp.zeros(DIMENSION)),
        "step": descend,
        "batch": lambda examples: (A[examples], Y[examples]),
        "evaluate": lambda w: float(squares(w, NOISE, Y)) / SIZE,
        "params": lambda state: state.w,
        "size": SIZE,
        "batch_size": 1,
        "epochs": EPOCHS,
        "checkpoint_seconds": 0.0,
    }
    return arguments | changes


def same(one: TrainingResult, other: TrainingResult) -> None:
    """Bit for bit, seconds aside."""
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert one.best_epoch == other.best_epoch
    mine, theirs = ([{k: v for k, v in e.items() if not k.endswith("seconds")} for e in run.history] for run in (one, other))
    assert mine == theirs


def interrupt(arguments: dict[str, Any], name: str, after: int) -> None:
    """Train until a function is called more often than that."""
    calls = itertools.count(1)

    def interrupting(*given):
        if next(calls) > after:
            raise KeyboardInterrupt
        return arguments[name](*given)

    with pytest.raises(KeyboardInterrupt):
        train(**{**arguments, name: interrupting})


@pytest.fixture(scope="module")
def uninterrupted():
    return train(**quadratic())


def test_an_order_is_a_permutation_that_seed_and_epoch_alone_decide():
    keys = [(0, 1), (0, 2), (1, 2), (2, 1), (2**63, 10**6)]
    orders = [epoch_order(*key, 100).tolist() for key in keys]
    assert len(set(map(tuple, orders))) == len(keys) and orders == [epoch_order(*key, 100).tolist() for key in keys]
    assert all(sorted(order) == list(range(100)) for order in orders) and epoch_order(7, 1, 1).tolist() == [0]
    # a checkpoint continues with this order: numpy keeps Philox, and has kept permutation, as they are
    assert epoch_order(0, 1, 8).tolist() == [2, 0, 4, 1, 7, 5, 3, 6]


def test_the_loop_is_gradient_descent_in_numpy():
    arguments = quadratic(batch_size=4, seed=3)
    trained = train(**arguments)
    w, momentum, best, best_loss = np.zeros(DIMENSION), np.zeros(DIMENSION), np.zeros(DIMENSION), np.inf
    for epoch in range(EPOCHS + 1):
        total = 0.0
        order = epoch_order(3, epoch, SIZE) if epoch else []
        for n in range(0, len(order), 4):
            a, y = A[order[n : n + 4]], Y[order[n : n + 4]]
            total += np.sum((a @ w - y) ** 2)
            momentum = 0.9 * momentum + 2 * a.T @ (a @ w - y)
            w = w - 0.02 * momentum
        dev_loss = np.sum((NOISE @ w - Y) ** 2) / SIZE
        if dev_loss < best_loss:
            best, best_loss = w, dev_loss
        entry = trained.history[epoch]
        # thirty steps of float64 arithmetic on numbers of order 1 to 100
        assert entry["epoch"] == epoch and entry["dev_loss"] == pytest.approx(dev_loss, rel=1e-11)
        if epoch:
            assert entry["train_loss"] == pytest.approx(total / SIZE, rel=1e-11)
    np.testing.assert_allclose(trained.params, best, rtol=1e-11)


@pytest.mark.parametrize(
    ("dev_losses", "patience", "best", "epochs"),
    [
        ([5, 3, 4, 4, 4, 4], None, 1, 5),
        ([5, 3, 4, 4, 1], 2, 1, 3),  # epoch 4 would have been better
        ([1, 2, 3, 4], 2, 0, 2),  # the start is the best
        ([3, 3, 3, 3], 2, 0, 2),  # an equal loss is not lower
    ],
)
def test_the_parameters_are_those_of_the_best_epoch_and_patience_ends_the_run(dev_losses, patience, best, epochs):
    seen = []

    def evaluate(w):
        seen.append(np.array(w))
        return dev_losses[len(seen) - 1]

    trained = train(**quadratic(evaluate=evaluate, epochs=len(dev_losses) - 1, patience=patience))
    assert (trained.best_epoch, trained.epochs) == (best, epochs)
    assert [entry["dev_loss"] for entry in trained.history] == dev_losses[: epochs + 1]
    np.testing.assert_array_equal(trained.params, seen[best])


@pytest.mark.parametrize("where", ["batch", "step", "evaluate", "on_epoch", "progress"])
def test_a_run_interrupted_anywhere_ends_as_if_it_had_not_been(where, uninterrupted, tmp_path):
    for calls in (0, 36, 30) if where == "batch" else (0, 1, 2):  # losses are checked after 16 and 32 steps of an epoch
        arguments = quadratic(checkpoints=tmp_path, on_epoch=lambda entry: None, progress=lambda done, total: None)
        interrupt(arguments, where, calls)
    same(train(**quadratic(checkpoints=tmp_path)), uninterrupted)


def forbidden(*arguments):
    raise AssertionError("a finished run has nothing left to do")


def test_more_epochs_are_a_longer_run_and_a_finished_one_trains_no_further(uninterrupted, tmp_path):
    for epochs in (1, 2):
        assert train(**quadratic(checkpoints=tmp_path, epochs=epochs)).epochs == epochs
    finished = train(**quadratic(checkpoints=tmp_path))
    same(finished, uninterrupted)
    idle = {"step": forbidden, "batch": forbidden, "evaluate": forbidden, "on_epoch": forbidden}
    for epochs in (EPOCHS, 1):  # epochs at most, and these are trained
        again = train(**quadratic(checkpoints=tmp_path, epochs=epochs, **idle))
        same(again, finished)
        assert again.seconds == finished.seconds


def test_a_loss_that_is_not_finite_names_epoch_and_step():
    steps = itertools.count()

    def batch(examples):
        return A[examples], Y[examples] + (np.inf if next(steps) == SIZE + 36 else 0)

    with pytest.raises(FloatingPointError, match="loss inf at epoch 2, step 36: lower the learning rate"):
        train(**quadratic(batch=batch))
    for dev_losses, words in (([np.nan], "0: start from other parameters"), ([3.0, np.inf], "1: lower the learning rate")):
        with pytest.raises(FloatingPointError, match=f"dev loss .* after epoch {words}"):
            train(**quadratic(evaluate=functools.partial(lambda given, w: next(given), iter(dev_losses))))


def test_nothing_to_do_and_an_order_of_the_wrong_length_are_refused():
    for name, value in (("batch_size", -1), ("epochs", 0), ("size", 0)):
        refused(f"{value}.* all must be at least 1", train, **quadratic(**{name: value}, evaluate=forbidden))
    refused(f"an order of 3 examples in epoch 1, of {SIZE}", train, **quadratic(order=lambda seed, epoch: np.arange(3)))


def test_shorter_epochs_go_through_all_examples():
    order = functools.partial(epoch_order, size=10)
    shorter = shorter_epochs(order, 10, 3)
    parts = [shorter(0, epoch) for epoch in range(1, 7)]
    np.testing.assert_array_equal(np.concatenate(parts[:3]), order(0, 1)[:9])  # the tenth waits for another order
    np.testing.assert_array_equal(np.concatenate(parts[3:]), order(0, 2)[:9])
    np.testing.assert_array_equal(shorter_epochs(order, 10, 10)(0, 2), order(0, 2))
