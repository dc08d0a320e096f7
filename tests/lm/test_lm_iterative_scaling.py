"""Iterative scaling: sweeps by a slow loop, what they must gain, and the minimum that SciPy finds.

Tolerances: a sweep is a logarithm of sums of at most 300 numbers in float64, 1e-11; a mean loss may rise by rounding, 1e-14.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from interruption import resumed_after
from reference import (
    cooccurrences,
    features,
    log_softmax,
    noisy_embedding,
    random_documents,
    scaling_sweep_of_pairs_that_occur,
    stream_of,
    sweep_near,
    windows,
)

from jexplicit import evaluate
from jexplicit.lm import explicit_language_model
from jexplicit.lm.core.model import token_model
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.iterative_scaling import sweep_tables
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import data_mesh

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = random_documents(5, 25, N, 14)
STREAM = stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 4, N))
TEXT = TrainingText(STREAM, N, counts=COUNTS)


def explicit(kind, K, *, noise=True, dtype=jnp.float64, eos=False):
    return explicit_language_model(COUNTS, features=kind, radius=K, noise=noise, dtype=dtype, eos=eos)


def blocks(model):
    return [np.asarray(U) for U in (model.tables[:1] if model.features == "sum" else model.tables)]


def near(model, **options):
    return sweep_tables(model, TEXT, noise=False, **options)


WEIGHTS = np.random.default_rng(5).uniform(0, 1, (2, N)) * np.array([[1], [0.5]])  # of Sum's offsets and tokens


def attentive():
    """Sum's table, which each offset weighs."""
    (V,) = blocks(explicit("sum", 2, eos=True))
    return token_model([jax.device_put(w[:, None] * V) for w in WEIGHTS], "sum", True)


def test_a_sweep_without_noise_is_the_loop_over_positions_and_gains_what_it_promises():
    for kind, K, eos in (("sum", 2, True), ("cat", 4, False)):
        model, (X, Y) = explicit(kind, K, eos=eos), windows(DOCUMENTS, K, eos=eos)
        H, U = features(X, np.eye(N), kind), np.concatenate(blocks(model))
        swept = near(model, sweeps=1)
        moved = np.concatenate(blocks(swept.model))
        np.testing.assert_allclose(moved, scaling_sweep_of_pairs_that_occur(H, U, Y, K), rtol=0, atol=1e-11)
        F, E = H.T @ np.eye(N)[Y], H.T @ np.exp([log_softmax(row) for row in H @ U])
        np.testing.assert_array_equal(moved[F == 0], U[F == 0])
        F, E = F[F > 0], E[F > 0]
        promised = (F * np.log(F / E) - F + E).sum() / K  # what a sweep gains at least
        assert len(Y) * (swept.losses[0] - swept.losses[1]) >= promised * (1 - 1e-12) - 1e-12 and promised >= 0
        assert (swept.model.features, swept.model.radius, swept.model.eos) == (kind, K, eos)
    E, rng = noisy_embedding(np.bincount(STREAM[1:], minlength=N)), np.random.default_rng(0)  # and with noisy features
    for kind, K in (("sum", 2), ("cat", 4)):
        U = [rng.normal(size=(N, N)) for _ in range(1 if kind == "sum" else K)]
        tables = tuple(jax.device_put(E @ U_b) for U_b in U)
        X, Y = windows(DOCUMENTS, K)
        expected = scaling_sweep_of_pairs_that_occur(features(X, E, kind), np.concatenate(U), Y, K)
        swept = sweep_tables(token_model(tables * (K // len(tables)), kind, False), TEXT, sweeps=1)
        for read, U_b in zip(blocks(swept.model), np.split(expected, len(U)), strict=True):
            np.testing.assert_allclose(read, E @ U_b, rtol=0, atol=1e-11)


def test_sweeps_with_a_prior_are_the_loop_over_positions_also_of_one_weighted_table():
    for kind, K in (("sum", 2), ("cat", 4)):
        start, (X, Y) = explicit(kind, K, eos=True), windows(DOCUMENTS, K, eos=True)
        H, U0 = features(X, np.eye(N), kind), np.concatenate(blocks(start))
        once = sweep_near(H, U0, Y, K, 0.7, U0)
        for sweeps, expected in ((1, once), (2, sweep_near(H, once, Y, K, 0.7, U0))):
            moved = np.concatenate(blocks(near(start, sweeps=sweeps, discount=0.7).model))
            np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-11)
        assert (once > U0).any() and (once < U0).any() and (once == U0).any()
    (V,), (X, Y) = blocks(explicit("sum", 2, eos=True)), windows(DOCUMENTS, 2, eos=True)
    # F and E weigh every pair by its offset's w(j): features of norms up to C
    H = np.array([sum(w[j] * np.eye(N)[j] for w, j in zip(WEIGHTS, x, strict=True)) for x in X])
    C = H.sum(axis=1).max()
    for discount, moved in ((0.0, scaling_sweep_of_pairs_that_occur(H, V, Y, C)), (0.7, sweep_near(H, V, Y, C, 0.7, V))):
        swept = near(attentive(), sweeps=1, discount=discount, weights=WEIGHTS).model
        for table, w in zip(swept.tables, WEIGHTS, strict=True):
            np.testing.assert_allclose(table, w[:, None] * moved, rtol=0, atol=1e-10)
        assert swept.features == "sum" and np.abs(moved - V).max() > 0.1


@pytest.mark.parametrize("kind", ["sum", "cat", "impossible", "weighted"])
def test_every_sweep_lowers_the_loss_with_its_penalty_on_any_devices(kind):
    """From the explicit solution with and without noise, with a prior, and with weights."""
    model, options = {
        "sum": (explicit("sum", 2), {}),
        "cat": (explicit("cat", 4), {"noise": False, "discount": 0.7}),
        "impossible": (explicit("cat", 2, noise=False), {"noise": False}),
        "weighted": (attentive(), {"noise": False, "discount": 0.7, "weights": WEIGHTS}),
    }[kind]
    swept, met = sweep_tables(model, TEXT, sweeps=25, **options), []
    total = swept.losses
    assert len(total) == 26 and (swept.penalty > 0) == ("discount" in options)
    assert np.all(np.diff(total) < 1e-14) and total[-1] < total[0] - 1e-4
    if kind == "impossible":
        np.testing.assert_array_equal(np.isneginf(swept.model.tables[0])[:, 1:], COUNTS[0][:, 1:] == 0)

    def on_sweep(sweep, loss, model):
        met.append((sweep, loss, evaluate(model, STREAM).loss))
        return sweep == 3  # it ends where it is told to

    spread = TrainingText(STREAM, N, counts=COUNTS, mesh=data_mesh(8))
    other = sweep_tables(model, spread, sweeps=9, chunk=64, on_sweep=on_sweep, **options)
    np.testing.assert_allclose(other.losses, total[:4], rtol=1e-12)
    sweeps, losses, own = zip(*met, strict=True)
    assert sweeps == (0, 1, 2, 3) and ("discount" in options or list(losses) == other.losses.tolist())
    np.testing.assert_allclose(own, losses, rtol=1e-12)  # those of the models on the way


def test_sweeps_with_a_prior_reach_the_minimum_that_scipy_finds():
    """L-BFGS-B on `U = U0 + a - b` with a, b >= 0; both stop within 1e-6 nats of the minimum."""
    K, D = 2, 0.7
    start, (X, Y) = explicit("cat", K, eos=True), windows(DOCUMENTS, K, eos=True)
    swept = near(start, sweeps=1000, discount=D)
    H, U0 = features(X, np.eye(N), "cat"), np.concatenate(blocks(start))
    F = H.T @ np.eye(N)[Y]

    def objective(flat):
        a, b = flat.reshape(2, *U0.shape)
        log_p = scipy.special.log_softmax(H @ (U0 + a - b), axis=1)
        gradient = H.T @ np.exp(log_p) - F
        loss = D * flat.sum() - log_p[np.arange(len(Y)), Y].sum()
        return loss / len(Y), (D + np.stack([gradient, -gradient])).ravel() / len(Y)

    options, size = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-14, "gtol": 1e-9}, 2 * U0.size
    found = scipy.optimize.minimize(objective, np.zeros(size), jac=True, bounds=[(0, None)] * size, options=options)
    np.testing.assert_allclose(swept.losses[-1], found.fun, rtol=0, atol=1e-6)
    E = H.T @ np.exp([log_softmax(row) for row in H @ np.concatenate(blocks(swept.model))])
    assert np.all(np.abs(E - F) < D * 1.02)  # the minimum has |E - F| <= D, approached linearly


def test_float32_tables_stay_float32_and_interrupted_sweeps_go_on_bit_for_bit(tmp_path):
    exact, single = (sweep_tables(explicit("cat", 2, dtype=dtype), TEXT, sweeps=5) for dtype in (jnp.float64, jnp.float32))
    assert all(U.dtype == jnp.float32 for U in single.model.tables)
    np.testing.assert_allclose(single.losses, exact.losses, rtol=2e-6)  # 16 eps
    met = []

    def run(on_sweep=lambda sweep, *_: met.append(sweep), **saving):
        return near(explicit("cat", 2), sweeps=5, discount=0.7, on_sweep=on_sweep, **saving)

    whole, resumed = run(lambda *_: None), resumed_after(4, run, tmp_path / "sweeps", "on_sweep")
    assert met == [3, 4, 5]
    assert resumed.losses.tolist() == whole.losses.tolist() and resumed.penalty == whole.penalty
    np.testing.assert_array_equal(blocks(resumed.model), blocks(whole.model))


@pytest.mark.slow
@pytest.mark.parametrize("features, K", [("sum", 2), ("cat", 4)])
def test_the_fit_ends_no_higher_than_the_log_linear_model_on_held_out_text(features, K):
    """By name: it starts from the exponents of the log-linear fit, and takes as many sweeps as documents left out like best."""
    events: list[dict] = []
    options, rng = Options(features=features, radius=K, sweeps=6, calibration_positions=300), np.random.default_rng(0)
    stream = np.concatenate([[0], *([*rng.integers(1, 6, 9), 0] for _ in range(60))]).astype(np.uint8)
    stream[2:-1:3] = (stream[1:-2:3] + 1) % 6  # something to learn
    text = TrainingText(stream, N, eos=True)
    log_linear = fit_model("log-linear", text, options)
    fitted = fit_model("iterative-scaling", text, options, Watch(log=lambda **event: events.append(event)))
    (curve,) = [event["perplexities"] for event in events if event["event"] == "held_out_sweeps"]
    best = int(np.argmin(curve))
    assert curve[0] == pytest.approx(log_linear.info["held_out_perplexity"], rel=0.2)  # of drawn positions, of all
    assert fitted.info["held_out_perplexity"] == min(curve) <= curve[0] and fitted.info["sweeps"] == best
    assert sorted(curve[: 1 + best], reverse=True) == curve[: 1 + best]
    known = Watch(events=lambda name: [event for event in events if event["event"] == name])
    again = fit_model("iterative-scaling", TrainingText(stream, N, eos=True), options, known)
    np.testing.assert_array_equal(again.model.tables[0], fitted.model.tables[0])
