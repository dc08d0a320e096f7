"""Calls that jexplicit.solvers refuses, with parts of their messages, which name the value or the remedy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from reference import one_hot
from tables import refuse

from jexplicit.solvers.explicit import (
    SoftmaxLayer,
    calibration_error,
    dense_cooccurrence,
    explicit_solution,
    fit_delta,
    fit_temperature,
    solve_layers,
)
from jexplicit.solvers.feature_machine import feature_machine
from jexplicit.solvers.sweeps import (
    curvature_bound_sweeps,
    gram_least_squares,
    gram_matrix,
    iterative_scaling_sweeps,
    split_examples,
)

M, D, N = 12, 3, 2


def refusals() -> tuple[list[tuple[str, Callable[[], Any]]], ...]:
    """Parts of messages, and calls: those refused at once, and those refused for values on a device."""
    device = jax.device_put
    targets = one_hot(np.arange(M) % N, N).astype("f4")
    features = (np.random.default_rng(0).gamma(1.0, 1.0, (M, D)) + 0.05).astype("f4")
    H, Y, F, U = map(device, (features, targets, features.T @ targets, np.zeros((D, N), "f4")))
    LOGITS, LABEL, SHORT = np.zeros((1, 2)), np.zeros(1, int), device(np.zeros((2, N), "f4"))

    def changed(array, at, value):
        array = np.array(array)
        array[at] = value
        return device(array)

    def least_squares(X=H, Y=Y, block=4096, ridge=1e-4):
        blocks = split_examples(np.asarray(X), np.asarray(Y), block=block)
        return gram_least_squares(gram_matrix(blocks, jax.tree_util.Partial(lambda X: X)), ridge=ridge)

    def scaling(H=H, U=U, sweeps=1):
        return iterative_scaling_sweeps(H, Y, U, sweeps=sweeps)

    def bound(X=H, U=U, sweeps=1, ridge=1e-4):
        return curvature_bound_sweeps(X, Y, U, sweeps=sweeps, ridge=ridge)

    def delta_of(n):
        return fit_delta(lambda x: x, *device((np.zeros((n, 2)), np.ones(n), np.ones(n, int), np.array([0.0, 1.0]))))

    def machine(X=H, solves=2, **options):
        return feature_machine(X, Y, solves=solves, **options)

    at_once: list[tuple[str, Callable[[], Any]]] = [
        *((f"priming number K = {K}.*rescale the features", lambda K=K: explicit_solution(F, K)) for K in (0.5, np.nan)),
        ("no layer", lambda: solve_layers(H, Y, [])),
        (r"features \(12, 3\), targets \(11, 2\)", lambda: least_squares(Y=targets[:-1])),
        ("blocks of 0", lambda: least_squares(block=0)),
        ("0 examples", lambda: fit_temperature(device(LOGITS[:0]), device(LABEL[:0]))),
        ("0 bins", lambda: calibration_error(device(LOGITS), device(LABEL), bins=0)),
        (r"features \(2, 2\), targets \(12, 2\): give \[M, D\] and \[M, N\]", lambda: machine(SHORT)),
    ]
    of_values: list[tuple[str, Callable[[], Any]]] = [
        ("K = 0.5", lambda: solve_layers(H, Y, [SoftmaxLayer(K=0.5)])),
        *((f"value {x}", lambda x=x: explicit_solution((F, changed(F, np.s_[2, 1], x)), 2)) for x in (np.nan, np.inf)),
        ("output 1 never.*with_unseen_outputs", lambda: explicit_solution(changed(F, np.s_[:, 1], 0), 2.0)),
        (r"features between.*nan.*relu\(-x\)", lambda: dense_cooccurrence(changed(H, np.s_[3, 2], np.nan), Y)),
        ("ridge 0.0", lambda: bound(ridge=0.0)),
        (r"U \(2, 2\)", lambda: bound(U=SHORT)),
        ("features that are not finite", lambda: bound(X=changed(H, np.s_[0, 0], np.nan))),
        ("-1 sweeps", lambda: bound(sweeps=-1)),
        ("split signed features", lambda: scaling(H=device(-features))),
        ("feature 2 never co-occurs with output 1", lambda: scaling(H=changed(H, np.s_[1::N, 2], 0.0))),
        ("finite parameters", lambda: scaling(U=changed(U, np.s_[0, 0], np.nan))),
        ("features that are not finite", lambda: least_squares(X=changed(H, np.s_[3, 2], np.inf))),
        ("factorised with ridge 1e-09: .* not constant", lambda: least_squares(X=np.ones((M, 2), "f4"), ridge=1e-9)),
        ("finite logits", lambda: fit_temperature(device(LOGITS * np.nan), device(LABEL))),
        ("no delta within", lambda: delta_of(3)),
        ("kernel 'cubic'.* quadratic or gaussian or laplace", lambda: machine(kernel="cubic")),
        ("power nan", lambda: machine(power=float("nan"))),
        ("0 landmarks: use .* numbers above 0", lambda: machine(landmarks=0)),
        ("solve . is not finite: use a ridge above", lambda: machine(device(1e30 * features))),
    ]
    return at_once, of_values


def test_calls_that_make_no_sense_are_refused():
    for rows, of_values in zip(refusals(), (False, True), strict=True):
        refuse(rows, errors=(ValueError, FloatingPointError), of_values=of_values)
