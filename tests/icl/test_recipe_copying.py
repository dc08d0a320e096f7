"""docs/recipes/copying_and_waves.py: sensitivities and features by hand, the control is a step of descent, losses fall."""

import importlib.util
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from drawn import heads_of, random_layers
from reference import descent_step

import icl


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("recipe", Path(__file__).parents[2] / "docs/recipes/copying_and_waves.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sensitivities_are_norms_of_mean_gradients(recipe):
    layers, E = random_layers(1, 5, 2, 1, scale=1.0), np.random.default_rng(2).normal(size=(9, 5, 3))
    found = jax.jit(partial(recipe.sensitivities, softmax=True))(layers, jax.device_put(E.swapaxes(0, 1)))
    ((W_K, W_Q, W_V, P),) = heads_of(layers, 0)

    def sums(E):  # of the channels of the outputs that have a next token in the context
        scores = np.exp((E[:-1] @ W_K.T @ (E[:7] @ W_Q.T).T) / 5**0.5)
        return (E[:7] + (scores / scores.sum(axis=0)).T @ E[:-1] @ W_V.T @ P.T).sum(axis=1)

    steps = 1e-30j * np.eye(45).reshape(9, 5, 9, 5)  # imaginary parts are derivatives to rounding
    gradient = np.mean([[[sums(E[..., n] + step).imag for step in of_i] for of_i in steps] for n in range(3)], axis=0) / 1e-30
    norms = np.linalg.norm(gradient, axis=1)  # [inputs, outputs]
    of = {"own": np.eye(9, 7), "next": np.eye(9, 7, -1), "other": 1 - np.eye(9, 7) - np.eye(9, 7, -1)}
    expected = {what: np.average(norms, weights=which) for what, which in of.items()}
    assert {what: float(x) for what, x in found.items()} == pytest.approx(expected, rel=1e-10)


def test_the_control_is_a_step_of_descent_on_features(recipe):
    problem, keys = recipe.Waves(), jax.random.split(jax.random.key(0))
    weights = jax.tree.map(lambda W: 20 * W + 0.1, recipe.init_network(keys[0], attention=False)[0])
    y = jax.jit(problem.predict)((weights, None), batch := problem.sample(keys[1], 3))
    tokens = np.concatenate([np.stack([batch.X[:, 0], batch.Y[:, 0]]), np.stack([batch.x_q, 0 * batch.y_q])], axis=1)
    phi = np.asarray(jax.jit(recipe.features)(weights, jax.device_put(tokens)))  # [C, N + 1, tasks]
    for n in range(3):
        X, Y, q = phi[:-1, :-1, n].T, phi[-1:, :-1, n].T, phi[:, -1, n]
        assert float(y[0, n]) == pytest.approx(-q[-1] + (descent_step(np.zeros((1, 39)), X, Y, 0.1) @ q[:-1])[0], rel=1e-10)


def test_both_learn(recipe, monkeypatch):
    monkeypatch.setattr(recipe, "fresh", lambda problem, stream, size: problem.sample(jax.random.key(stream), 100))
    settings = icl.Recipe(64, 1e-2, gradient_clip=10, cooling="constant")
    layers = partial(icl.init_layers, width=2 + recipe.CODES, layers=2, scale=0.01)
    copying = recipe.Copying(icl.Tasks(dim=2, context=3), softmax=True, clip=10)
    for problem, init in ((copying, layers), (recipe.Waves(), partial(recipe.init_network, attention=True))):
        trained = recipe.train("small", problem, init, settings, 10, 1, recipe.fresh(problem, 0, 1))
        assert trained.curve.loss.iloc[-1] < trained.curve.loss.iloc[0] and trained.table.predictor.tolist() == ["small"]
