"""What jexplicit.solvers refuses: calls with parts of their messages, which name the value or the remedy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from reference import one_hot
from tables import refuse

from jexplicit.solvers.explicit import (
    SoftmaxLayer,
    dense_cooccurrence,
    explicit_solution,
    fit_delta,
    priming_scan,
    solve_layers,
)
from jexplicit.solvers.metrics import calibration_error, fit_temperature
from jexplicit.solvers.sweeps import (
    curvature_bound_sweeps,
    gram_least_squares,
    gram_matrix,
    iterative_scaling_sweeps,
    split_examples,
)

M, D, N = 12, 3, 2


def refusals() -> tuple[list[tuple[Callable[[], Any], str]], ...]:
    """Calls, and parts of their messages: those refused at once, and those refused for values on a device."""
    device = jax.device_put
    LABELS = np.arange(M) % N
    targets = one_hot(LABELS, N).astype("f4")
    features = (np.random.default_rng(0).gamma(1.0, 1.0, (M, D)) + 0.05).astype("f4")
    H, Y = device(features), device(targets)
    counts = features.T @ targets
    F, U = device(counts), device(np.zeros((D, N), "f4"))
    UNSEEN = device(counts * np.array([1, 0], "f4"))
    FEW = device(np.array([0.0, 1.0]))  # counts of two outputs

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
        return fit_delta(lambda x: x, device(np.zeros((n, 2))), device(np.ones(n)), device(np.ones(n, int)), FEW)

    at_once: list[tuple[Callable[[], Any], str]] = [
        *((lambda K=K: explicit_solution(F, K), f"priming number K = {K}.*rescale the features") for K in (0.5, -1, np.nan)),
        (lambda: solve_layers(H, Y, []), "no layer"),
        (lambda: least_squares(Y=targets[:-1]), "give equally many of both"),
        (lambda: least_squares(block=0), "blocks of 0"),
        (lambda: fit_temperature(device(np.zeros((0, 2))), device(np.zeros(0, int))), "0 examples"),
        (lambda: calibration_error(device(np.zeros((1, 2))), device(np.zeros(1, int)), bins=0), "0 bins"),
        (lambda: delta_of(0), "no examples"),
    ]
    of_values: list[tuple[Callable[[], Any], str]] = [
        (lambda: solve_layers(H, Y, [SoftmaxLayer(K=0.5)]), "K = 0.5"),
        (lambda: explicit_solution((F, changed(F, np.s_[2, 1], np.nan)), 2), "with the value nan"),
        (lambda: explicit_solution((F, changed(F, np.s_[2, 1], np.inf)), 2), "with the value inf"),
        (lambda: explicit_solution(UNSEEN, 2.0), "output 1 never.*with_unseen_outputs"),
        (lambda: dense_cooccurrence(changed(H, np.s_[3, 2], np.nan), Y), r"features between.*nan.*relu\(-x\)"),
        (lambda: bound(ridge=0.0), "ridge 0.0"),
        (lambda: bound(U=device(np.zeros((2, N), "f4"))), r"U \(2, 2\)"),
        (lambda: bound(X=changed(H, np.s_[0, 0], np.nan)), "cannot be factorised.*finite"),
        (lambda: bound(sweeps=-1), "-1 sweeps"),
        (lambda: scaling(H=device(-features)), "split signed features"),
        (lambda: scaling(sweeps=-1), "-1 sweeps"),
        (lambda: scaling(U=device(np.zeros((2, N), "f4"))), r"U \(2, 2\)"),
        (lambda: scaling(H=changed(H, np.s_[1::N, 2], 0.0)), "feature 2 never co-occurs with output 1"),
        (lambda: scaling(U=changed(U, np.s_[0, 0], np.nan)), "finite parameters"),
        (lambda: priming_scan(H, F, device(LABELS), device(np.array([0.5, 3.0], "f4"))), "between 0.5 and 3.0"),
        *((lambda ridge=ridge: least_squares(ridge=ridge), f"ridge {ridge}") for ridge in (0, np.nan)),
        (
            lambda: least_squares(X=changed(H, np.s_[3, 2], np.inf)),
            "cannot be factorised with ridge 0.0001: .* finite",
        ),
        (lambda: fit_temperature(device(np.array([[np.nan, 0.0]])), device(np.zeros(1, int))), "finite logits"),
        (lambda: delta_of(3), "no delta within"),
    ]
    return at_once, of_values


def test_what_does_not_fit_is_refused():
    for rows, of_values in zip(refusals(), (False, True), strict=True):
        refuse(((said, call) for call, said in rows), errors=(ValueError, FloatingPointError), of_values=of_values)
