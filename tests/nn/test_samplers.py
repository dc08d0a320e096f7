"""Samplers: coverage of an epoch, balance of classes, and that an order depends on (seed, epoch) alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.nn.parts.names import SamplerName
from jexplicit.nn.training import sampler, shorter_epochs, train

LABELS = np.repeat([0, 1, 2], [70, 20, 10])


@pytest.mark.parametrize("name", SamplerName.__args__)
def test_an_order_depends_on_seed_and_epoch_alone(name):
    order = sampler(name, LABELS)
    np.testing.assert_array_equal(order(3, 1), sampler(name, LABELS)(3, 1))
    assert len(order(3, 1)) == len(LABELS) and 0 <= order(3, 1).min() and order(3, 1).max() < len(LABELS)
    for other in (order(3, 2), order(4, 1)):
        assert (other != order(3, 1)).any()


def test_round_robin_visits_every_example_once():
    np.testing.assert_array_equal(np.sort(sampler("round-robin", LABELS)(0, 1)), np.arange(100))


def test_uniform_sampling_misses_about_one_example_in_e():
    order = sampler("uniform", np.zeros(10_000, int))
    missed = 1 - len(np.unique(order(0, 1))) / 10_000
    assert missed == pytest.approx(np.exp(-1), abs=0.02)  # standard deviation 0.003


def test_balanced_sampling_draws_every_class_alike():
    order = sampler("balanced", LABELS)
    drawn = order(0, 1)
    np.testing.assert_array_equal(np.sort(np.bincount(LABELS[drawn])), [33, 33, 34])
    for c in range(3):  # within a class no example is drawn twice more than another
        times = np.bincount(drawn, minlength=100)[LABELS == c]
        assert times.max() - times.min() <= 1
    halves = np.bincount(LABELS[drawn[:50]], minlength=3)
    assert halves.min() > 5  # mixed, not sorted by class
    np.testing.assert_array_equal(np.sort(sampler("balanced", np.full(8, 4))(0, 1)), np.arange(8))  # a single class
    assert len(sampler("balanced", np.arange(5))(0, 1)) == 5


def test_the_training_loop_draws_in_the_sampler_s_order():
    seen: list[int] = []

    def batch(examples):
        seen.extend(examples.tolist())
        return jnp.ones(())

    arguments = {"params": lambda state: state, "size": 100, "batch_size": 30, "epochs": 2, "seed": 5}
    order = sampler("balanced", LABELS)
    train(np.zeros(1), lambda state, loss: (state, loss), batch, lambda _: 1.0, order=order, **arguments)
    np.testing.assert_array_equal(seen, np.concatenate([order(5, 1), order(5, 2)]))
    with pytest.raises(ValueError, match="an order of 3 examples in epoch 1, of 100"):
        train(np.zeros(1), lambda s, loss: (s, loss), batch, lambda _: 1.0, order=lambda s, e: np.arange(3), **arguments)


def test_shorter_epochs_go_through_all_examples():
    order = sampler("round-robin", np.zeros(10, int))
    shorter = shorter_epochs(order, 10, 3)
    parts = [shorter(0, epoch) for epoch in range(1, 7)]
    np.testing.assert_array_equal(np.concatenate(parts[:3]), order(0, 1)[:9])  # the tenth waits for another order
    np.testing.assert_array_equal(np.concatenate(parts[3:]), order(0, 2)[:9])
    np.testing.assert_array_equal(shorter_epochs(order, 10, 10)(0, 2), order(0, 2))
