"""What jexplicit.nn refuses: one table of calls with parts of their messages."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import TypeCheckError
from tables import refuse

from jexplicit.nn import networks as studies
from jexplicit.nn.networks import FullyConnected, activation, init_variables, initializer, scorer
from jexplicit.nn.training import epoch_order, make_optimizer, make_schedule, objective, optax_optimizer, shorter_epochs


def refusals() -> tuple[list[tuple[Callable[[], Any], str]], ...]:
    """Calls, and parts of their messages: those refused at once, and those refused for what is computed."""
    KEY, X = jax.random.key(0), jax.device_put(np.random.default_rng(0).normal(size=(20, 6)))
    NONE = jax.device_put(np.ones((0, 6)))
    NETWORK: Any = FullyConnected
    ORDER = functools.partial(epoch_order, size=10)

    at_once: list[tuple[Callable[[], Any], str]] = [
        (lambda: activation("gelu"), "activation 'gelu': choose one of relu"),
        (lambda: initializer("orthogonal", "relu"), "'orthogonal': choose one of glorot_normal"),
        (lambda: initializer("he_normal", "gelu"), "'gelu': choose one of"),
        (lambda: objective("hinge"), "'hinge': choose one of squared_error"),
        (lambda: make_optimizer("lion", 0.1), "'lion': choose one of sgd"),
        (lambda: make_schedule("warm", 0.1, 10), "'warm': choose one of constant"),
        (lambda: make_schedule("cosine", 0.0, 10), "both must be positive"),
        (lambda: make_schedule("cosine", float("nan"), 10), "both must be positive"),
        (lambda: make_schedule("cosine", 0.1, 0), "both must be positive"),
        (lambda: shorter_epochs(ORDER, 10, 0), "epochs of 0 examples, of 10"),
        (lambda: shorter_epochs(ORDER, 10, 11), "epochs of 11 examples, of 10"),
        (lambda: init_variables(NETWORK((2,), 1), KEY, np.zeros((0, 3))), "at least one example and one feature"),
        (lambda: init_variables(NETWORK((2,), 1), KEY, np.zeros((3, 0))), "at least one example and one feature"),
        (lambda: init_variables(NETWORK((3,), 2, norm="instance"), KEY, np.ones((1, 4), np.float32)), "'instance'"),
        (lambda: scorer(NETWORK((), 1), objective("squared_error"))({}, NONE, NONE), "no examples"),
        (lambda: studies.linear_autoencoder(X, 0), "width 0 for 20 examples of 6 features"),
        (lambda: studies.linear_autoencoder(X, 7), "width 7 for 20 examples of 6 features"),
        (lambda: studies.iterate_map(jnp.tanh, X, -1), "-1 iterations"),
        (lambda: studies.anomaly_auc(jax.device_put(np.ones(20)), jax.device_put(np.ones(0))), "at least one of each"),
    ]
    computed: list[tuple[Callable[[], Any], str]] = [
        (lambda: optax_optimizer("chain", 0.1), "optimizer 'chain': optax has no plain optimiser of this name; try adagrad"),
    ]
    return at_once, computed


def test_refused_with_the_remedy():
    for rows, of_values in zip(refusals(), (False, True), strict=True):
        named = ((re.escape(message), call) for call, message in rows)
        refuse(named, errors=(ValueError, TypeCheckError), of_values=of_values)  # types say so first where they are checked
