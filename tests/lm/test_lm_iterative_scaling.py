"""Iterative scaling of a language model: one sweep by a slow loop, what a sweep must gain, and the known optimum.

Tolerances: a sweep is a logarithm of sums of at most 300 numbers in float64, 1e-11; a mean loss may rise by rounding, 1e-14.
Sweeps approach the optimum linearly, and the loss there is quadratic in the distance.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from reference import (
    features,
    log_softmax,
    negative_log_likelihood,
    noisy_embedding,
    random_documents,
    scaling_sweep_of_pairs_that_occur,
    stream_of,
    sweep_near,
    windows,
)

from jexplicit import contexts, count, evaluate, explicit_language_model, token_model
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.fits.iterative_scaling import kneser_ney_discount, sweep_tables
from jexplicit.lm.fits.optimum import bigram_optimum, context_pairs, find_optimum
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import data_mesh

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = random_documents(5, 25, N, 14)
STREAM = stream_of(DOCUMENTS)
COUNTS = count(STREAM, radius=4, vocab_size=N)

KINDS = pytest.mark.parametrize("kind", ["sum", "cat"])
NOISES = pytest.mark.parametrize("noise", [False, True])


def explicit(kind, K, *, noise=True, dtype=jnp.float64, eos=False):
    return explicit_language_model(COUNTS, features=kind, radius=K, noise=noise, dtype=dtype, eos=eos)


def blocks(model):
    return [np.asarray(U) for U in (model.tables[:1] if model.features == "sum" else model.tables)]


@functools.cache
def dense_counts():
    """Counts and stream of three tokens and ends of documents that occur with one another at both offsets."""
    rng = np.random.default_rng(3)
    stream = stream_of([rng.integers(1, 4, rng.integers(1, 7)).tolist() for _ in range(120)])
    counts = count(stream, radius=2, vocab_size=4)
    return counts, stream


def explicit_of_dense(kind, K):
    return explicit_language_model(dense_counts()[0], features=kind, radius=K, dtype=jnp.float64, eos=True)


@functools.cache
def best_of_dense(kind):
    counts, stream = dense_counts()
    pairs = context_pairs(stream, 4, eos=True)
    return find_optimum(explicit_of_dense(kind, 2), counts, pairs, iterations=400, tolerance=1e-10)


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_sweep_without_noise_is_the_loop_over_positions(kind, K, eos):
    model = explicit(kind, K, eos=eos)
    X, Y = windows(DOCUMENTS, K, eos=eos)
    expected = scaling_sweep_of_pairs_that_occur(features(X, np.eye(N), kind), np.concatenate(blocks(model)), Y, K)
    swept = sweep_tables(model, COUNTS, STREAM, sweeps=1, noise=False)
    np.testing.assert_allclose(np.concatenate(blocks(swept.model)), expected, rtol=0, atol=1e-11)
    assert (swept.model.features, swept.model.radius, swept.model.eos) == (kind, K, eos)


@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_sweep_with_noise_is_the_loop_over_positions_with_noisy_features(kind, K):
    E = noisy_embedding(np.bincount(STREAM[1:], minlength=N))
    rng = np.random.default_rng(0)
    U = [rng.normal(size=(N, N)) for _ in range(1 if kind == "sum" else K)]
    tables = tuple(jnp.asarray(E @ U_b) for U_b in U)
    model = token_model(tables * (K // len(tables)), kind, False)
    X, Y = windows(DOCUMENTS, K)
    expected = scaling_sweep_of_pairs_that_occur(features(X, E, kind), np.concatenate(U), Y, K)
    swept = sweep_tables(model, COUNTS, STREAM, sweeps=1)
    for read, U_b in zip(blocks(swept.model), np.split(expected, len(U)), strict=True):
        np.testing.assert_allclose(read, E @ U_b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("begin", ["explicit", "zeros"])
@pytest.mark.parametrize("K", [1, 2, 4])
@NOISES
@KINDS
def test_every_sweep_lowers_the_loss_and_stays_finite(kind, noise, K, begin):
    model = explicit(kind, K)
    if begin == "zeros":
        zero = jnp.zeros((N, N))
        model = token_model((zero,) * K if kind == "sum" else [zero + 0 for _ in range(K)], kind, model.eos)
    swept = sweep_tables(model, COUNTS, STREAM, sweeps=25, noise=noise)
    assert len(swept.losses) == 26
    assert np.all(np.diff(swept.losses) < 1e-14) and swept.losses[-1] < swept.losses[0] - 1e-3
    if not (K == 1 and not noise):  # there the first sweep is the optimum of what may move, or nearly
        assert np.all(np.diff(swept.losses) < 0)
    assert all(np.isfinite(U).all() for U in blocks(swept.model))


@pytest.mark.parametrize("K", [1, 2, 4])
@NOISES
@KINDS
def test_a_sweep_gains_at_least_what_the_bound_promises(kind, noise, K):
    E = noisy_embedding(np.bincount(STREAM[1:], minlength=N)) if noise else np.eye(N)
    model = explicit(kind, K)
    X, Y = windows(DOCUMENTS, K)
    H, tables = features(X, np.eye(N), kind), np.concatenate(blocks(model))
    P = np.exp([log_softmax(row) for row in H @ tables])
    H = features(X, E, kind)
    F, expected = H.T @ np.eye(N)[Y], H.T @ P
    moved = F > 0
    F, expected = F[moved], expected[moved]
    promised = (F * np.log(F / expected) - F + expected).sum() / K
    before, after = sweep_tables(model, COUNTS, STREAM, sweeps=1, noise=noise).losses
    assert len(Y) * (before - after) >= promised * (1 - 1e-12) > 0


def test_a_longer_step_than_1_over_k_is_not_monotone():
    """Four tokens all counted whole overshoot: the 1/K is needed."""
    model, losses = explicit("sum", 4), []
    X, Y = windows(DOCUMENTS, 4)
    H, U = features(X, np.eye(N), "sum"), blocks(model)[0]
    for _ in range(5):
        losses.append(negative_log_likelihood(H, U, Y))
        U = scaling_sweep_of_pairs_that_occur(H, U, Y, 0.8)
    assert np.any(np.diff(losses) > 0)


@NOISES
@KINDS
def test_losses_are_those_of_the_models_on_the_way(kind, noise):
    met = []
    swept = sweep_tables(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, on_sweep=lambda *report: met.append(report))
    assert [done for done, _, _ in met] == [0, 1, 2, 3] and [loss for _, loss, _ in met] == swept.losses
    for _, loss, model in met:
        np.testing.assert_allclose(evaluate(model, STREAM).loss, loss, rtol=1e-12)


def test_at_k_1_one_sweep_from_anywhere_is_the_bigram_optimum():
    counts, stream = dense_counts()
    start = explicit_of_dense("cat", 1)
    start = token_model((jnp.asarray(np.random.default_rng(1).normal(size=(4, 4))),), "cat", True)
    C = counts[0].astype(float)
    best = bigram_optimum(counts, eos=True, dtype=jnp.float64)
    assert (C > 0).sum() == 15  # all but an empty document
    masked = token_model((jnp.where(C > 0, start.tables[0], -jnp.inf),), "cat", True)
    swept = sweep_tables(masked, counts, stream, sweeps=1, noise=False)
    np.testing.assert_allclose(swept.losses[1], best.loss, rtol=1e-13)
    P = np.asarray(jax.nn.softmax(swept.model.tables[0], axis=1))
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=1e-12)


@NOISES
@KINDS
def test_sweeps_reach_the_optimum_of_two_tokens(kind, noise):
    """Where pairs never occur the infimum has minus infinity there: the start without noise, or a limit of the one with."""
    counts, stream = dense_counts()
    start = explicit_language_model(counts, features=kind, radius=2, dtype=jnp.float64, eos=True, noise=noise)
    reached = sweep_tables(start, counts, stream, sweeps=1000 if noise else 300, noise=noise)
    best = best_of_dense(kind)
    assert reached.losses[0] > best.loss + 1e-4
    # what never occurs leaves with the number of sweeps n as 1/n: hence 1e-4 with noise
    assert reached.losses[-1] == pytest.approx(best.loss, abs=1e-4 if noise else 1e-9)
    X, Y = contexts(stream, 2, eos=True)
    residual = kkt_residual(reached.model, X, Y, mesh=data_mesh(1))
    assert residual < (1e-3 if noise else 1e-6) and kkt_residual(explicit_of_dense(kind, 2), X, Y, mesh=data_mesh(1)) > 0.01


@KINDS
def test_the_optimum_is_a_fixed_point(kind):
    best = best_of_dense(kind)
    swept = sweep_tables(best.model, *dense_counts(), sweeps=1, noise=False)
    np.testing.assert_allclose(swept.losses, best.loss, rtol=1e-12)
    for U, U_after in zip(blocks(best.model), blocks(swept.model), strict=True):
        np.testing.assert_allclose(U_after, U, rtol=0, atol=1e-6)  # a residual of 1e-10 M against cells of a few counts


@KINDS
def test_what_never_occurs_stays_where_it_is(kind):
    for noise in (False, True):
        start = explicit(kind, 2)
        swept = sweep_tables(start, COUNTS, STREAM, sweeps=3, noise=noise)
        F = [C[:, 1:] for C in COUNTS[:2]]
        F = [F[0] + F[1]] if kind == "sum" else F
        for U, U_after, F_b in zip(blocks(start), blocks(swept.model), F, strict=True):
            np.testing.assert_array_equal(U_after[:, 0], U[:, 0])  # `<pad>` is no output here
            if not noise:
                assert (F_b == 0).any()
                np.testing.assert_array_equal(U_after[:, 1:][F_b == 0], U[:, 1:][F_b == 0])


def test_impossible_pairs_stay_impossible_and_the_rest_is_fitted():
    swept = sweep_tables(explicit("cat", 2, noise=False), COUNTS, STREAM, sweeps=20, noise=False)
    assert np.all(np.diff(swept.losses) < 0)
    with_noise = sweep_tables(explicit("cat", 2), COUNTS, STREAM, sweeps=20)
    assert swept.losses[-1] < with_noise.losses[-1]
    np.testing.assert_array_equal(np.isneginf(swept.model.tables[0])[:, 1:], COUNTS[0][:, 1:] == 0)


@NOISES
@KINDS
def test_devices_and_chunks_change_rounding_only(kind, noise):
    one = sweep_tables(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise)
    eight = sweep_tables(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, mesh=data_mesh(8))
    chunked = sweep_tables(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, chunk=64)
    for other in (eight, chunked):
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-12)
        np.testing.assert_allclose(blocks(other.model), blocks(one.model), rtol=0, atol=1e-10)


@NOISES
def test_float32_tables_stay_float32(noise):
    exact = sweep_tables(explicit("cat", 2), COUNTS, STREAM, sweeps=5, noise=noise)
    single = sweep_tables(explicit("cat", 2, dtype=jnp.float32), COUNTS, STREAM, sweeps=5, noise=noise)
    assert all(U.dtype == jnp.float32 for U in single.model.tables)
    np.testing.assert_allclose(single.losses, exact.losses, rtol=2e-6)  # 16 eps
    assert np.all(np.diff(single.losses) < 0)


def test_sum_s_tables_are_one_array():
    swept = sweep_tables(explicit("sum", 4), COUNTS, STREAM, sweeps=1)
    assert len(swept.model.tables) == 4 and all(U is swept.model.tables[0] for U in swept.model.tables)


def test_progress_is_reported_and_the_start_is_left_alone():
    start, reports = explicit("cat", 2), []
    before = np.stack(start.tables)
    sweep_tables(start, COUNTS, STREAM, sweeps=2, progress=lambda *report: reports.append(report))
    assert reports == [(0, 2), (1, 2), (2, 2)]
    np.testing.assert_array_equal(np.stack(start.tables), before)
    sweep_tables(start, COUNTS, STREAM, sweeps=0, progress=lambda *report: reports.append(report))
    assert len(reports) == 3  # a measurement has no end to wait for


def near(model, **options):
    return sweep_tables(model, COUNTS, STREAM, noise=False, **options)


def penalised(swept):
    return np.add(swept.losses, swept.penalties)


@pytest.mark.parametrize("discount", [0.7, 3.0])
@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
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


@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_sweep_with_a_prior_lowers_the_loss_with_its_penalty(kind, K):
    swept = near(explicit(kind, K), sweeps=25, discount=0.7)
    total = penalised(swept)
    assert np.all(np.diff(total) < 1e-14) and swept.penalties[0] == 0
    if K > 1:  # at K = 1 the explicit solution is where F = E, nearly
        assert total[-1] < total[0] - 1e-4 and min(swept.penalties[1:]) > 0


@KINDS
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

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-14, "gtol": 1e-9}
    zeros = np.zeros(2 * U0.size)
    found = scipy.optimize.minimize(
        objective, zeros, jac=True, method="L-BFGS-B", bounds=[(0, None)] * U0.size * 2, options=options
    )
    np.testing.assert_allclose(penalised(swept)[-1], found.fun, rtol=0, atol=1e-6)
    U = np.concatenate(blocks(swept.model))
    E = H.T @ np.exp([log_softmax(row) for row in H @ U])
    assert np.all(np.abs(E - F) < D * 1.02)  # the minimum has |E - F| <= D, approached linearly
    above, below = U > U0 + 1e-3, U < U0 - 1e-3
    np.testing.assert_allclose((F - E)[above], D, rtol=0.02)
    np.testing.assert_allclose((F - E)[below], -D, rtol=0.02)


def test_a_discount_above_all_counts_leaves_the_start():
    start = explicit("cat", 2)
    np.testing.assert_array_equal(blocks(near(start, sweeps=3, discount=1e6).model), blocks(start))


def test_a_vanishing_discount_is_none():
    """Pairs that occur move as without a prior; those that never do have a minimum at minus infinity and now go there."""
    start = explicit("cat", 2, eos=True)
    with_prior, without = near(start, sweeps=1, discount=1e-12), near(start, sweeps=1)
    for U, V, F_b in zip(blocks(with_prior.model), blocks(without.model), COUNTS, strict=False):
        np.testing.assert_allclose(U[F_b > 0][:, None], V[F_b > 0][:, None], rtol=0, atol=1e-10)


def test_devices_change_rounding_only_with_a_prior_too():
    one = near(explicit("cat", 2), sweeps=3, discount=0.7)
    eight = near(explicit("cat", 2), sweeps=3, discount=0.7, mesh=data_mesh(8))
    np.testing.assert_allclose(penalised(eight), penalised(one), rtol=1e-12)
    np.testing.assert_allclose(blocks(eight.model), blocks(one.model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("discount", [0.0, 0.7])
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
    assert (resumed.losses, resumed.penalties) == (whole.losses, whole.penalties)
    np.testing.assert_array_equal(blocks(resumed.model), blocks(whole.model))


def test_the_discount_of_the_counts_is_kneser_neys():
    cat, sum_ = (kneser_ney_discount(COUNTS, features=kind, radius=2, eos=True) for kind in ("cat", "sum"))
    for D, F in ((cat, np.stack(COUNTS[:2])), (sum_, COUNTS[0] + COUNTS[1])):
        n1, n2 = (F == 1).sum(), (F == 2).sum()
        np.testing.assert_allclose(D, n1 / (n1 + 2 * n2), rtol=1e-6)  # float32


def test_a_discount_needs_a_finite_start_and_no_noise():
    model = explicit("cat", 2)
    for discount in (-1.0, np.inf):
        with pytest.raises(ValueError, match="a discount of"):
            near(model, sweeps=1, discount=discount)
    with pytest.raises(ValueError, match="a discount of"):
        sweep_tables(model, COUNTS, STREAM, sweeps=1, discount=0.5)
    with pytest.raises(ValueError, match="infinite logits"):
        near(explicit("cat", 2, noise=False), sweeps=1, discount=0.5)


def test_bad_input_is_refused_with_a_remedy():
    model = explicit("cat", 2)
    with pytest.raises(ValueError, match="-1 sweeps"):
        sweep_tables(model, COUNTS, STREAM, sweeps=-1)
    with pytest.raises(ValueError, match="counts of 1 offsets.*model's own radius"):
        sweep_tables(model, COUNTS[:1], STREAM, sweeps=1)
    with pytest.raises(ValueError, match="vocabulary 4 for radius 2 and vocabulary 9"):
        sweep_tables(model, dense_counts()[0], STREAM, sweeps=1)
    for other in (stream_of(DOCUMENTS[1:]), stream_of([[8] * len(STREAM)]), stream_of([[N, 1]])):
        with pytest.raises(ValueError, match="do not belong together"):
            sweep_tables(model, COUNTS, other, sweeps=1)
    with pytest.raises(ValueError, match="no position to predict"):
        sweep_tables(model, tuple(0 * C for C in COUNTS), STREAM, sweeps=1)
    impossible = token_model((jnp.full((N, N), -jnp.inf),) * 2, "cat", model.eos)
    with pytest.raises(FloatingPointError, match="tables of the same stream"):
        sweep_tables(impossible, COUNTS, STREAM, sweeps=1)


# Sum with attention: one table, weights per offset and token


WEIGHTS = np.random.default_rng(5).uniform(0, 1, (2, N))
WEIGHTS[1] *= 0.5


def attentive(K=2, eos=True):
    """Tables that differ by offset, as those of Sum with attention do."""
    start = explicit("cat", K, eos=eos)
    return token_model([U * w[:, None] for U, w in zip(start.tables, 1 + WEIGHTS, strict=True)], "sum", eos)


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_a_sweep_of_one_weighted_table_is_the_loop_over_positions(discount):
    """dV = (1/C) log(F/E), or what the prior around 0 leaves of it; F and E weigh every pair by its offset's w(j)."""
    start = attentive()
    X, Y = windows(DOCUMENTS, 2, eos=True)
    F, E = np.zeros((N, N)), np.zeros((N, N))
    for x, y in zip(X, Y, strict=True):
        z = np.sum([np.asarray(start.tables[k])[x[k]] for k in range(2)], axis=0)
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        for k in range(2):
            F[x[k], y] += WEIGHTS[k, x[k]]
            E[x[k]] += WEIGHTS[k, x[k]] * p
    C = max(WEIGHTS[0, x[0]] + WEIGHTS[1, x[1]] for x in X)
    dV = np.zeros((N, N))
    for j in range(N):
        for i in range(N):
            if discount:
                up = np.log((F[j, i] - discount) / E[j, i]) / C if F[j, i] > discount else -np.inf
                down = np.log((F[j, i] + discount) / E[j, i]) / C if E[j, i] > 0 else np.inf
                dV[j, i] = up if up > 0 else down if down < 0 else 0.0
            elif F[j, i] > 0:
                dV[j, i] = np.log(F[j, i] / E[j, i]) / C
    swept = near(start, sweeps=1, discount=discount, weights=WEIGHTS).model
    for k in range(2):
        expected = np.asarray(start.tables[k]) + WEIGHTS[k][:, None] * dV
        np.testing.assert_allclose(swept.tables[k], expected, rtol=0, atol=1e-10)
    assert swept.features == "sum" and np.abs(dV).max() > 0.1


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_weighted_sweeps_never_raise_the_loss(discount):
    swept = near(attentive(), sweeps=25, discount=discount, weights=WEIGHTS)
    assert np.all(np.diff(penalised(swept)) < 1e-14) and penalised(swept)[-1] < penalised(swept)[0] - 1e-3


def test_weights_of_1_are_the_plain_sum():
    start = explicit("sum", 2)
    plain, weighted = near(start, sweeps=3, discount=0.7), near(start, sweeps=3, discount=0.7, weights=np.ones((2, N)))
    np.testing.assert_allclose(weighted.losses, plain.losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weighted.model.tables[0], plain.model.tables[0], rtol=0, atol=1e-10)


def test_devices_change_no_weighted_sweep():
    one = near(attentive(), sweeps=3, discount=0.7, weights=WEIGHTS)
    eight = near(attentive(), sweeps=3, discount=0.7, weights=WEIGHTS, mesh=data_mesh(8))
    np.testing.assert_allclose(eight.losses, one.losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(eight.model.tables[1], one.model.tables[1], rtol=0, atol=1e-10)


def test_weights_that_do_not_fit_are_refused():
    for model, weights in ((attentive(), WEIGHTS[:1]), (attentive(), -WEIGHTS), (explicit("cat", 2), WEIGHTS)):
        with pytest.raises(ValueError, match="use finite weights"):
            near(model, sweeps=1, weights=weights)
    with pytest.raises(ValueError, match="noise=True"):
        sweep_tables(attentive(), COUNTS, STREAM, sweeps=1, weights=WEIGHTS)


def test_sweeps_end_where_they_are_told_to():
    swept = sweep_tables(explicit("cat", 2), COUNTS, STREAM, sweeps=9, on_sweep=lambda sweep, loss, model: sweep == 2)
    assert len(swept.losses) == 3


@pytest.mark.parametrize(
    "features, K",
    [("sum", 2), ("cat", 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("sum", 4), ("cat", 2)))],
)
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
    again = fit_model(
        "iterative-scaling",
        TrainingText(stream, N, eos=True),
        options,
        Watch(events=lambda name: [event for event in events if event["event"] == name]),
    )
    np.testing.assert_array_equal(again.model.tables[0], fitted.model.tables[0])
