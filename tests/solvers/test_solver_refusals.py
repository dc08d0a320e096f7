"""What jexplicit.solvers refuses: calls with parts of their messages, which name the value or the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import one_hot

from jexplicit.solvers.calibration import calibration_error, fit_temperature
from jexplicit.solvers.curvature_bound import curvature_bound_sweeps
from jexplicit.solvers.explicit import check_cooccurrences, dense_cooccurrence, explicit_solution
from jexplicit.solvers.frequency_exponent import fit_delta
from jexplicit.solvers.gram import gram_matrix, split_examples
from jexplicit.solvers.iterative_scaling import iterative_scaling_sweeps
from jexplicit.solvers.layerwise import SoftmaxLayer, solve_layers
from jexplicit.solvers.priming import priming_scan
from jexplicit.solvers.streamed import gram_least_squares

M, D, N = 30, 6, 3
LABELS = np.arange(M) % N
H = jnp.asarray(np.random.default_rng(0).gamma(1.0, 1.0, (M, D)) + 0.05)
Y = jnp.asarray(one_hot(LABELS, N))
F, U = H.T @ Y, jnp.zeros((D, N))
UNSEEN = F.at[:, 2].set(0.0)
FEW = jnp.array([0.0, 1.0])  # counts of two outputs


def least_squares(X=H, Y=Y, block=9, ridge=1e-4):
    blocks = split_examples(np.asarray(X), np.asarray(Y), block=block)
    return gram_least_squares(gram_matrix(blocks, jax.tree_util.Partial(lambda X: X)), ridge=ridge)


def scaling(H=H, U=U, sweeps=1):
    return iterative_scaling_sweeps(H, Y, U, sweeps=sweeps)


def bound(X=H, U=U, sweeps=1, ridge=1e-4):
    return curvature_bound_sweeps(X, Y, U, sweeps=sweeps, ridge=ridge)


REFUSALS = [
    *((lambda K=K: explicit_solution(F, K), f"priming number K = {K}.*rescale the features") for K in (0.5, -1, np.nan)),
    *((lambda x=x: explicit_solution((F, F.at[3, 2].set(x)), 2), f"with the value {x}") for x in (-1.0, np.nan, np.inf)),
    *((lambda f=f: f(UNSEEN, 2.0), "output 2 never.*with_unseen_outputs") for f in (explicit_solution, check_cooccurrences)),
    *((lambda x=x: dense_cooccurrence(H.at[3, 2].set(x), Y), rf"features between.*{x}.*relu\(-x\)") for x in (-1.0, np.nan)),
    (lambda: bound(ridge=0.0), "ridge 0.0"),
    (lambda: bound(U=jnp.zeros((2, N))), r"U \(2, 3\)"),
    (lambda: bound(X=H.at[0, 0].set(jnp.nan)), "cannot be factorised.*finite"),
    (lambda: bound(sweeps=-1), "-1 sweeps"),
    (lambda: scaling(H=-H), "split signed features"),
    (lambda: scaling(sweeps=-1), "-1 sweeps"),
    (lambda: scaling(U=jnp.zeros((2, N))), r"U \(2, 3\)"),
    (lambda: scaling(H=H.at[1::N, 4].set(0.0)), "feature 4 never co-occurs with output 1"),
    (lambda: scaling(U=U.at[0, 0].set(jnp.nan)), "finite parameters"),
    (lambda: solve_layers(H, Y, []), "no layer"),
    (lambda: solve_layers(H, Y, [SoftmaxLayer(K=0.5)]), "K = 0.5"),
    (lambda: solve_layers(H, Y, [SoftmaxLayer(activation=lambda z: z - 100), SoftmaxLayer()]), "split signed features"),
    (lambda: priming_scan(H, F, jnp.asarray(LABELS), jnp.array([0.5, 3.0])), "between 0.5 and 3.0"),
    (lambda: priming_scan(H, F.at[1, 2].set(0.0), jnp.asarray(LABELS), jnp.array([2.0])), "co-occurrences between 0.0"),
    *((lambda ridge=ridge: least_squares(ridge=ridge), f"ridge {ridge}") for ridge in (0, np.nan)),
    (lambda: least_squares(X=H.at[3, 2].set(jnp.inf)), "cannot be factorised with ridge 0.0001: check that .*, are finite"),
    (lambda: least_squares(Y=Y[:-1]), "give equally many of both"),
    (lambda: least_squares(block=0), "blocks of 0"),
    (lambda: fit_temperature(jnp.zeros((0, 2)), jnp.zeros(0, int)), "0 examples"),
    (lambda: fit_temperature(jnp.array([[jnp.nan, 0.0]]), jnp.zeros(1, int)), "finite logits"),
    (lambda: calibration_error(jnp.zeros((1, 2)), jnp.zeros(1, int), bins=0), "0 bins"),
    (lambda: fit_delta(lambda x: x, jnp.zeros((3, 2)), jnp.ones(3), jnp.ones(3, int), FEW), "no delta within"),
    (lambda: fit_delta(lambda x: x, jnp.zeros((0, 2)), jnp.ones(0), jnp.ones(0, int), FEW), "no examples"),
]


@pytest.mark.parametrize("call, said", REFUSALS)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises((ValueError, FloatingPointError), match=said):
        call()
