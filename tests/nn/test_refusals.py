"""Calls that jexplicit.nn refuses, with parts of their messages."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import TypeCheckError
from tables import refuse

from jexplicit.nn import networks
from jexplicit.nn.networks import FullyConnected, activation, init_variables, initializer, scorer
from jexplicit.nn.training import epoch_order, make_optimizer, make_schedule, objective, optax_optimizer, shorter_epochs


def test_refused_with_the_remedy():
    key, X, none = jax.random.key(0), jax.device_put(np.ones((20, 6))), jax.device_put(np.ones((0, 6)))
    network: Any = FullyConnected
    order = functools.partial(epoch_order, size=10)
    rows = [
        ("activation 'gelu': choose one of relu", lambda: activation("gelu")),
        ("'orthogonal': choose one of glorot_normal", lambda: initializer("orthogonal", "relu")),
        ("'gelu': choose one of", lambda: initializer("he_normal", "gelu")),
        ("'hinge': choose one of squared_error", lambda: objective("hinge")),
        ("'lion': choose one of sgd", lambda: make_optimizer("lion", 0.1)),
        ("'warm': choose one of constant", lambda: make_schedule("warm", 0.1, 10)),
        *(
            ("both must be positive", lambda x=x: make_schedule("cosine", *x))
            for x in ((0.0, 10), (float("nan"), 10), (0.1, 0))
        ),
        *((f"epochs of {n} examples, of 10", lambda n=n: shorter_epochs(order, 10, n)) for n in (0, 11)),
        *(
            ("at least one example and one feature", lambda shape=shape: init_variables(network((2,), 1), key, np.zeros(shape)))
            for shape in ((0, 3), (3, 0))
        ),
        ("'instance'", lambda: init_variables(network((3,), 2, norm="instance"), key, np.ones((1, 4), np.float32))),
        ("no examples", lambda: scorer(network((), 1), objective("squared_error"))({}, none, none)),
        *((f"width {k} for 20 examples of 6", lambda k=k: networks.linear_autoencoder(X, k)) for k in (0, 7)),
        ("-1 iterations", lambda: networks.iterate_map(jnp.tanh, X, -1)),
        ("at least one of each", lambda: networks.anomaly_auc(*jax.device_put((np.ones(20), np.ones(0))))),
    ]
    named = [(re.escape(message), call) for message, call in rows]
    refuse(named, errors=(ValueError, TypeCheckError))  # types say so first where they are checked
    plain = "optimizer 'chain': optax has no plain optimiser of this name; try adagrad"
    refuse([(plain, lambda: optax_optimizer("chain", 0.1))], of_values=True)
