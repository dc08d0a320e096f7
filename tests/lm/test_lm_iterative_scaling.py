"""Iterative scaling of a language model: one sweep by a slow loop, what a sweep must gain, and the known optimum.

Tolerances: a sweep is a logarithm of sums of at most 300 numbers in float64, 1e-11; a mean loss may rise by rounding, 1e-14.
Sweeps approach the optimum linearly, and the loss there is quadratic in the distance.
"""

import functools
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
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
from scipy.optimize import minimize

from jexplicit import contexts, evaluate
from jexplicit.lm import explicit_language_model
from jexplicit.lm.core.model import token_model
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.fits.iterative_scaling import kneser_ney_discount, sweep_tables
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import data_mesh

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = random_documents(5, 25, N, 14)
STREAM = stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 4, N))
TEXT = TrainingText(STREAM, N, counts=COUNTS)

KINDS = pytest.mark.parametrize("kind", ["sum", "cat"])
SLOW = pytest.mark.slow


def explicit(kind, K, *, noise=True, dtype=jnp.float64, eos=False):
    return explicit_language_model(COUNTS, features=kind, radius=K, noise=noise, dtype=dtype, eos=eos)


def blocks(model):
    return [np.asarray(U) for U in (model.tables[:1] if model.features == "sum" else model.tables)]


@functools.cache
def dense_text():
    """A text of three tokens and ends of documents that occur with one another at both offsets."""
    rng = np.random.default_rng(3)
    return TrainingText(stream_of([rng.integers(1, 4, rng.integers(1, 7)).tolist() for _ in range(120)]), 4, eos=True)


def explicit_of_dense(kind, K):
    return explicit_language_model(dense_text().counts(2), features=kind, radius=K, dtype=jnp.float64, eos=True)


@functools.cache
def best_of_dense(kind):
    """The model of the lowest loss, and that, by SciPy; pairs that never occur have a probability of e^-40 or so."""
    counts, (X, Y) = dense_text().counts(2), contexts(dense_text().in_memory, 2, eos=True)
    F = np.stack(counts).sum(axis=0)[None] if kind == "sum" else np.stack(counts)

    @jax.jit
    def loss(u):
        U = jnp.where(F > 0, u.reshape(F.shape), -40)
        z = U[0][X[:, 0]] + U[-1][X[:, 1]]
        return (jax.nn.logsumexp(z, axis=1) - z[jnp.arange(len(Y)), Y]).mean()

    start = np.stack([np.asarray(U) for U in blocks(explicit_of_dense(kind, 2))]).ravel()
    best = minimize(jax.jit(jax.value_and_grad(loss)), start, jac=True, method="BFGS", options={"gtol": 1e-11})
    tables = [jax.device_put(U) for U in np.where(F > 0, best.x.reshape(F.shape), -40)]
    return token_model(tables * (2 // len(tables)), kind, True), float(best.fun)


@pytest.mark.parametrize(
    "kind, K, eos",
    [
        *(("sum", 2, True), ("cat", 4, False)),
        *(pytest.param(*case, marks=SLOW) for case in product(["sum", "cat"], [1], [False])),
        *(pytest.param("cat", 2, True, marks=SLOW), pytest.param("sum", 4, False, marks=SLOW)),
    ],
)
def test_a_sweep_without_noise_is_the_loop_over_positions(kind, K, eos):
    model = explicit(kind, K, eos=eos)
    X, Y = windows(DOCUMENTS, K, eos=eos)
    H, U = features(X, np.eye(N), kind), np.concatenate(blocks(model))
    expected = scaling_sweep_of_pairs_that_occur(H, U, Y, K)
    swept = sweep_tables(model, TEXT, sweeps=1, noise=False)
    moved = np.concatenate(blocks(swept.model))
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-11)
    F, E = H.T @ np.eye(N)[Y], H.T @ np.exp([log_softmax(row) for row in H @ U])
    np.testing.assert_array_equal(moved[F == 0], U[F == 0])
    F, E = F[F > 0], E[F > 0]
    promised = (F * np.log(F / E) - F + E).sum() / K  # what a sweep gains at least
    assert len(Y) * (swept.losses[0] - swept.losses[1]) >= promised * (1 - 1e-12) - 1e-12 and promised >= 0
    assert (swept.model.features, swept.model.radius, swept.model.eos) == (kind, K, eos)


@pytest.mark.parametrize("kind, K", [("sum", 2), ("cat", 4), pytest.param("cat", 1, marks=SLOW)])
def test_a_sweep_with_noise_is_the_loop_over_positions_with_noisy_features(kind, K):
    E = noisy_embedding(np.bincount(STREAM[1:], minlength=N))
    rng = np.random.default_rng(0)
    U = [rng.normal(size=(N, N)) for _ in range(1 if kind == "sum" else K)]
    tables = tuple(jax.device_put(E @ U_b) for U_b in U)
    model = token_model(tables * (K // len(tables)), kind, False)
    X, Y = windows(DOCUMENTS, K)
    expected = scaling_sweep_of_pairs_that_occur(features(X, E, kind), np.concatenate(U), Y, K)
    swept = sweep_tables(model, TEXT, sweeps=1)
    for read, U_b in zip(blocks(swept.model), np.split(expected, len(U)), strict=True):
        np.testing.assert_allclose(read, E @ U_b, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "kind, K, options",
    [
        *(("sum", 2, {}), ("cat", 4, {"noise": False, "discount": 0.7}), ("impossible", 2, {"noise": False})),
        *(("weighted", 2, {"noise": False, "discount": 0.7}),),
        *(pytest.param(kind, K, {"noise": False}, marks=SLOW) for kind, K in product(["sum", "cat"], [2, 4])),
        *(pytest.param(kind, K, {}, marks=SLOW) for kind, K in (("cat", 2), ("sum", 4), ("cat", 4))),
        *(pytest.param(*case, {"noise": False, "discount": 0.7}, marks=SLOW) for case in (("sum", 2), ("sum", 4), ("cat", 2))),
        pytest.param("weighted", 2, {"noise": False}, marks=SLOW),
        *(pytest.param("zeros", K, {"noise": noise}, marks=SLOW) for K, noise in ((1, True), (2, False))),
    ],
)
def test_every_sweep_lowers_the_loss_with_its_penalty_on_any_devices(kind, K, options):
    """From the explicit solution with and without noise, from zeros, with a prior, and with weights."""
    zeros, impossible = token_model([jnp.zeros((N, N)) for _ in range(K)], "cat", False), explicit("cat", K, noise=False)
    model = {"weighted": attentive(), "zeros": zeros, "impossible": impossible}.get(kind) or explicit(kind, K)
    options = options | ({"weights": WEIGHTS} if kind == "weighted" else {})
    swept = sweep_tables(model, TEXT, sweeps=25, **options)
    total = swept.losses
    assert len(total) == 26 and (swept.penalty > 0) == ("discount" in options)
    assert np.all(np.diff(total) < 1e-14) and total[-1] < total[0] - 1e-4
    assert kind == "impossible" or all(np.isfinite(U).all() for U in blocks(swept.model))
    if kind == "impossible":
        np.testing.assert_array_equal(np.isneginf(swept.model.tables[0])[:, 1:], COUNTS[0][:, 1:] == 0)
    assert kind != "sum" or all(U is swept.model.tables[0] for U in swept.model.tables)
    spread = TrainingText(STREAM, N, counts=COUNTS, mesh=data_mesh(8))
    other = sweep_tables(model, spread, sweeps=9, chunk=64, on_sweep=lambda sweep, *_: sweep == 3, **options)
    np.testing.assert_allclose(other.losses, total[:4], rtol=1e-12)  # it ends where it is told to


@pytest.mark.parametrize("kind, noise", [("sum", True), pytest.param("cat", False, marks=SLOW)])
def test_losses_are_those_of_the_models_on_the_way(kind, noise):
    met = []
    swept = sweep_tables(explicit(kind, 2), TEXT, sweeps=3, noise=noise, on_sweep=lambda *report: met.append(report))
    assert [done for done, _, _ in met] == [0, 1, 2, 3] and [loss for _, loss, _ in met] == swept.losses.tolist()
    for _, loss, model in met:
        np.testing.assert_allclose(evaluate(model, STREAM).loss, loss, rtol=1e-12)


def test_at_k_1_one_sweep_from_anywhere_is_the_bigram_optimum():
    C = dense_text().counts(2)[0].astype(float)
    assert (C > 0).sum() == 15  # all but an empty document
    start = np.where(C > 0, np.random.default_rng(1).normal(size=(4, 4)), -np.inf)
    swept = sweep_tables(token_model((jax.device_put(start),), "cat", True), dense_text(), sweeps=1, noise=False)
    best = C / C.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(swept.losses[1], -(C * np.log(np.where(C > 0, best, 1))).sum() / C.sum(), rtol=1e-13)
    np.testing.assert_allclose(np.exp([log_softmax(row) for row in np.asarray(swept.model.tables[0])]), best, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind, noise", [("sum", False), ("cat", False), ("cat", True)])
def test_sweeps_reach_the_optimum_of_two_tokens(kind, noise):
    """Where pairs never occur the infimum has minus infinity there: the start without noise, or a limit of the one with."""
    text = dense_text()
    start = explicit_language_model(text.counts(2), features=kind, radius=2, dtype=jnp.float64, eos=True, noise=noise)
    reached = sweep_tables(start, text, sweeps=1000 if noise else 300, noise=noise)
    _, best = best_of_dense(kind)
    assert reached.losses[0] > best + 1e-4
    # what never occurs leaves with the number of sweeps n as 1/n: hence 1e-4 with noise
    assert reached.losses[-1] == pytest.approx(best, abs=1e-4 if noise else 1e-9)
    X, Y = contexts(text.in_memory, 2, eos=True)
    residual = kkt_residual(reached.model, X, Y, mesh=data_mesh(1))
    assert residual < (1e-3 if noise else 1e-6) and kkt_residual(explicit_of_dense(kind, 2), X, Y, mesh=data_mesh(1)) > 0.01


@pytest.mark.slow
@KINDS
def test_the_optimum_is_a_fixed_point(kind):
    model, loss = best_of_dense(kind)
    swept = sweep_tables(model, dense_text(), sweeps=1, noise=False)
    np.testing.assert_allclose(swept.losses, loss, rtol=1e-12)
    for U, U_after in zip(blocks(model), blocks(swept.model), strict=True):
        np.testing.assert_allclose(U_after, U, rtol=0, atol=1e-6)  # a residual of 1e-10 M against cells of a few counts


def test_float32_tables_stay_float32():
    exact = sweep_tables(explicit("cat", 2), TEXT, sweeps=5)
    single = sweep_tables(explicit("cat", 2, dtype=jnp.float32), TEXT, sweeps=5)
    assert all(U.dtype == jnp.float32 for U in single.model.tables)
    np.testing.assert_allclose(single.losses, exact.losses, rtol=2e-6)  # 16 eps
    assert np.all(np.diff(single.losses) < 0)


def test_progress_is_reported_and_the_start_is_left_alone():
    start, reports = explicit("cat", 2), []
    before = np.stack(start.tables)
    sweep_tables(start, TEXT, sweeps=2, progress=lambda *report: reports.append(report))
    assert reports == [(0, 2), (1, 2), (2, 2)]
    np.testing.assert_array_equal(np.stack(start.tables), before)
    sweep_tables(start, TEXT, sweeps=0, progress=lambda *report: reports.append(report))
    assert len(reports) == 3  # a measurement has no end to wait for


def near(model, **options):
    return sweep_tables(model, TEXT, noise=False, **options)


@pytest.mark.parametrize(
    "kind, K, discount",
    [("sum", 2, 0.7), ("cat", 4, 0.7), *(pytest.param(*c, marks=SLOW) for c in (("cat", 1, 0.7), ("cat", 2, 3.0)))],
)
def test_sweeps_with_a_prior_are_the_loop_over_positions(kind, K, discount):
    """Two of them: the first starts at U0, the second on either side of it."""
    start = explicit(kind, K, eos=True)
    X, Y = windows(DOCUMENTS, K, eos=True)
    H, U0 = features(X, np.eye(N), kind), np.concatenate(blocks(start))
    once = sweep_near(H, U0, Y, K, discount, U0)
    twice = sweep_near(H, once, Y, K, discount, U0)
    for sweeps, expected in ((1, once), (2, twice)):
        moved = np.concatenate(blocks(near(start, sweeps=sweeps, discount=discount).model))
        np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-11)
    if K > 1 and discount < 1:
        assert (once > U0).any() and (once < U0).any() and (once == U0).any()


@pytest.mark.parametrize("kind", ["cat", pytest.param("sum", marks=SLOW)])
def test_sweeps_with_a_prior_reach_the_minimum_that_scipy_finds(kind):
    """L-BFGS-B on `U = U0 + a - b` with a, b >= 0; both stop within 1e-6 nats of the minimum."""
    K, D = 2, 0.7
    start = explicit(kind, K, eos=True)
    swept = near(start, sweeps=1000, discount=D)
    X, Y = windows(DOCUMENTS, K, eos=True)
    H, U0 = features(X, np.eye(N), kind), np.concatenate(blocks(start))
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
    U = np.concatenate(blocks(swept.model))
    E = H.T @ np.exp([log_softmax(row) for row in H @ U])
    assert np.all(np.abs(E - F) < D * 1.02)  # the minimum has |E - F| <= D, approached linearly
    above, below = U > U0 + 1e-3, U < U0 - 1e-3
    np.testing.assert_allclose((F - E)[above], D, rtol=0.02)
    np.testing.assert_allclose((F - E)[below], -D, rtol=0.02)


def test_a_large_discount_leaves_the_start_a_small_one_changes_nothing_and_neither_do_weights_of_1():
    """Pairs that occur move as without a prior; those that never do have a minimum at minus infinity and now go there."""
    start = explicit("cat", 2, eos=True)
    np.testing.assert_array_equal(blocks(near(start, sweeps=3, discount=1e6).model), blocks(start))
    with_prior, without = near(start, sweeps=1, discount=1e-12), near(start, sweeps=1)
    for U, V, F_b in zip(blocks(with_prior.model), blocks(without.model), COUNTS, strict=False):
        np.testing.assert_allclose(U[F_b > 0][:, None], V[F_b > 0][:, None], rtol=0, atol=1e-10)
    plain, weighted = (near(explicit("sum", 2), sweeps=3, discount=0.7, weights=w) for w in (None, np.ones((2, N))))
    np.testing.assert_allclose(weighted.losses, plain.losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weighted.model.tables[0], plain.model.tables[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("discount", [0.7, pytest.param(0.0, marks=SLOW)])
def test_interrupted_sweeps_go_on_bit_for_bit(tmp_path, discount):
    def stop(sweep, *_):
        if sweep == 3:
            raise KeyboardInterrupt

    options = {"sweeps": 5, "discount": discount}
    whole = near(explicit("cat", 2), **options)
    with pytest.raises(KeyboardInterrupt):
        near(explicit("cat", 2), **options, checkpoints=tmp_path / "sweeps", checkpoint_seconds=0, on_sweep=stop)
    met = []
    resumed = near(explicit("cat", 2), **options, checkpoints=tmp_path / "sweeps", on_sweep=lambda sweep, *_: met.append(sweep))
    assert met == [3, 4, 5]
    assert resumed.losses.tolist() == whole.losses.tolist() and resumed.penalty == whole.penalty
    np.testing.assert_array_equal(blocks(resumed.model), blocks(whole.model))


def test_the_discount_of_the_counts_is_kneser_neys():
    cat, sum_ = (kneser_ney_discount(COUNTS, features=kind, radius=2, eos=True) for kind in ("cat", "sum"))
    for D, F in ((cat, np.stack(COUNTS[:2])), (sum_, COUNTS[0] + COUNTS[1])):
        n1, n2 = (F == 1).sum(), (F == 2).sum()
        np.testing.assert_allclose(D, n1 / (n1 + 2 * n2), rtol=1e-6)  # float32


# Sum with attention: one table, weights per offset and token

WEIGHTS = np.random.default_rng(5).uniform(0, 1, (2, N))
WEIGHTS[1] *= 0.5


def attentive():
    """Sum's table, which each offset weighs."""
    (V,) = blocks(explicit("sum", 2, eos=True))
    return token_model([jax.device_put(w[:, None] * V) for w in WEIGHTS], "sum", True)


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_a_sweep_of_one_weighted_table_is_the_loop_over_positions(discount):
    """F and E weigh every pair by its offset's w(j): features of norms up to C."""
    (V,), (X, Y) = blocks(explicit("sum", 2, eos=True)), windows(DOCUMENTS, 2, eos=True)
    H = np.array([sum(w[j] * np.eye(N)[j] for w, j in zip(WEIGHTS, x, strict=True)) for x in X])
    C = H.sum(axis=1).max()
    moved = sweep_near(H, V, Y, C, discount, V) if discount else scaling_sweep_of_pairs_that_occur(H, V, Y, C)
    swept = near(attentive(), sweeps=1, discount=discount, weights=WEIGHTS).model
    for table, w in zip(swept.tables, WEIGHTS, strict=True):
        np.testing.assert_allclose(table, w[:, None] * moved, rtol=0, atol=1e-10)
    assert swept.features == "sum" and np.abs(moved - V).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("features, K", [("sum", 2), ("cat", 4)])
def test_the_fit_ends_no_higher_than_the_log_linear_model_on_held_out_text(features, K):
    """By name: it starts from the exponents of the log-linear fit, and takes as many sweeps as documents left out like best."""
    events: list[dict] = []
    options = Options(features=features, radius=K, sweeps=6, calibration_positions=300)
    watch = Watch(log=lambda **event: events.append(event))
    rng = np.random.default_rng(0)
    stream = np.concatenate([[0], *([*rng.integers(1, 6, 9), 0] for _ in range(60))]).astype(np.uint8)
    stream[2::3] = (stream[1::3][: len(stream[2::3])] + 1) % 6  # something to learn
    stream[-1] = 0
    log_linear = fit_model("log-linear", TrainingText(stream, N, eos=True), options)
    fitted = fit_model("iterative-scaling", TrainingText(stream, N, eos=True), options, watch)
    (chosen,) = [event for event in events if event["event"] == "held_out_sweeps"]
    curve = chosen["perplexities"]
    assert curve[0] == pytest.approx(log_linear.info["held_out_perplexity"], rel=0.2)  # of drawn positions, of all
    assert fitted.info["held_out_perplexity"] == min(curve) <= curve[0] and fitted.info["sweeps"] == int(np.argmin(curve))
    assert sorted(curve[: 1 + int(np.argmin(curve))], reverse=True) == curve[: 1 + int(np.argmin(curve))]
    known = Watch(events=lambda name: [event for event in events if event["event"] == name])
    again = fit_model("iterative-scaling", TrainingText(stream, N, eos=True), options, known)
    np.testing.assert_array_equal(again.model.tables[0], fitted.model.tables[0])
