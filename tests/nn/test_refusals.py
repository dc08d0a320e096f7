"""What jexplicit.nn refuses: one table of calls with parts of their messages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from jexplicit.nn.diagnostics import hockey_stick
from jexplicit.nn.networks import FullyConnected, init_variables
from jexplicit.nn.optimizers import make_optimizer, make_schedule, optax_optimizer
from jexplicit.nn.parts.activations import activation
from jexplicit.nn.parts.initializers import initializer
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.samplers import sampler, shorter_epochs
from jexplicit.nn.steps import scorer
from jexplicit.nn.studies.autoencoders import (
    LinearAutoencoder,
    anomaly_auc,
    cluster_agreement,
    descend_linear,
    iterate_map,
    linear_autoencoder,
    off_span_gain,
    pseudo_inverse_autoencoder,
)
from jexplicit.nn.studies.checklist import one_example_verdict
from jexplicit.nn.studies.embeddings import embedding_map, nearest_neighbours
from jexplicit.nn.studies.gradient_noise import gradient_noise
from jexplicit.nn.studies.learning_rate import grid_search, pick_rate, sweep_schedule
from jexplicit.nn.studies.trajectories import SURFACES, trajectory

KEY, X, C = jax.random.key(0), jnp.asarray(np.random.default_rng(0).normal(size=(20, 6))), np.eye(40)
SQUARE = LinearAutoencoder(jnp.eye(6), jnp.eye(6))
NETWORK: Any = FullyConnected


def noise(sizes, scale=1.0):
    return gradient_noise(lambda w, x, y: scale * jnp.sum(w * x), jnp.ones(6), X, X, KEY, sizes=sizes)


REFUSALS = [
    (lambda: activation("gelu"), "activation 'gelu': choose one of relu"),
    (lambda: initializer("orthogonal", "relu"), "'orthogonal': choose one of glorot_normal"),
    (lambda: initializer("he_normal", "gelu"), "'gelu': choose one of"),
    (lambda: objective("hinge"), "'hinge': choose one of squared_error"),
    (lambda: make_optimizer("lion", 0.1), "'lion': choose one of sgd"),
    (lambda: optax_optimizer("lbfgs", 0.1), "optimizer 'lbfgs': optax has no plain optimiser of this name; try adagrad"),
    (lambda: make_schedule("warm", 0.1, 10), "'warm': choose one of constant"),
    (lambda: make_schedule("cosine", 0.0, 10), "both must be positive"),
    (lambda: make_schedule("cosine", float("nan"), 10), "both must be positive"),
    (lambda: make_schedule("cosine", 0.1, 0), "both must be positive"),
    (lambda: sampler("uniform", np.zeros(0, int)), "no examples"),
    (lambda: sampler("random", np.zeros(3, int)), "'random': choose one of round-robin"),
    (lambda: shorter_epochs(sampler("uniform", np.zeros(10, int)), 10, 0), "epochs of 0 examples, of 10"),
    (lambda: shorter_epochs(sampler("uniform", np.zeros(10, int)), 10, 11), "epochs of 11 examples, of 10"),
    (lambda: init_variables(NETWORK((2,), 1), KEY, np.zeros((0, 3))), "at least one example and one feature"),
    (lambda: init_variables(NETWORK((2,), 1), KEY, np.zeros((3, 0))), "at least one example and one feature"),
    (lambda: init_variables(NETWORK((3,), 2, norm="instance"), KEY, np.ones((1, 4), np.float32)), "'instance'"),
    (lambda: scorer(NETWORK((), 1), objective("squared_error"))({}, X[:0], X[:0]), "no examples"),
    (lambda: hockey_stick(1.0, 1), "at least 2 outputs"),
    (lambda: hockey_stick(np.nan, 3), "at least 2 outputs"),
    (lambda: one_example_verdict([], input_norm=1.0, gradient_norm=1.0, bias=False), "no losses"),
    (lambda: sweep_schedule(0.0, 1.0, 10), "0 < lowest < highest"),
    (lambda: sweep_schedule(1.0, 0.1, 10), "0 < lowest < highest"),
    (lambda: sweep_schedule(0.1, 1.0, 1), "2 or more steps"),
    (lambda: sweep_schedule(0.1, np.inf, 5), "0 < lowest < highest"),
    (lambda: pick_rate(np.array([0.1, 1.0]), np.full(2, np.inf)), "start the sweep at a lower rate"),
    (lambda: grid_search(lambda rate: rate, np.array([])), "at least one, all positive"),
    (lambda: grid_search(lambda rate: rate, np.array([0.0, 0.1])), "at least one, all positive"),
    (lambda: grid_search(lambda rate: rate * jnp.inf, np.array([0.6, 0.9])), "every rate from 0.6 to 0.9 diverged"),
    (lambda: trajectory(make_optimizer("sgd", 0.1), SURFACES["ravine"], -1), "-1 steps"),
    (lambda: nearest_neighbours(C, np.array([0]), 0), "0 neighbours of tokens, of 40"),
    (lambda: nearest_neighbours(C, np.array([0]), 40), "40 neighbours of tokens, of 40"),
    (lambda: embedding_map(C[:3]), "a map of 3 tokens"),
    (lambda: noise([0]), "of 20 examples: use 1 .. 20"),
    (lambda: noise([21]), "of 20 examples: use 1 .. 20"),
    (lambda: noise([]), "of 20 examples: use 1 .. 20"),
    (lambda: noise([1], scale=0.0), "is 0"),
    (lambda: linear_autoencoder(X, 0), "width 0 for 20 examples of 6 features"),
    (lambda: linear_autoencoder(X, 7), "width 7 for 20 examples of 6 features"),
    (lambda: pseudo_inverse_autoencoder(X[:0]), "at least one"),
    (lambda: descend_linear(SQUARE, X[:3], -1), "-1 steps"),
    (lambda: descend_linear(SQUARE, 0 * X[:3], 1), "examples that are not 0"),
    (lambda: off_span_gain(SQUARE, X), "span all 6 dimensions"),
    (lambda: iterate_map(jnp.tanh, X, -1), "-1 iterations"),
    (lambda: anomaly_auc(X[:, 0], X[:0, 0]), "at least one of each"),
    (lambda: cluster_agreement(np.eye(2), np.arange(2), clusters=3, seed=0), "3 clusters of 2 examples"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[f"{n} {message}" for n, (_, message) in enumerate(REFUSALS)])
def test_refused_with_the_remedy(call, message):
    with pytest.raises((ValueError, TypeCheckError)) as refused:  # types say so first where they are checked
        call()
    assert message in str(refused.value)
