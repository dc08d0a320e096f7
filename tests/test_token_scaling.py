"""Scaling sweeps of the language model: one sweep by a slow loop, what a sweep must gain, and the known optimum.

Tolerances: a sweep is a logarithm of sums of at most 300 numbers in float64, 1e-11; a mean loss may rise by rounding, 1e-14.
Sweeps approach the optimum linearly, and the loss there is quadratic in the distance.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from reference import (
    discounted_sweep,
    features,
    log_softmax,
    negative_log_likelihood,
    noisy_embedding,
    random_documents,
    scaling_sweep_of_pairs_that_occur,
    stream_of,
    windows,
)

from jexplicit import TokenTables, contexts, count, evaluate, explicit_language_model
from jexplicit.neural.decoder import kkt_residual
from jexplicit.optimum import bigram_optimum, context_pairs, optimum
from jexplicit.runs.mesh import data_mesh
from jexplicit.token_scaling import token_scaling_sweeps

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


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_sweep_without_noise_is_the_loop_over_positions(kind, K, eos):
    model = explicit(kind, K, eos=eos)
    X, Y = windows(DOCUMENTS, K, eos=eos)
    expected = scaling_sweep_of_pairs_that_occur(features(X, np.eye(N), kind), np.concatenate(blocks(model)), Y, K)
    swept = token_scaling_sweeps(model, COUNTS, STREAM, sweeps=1, noise=False)
    np.testing.assert_allclose(np.concatenate(blocks(swept.model)), expected, rtol=0, atol=1e-11)
    assert (swept.model.features, swept.model.radius, swept.model.eos) == (kind, K, eos)


@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_sweep_with_noise_is_the_loop_over_positions_with_noisy_features(kind, K):
    E = noisy_embedding(np.bincount(STREAM[1:], minlength=N))
    rng = np.random.default_rng(0)
    U = [rng.normal(size=(N, N)) for _ in range(1 if kind == "sum" else K)]
    tables = tuple(jnp.asarray(E @ U_b) for U_b in U)
    model = TokenTables(tables * (K // len(tables)), kind, False)
    X, Y = windows(DOCUMENTS, K)
    expected = scaling_sweep_of_pairs_that_occur(features(X, E, kind), np.concatenate(U), Y, K)
    swept = token_scaling_sweeps(model, COUNTS, STREAM, sweeps=1)
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
        model = model._replace(tables=(zero,) * K if kind == "sum" else tuple(zero + 0 for _ in range(K)))
    swept = token_scaling_sweeps(model, COUNTS, STREAM, sweeps=25, noise=noise)
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
    before, after = token_scaling_sweeps(model, COUNTS, STREAM, sweeps=1, noise=noise).losses
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
    swept = token_scaling_sweeps(
        explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, on_sweep=lambda *report: met.append(report)
    )
    assert [done for done, _, _ in met] == [0, 1, 2, 3] and [loss for _, loss, _ in met] == swept.losses
    for _, loss, model in met:
        np.testing.assert_allclose(evaluate(model, STREAM).loss, loss, rtol=1e-12)


def test_at_k_1_one_sweep_from_anywhere_is_the_bigram_optimum():
    counts, stream = dense_counts()
    start = explicit_of_dense("cat", 1)
    start = start._replace(tables=(jnp.asarray(np.random.default_rng(1).normal(size=(4, 4))),))
    C = counts[0].astype(float)
    best = bigram_optimum(counts, eos=True, dtype=jnp.float64)
    assert (C > 0).sum() == 15  # all but an empty document
    masked = start._replace(tables=(jnp.where(C > 0, start.tables[0], -jnp.inf),))
    swept = token_scaling_sweeps(masked, counts, stream, sweeps=1, noise=False)
    np.testing.assert_allclose(swept.losses[1], best.loss, rtol=1e-13)
    P = np.asarray(jax.nn.softmax(swept.model.tables[0], axis=1))
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=1e-12)


@NOISES
@KINDS
def test_sweeps_reach_the_optimum_of_two_tokens(kind, noise):
    """Where pairs never occur the infimum has minus infinity there: the start without noise, or a limit of the one with."""
    counts, stream = dense_counts()
    start = explicit_language_model(counts, features=kind, radius=2, dtype=jnp.float64, eos=True, noise=noise)
    reached = token_scaling_sweeps(start, counts, stream, sweeps=1500, noise=noise)
    best = optimum(explicit_of_dense(kind, 2), counts, context_pairs(stream, 4, eos=True), iterations=400, tolerance=1e-9)
    assert reached.losses[0] > best.loss + 1e-4
    # what never occurs leaves with the number of sweeps n as 1/n: hence 1e-4 with noise
    assert reached.losses[-1] == pytest.approx(best.loss, abs=1e-4 if noise else 1e-9)
    X, Y = contexts(stream, 2, eos=True)
    residual = kkt_residual(reached.model, X, Y, mesh=data_mesh(1))
    assert residual < (1e-3 if noise else 1e-6) and kkt_residual(explicit_of_dense(kind, 2), X, Y, mesh=data_mesh(1)) > 0.01


@KINDS
def test_the_optimum_is_a_fixed_point(kind):
    counts, stream = dense_counts()
    best = optimum(explicit_of_dense(kind, 2), counts, context_pairs(stream, 4, eos=True), iterations=400, tolerance=1e-10)
    swept = token_scaling_sweeps(best.model, counts, stream, sweeps=1, noise=False)
    np.testing.assert_allclose(swept.losses, best.loss, rtol=1e-12)
    for U, U_after in zip(blocks(best.model), blocks(swept.model), strict=True):
        np.testing.assert_allclose(U_after, U, rtol=0, atol=1e-6)  # a residual of 1e-10 M against cells of a few counts


@KINDS
def test_what_never_occurs_stays_where_it_is(kind):
    for noise in (False, True):
        start = explicit(kind, 2)
        swept = token_scaling_sweeps(start, COUNTS, STREAM, sweeps=3, noise=noise)
        F = [C[:, 1:] for C in COUNTS[:2]]
        F = [F[0] + F[1]] if kind == "sum" else F
        for U, U_after, F_b in zip(blocks(start), blocks(swept.model), F, strict=True):
            np.testing.assert_array_equal(U_after[:, 0], U[:, 0])  # `<pad>` is no output here
            if not noise:
                assert (F_b == 0).any()
                np.testing.assert_array_equal(U_after[:, 1:][F_b == 0], U[:, 1:][F_b == 0])


def test_impossible_pairs_stay_impossible_and_the_rest_is_fitted():
    swept = token_scaling_sweeps(explicit("cat", 2, noise=False), COUNTS, STREAM, sweeps=20, noise=False)
    assert np.all(np.diff(swept.losses) < 0)
    with_noise = token_scaling_sweeps(explicit("cat", 2), COUNTS, STREAM, sweeps=20)
    assert swept.losses[-1] < with_noise.losses[-1]
    np.testing.assert_array_equal(np.isneginf(swept.model.tables[0])[:, 1:], COUNTS[0][:, 1:] == 0)


@NOISES
@KINDS
def test_devices_and_chunks_change_rounding_only(kind, noise):
    one = token_scaling_sweeps(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise)
    eight = token_scaling_sweeps(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, mesh=data_mesh(8))
    chunked = token_scaling_sweeps(explicit(kind, 2), COUNTS, STREAM, sweeps=3, noise=noise, chunk=64)
    for other in (eight, chunked):
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-12)
        np.testing.assert_allclose(blocks(other.model), blocks(one.model), rtol=0, atol=1e-10)


@NOISES
def test_float32_tables_stay_float32(noise):
    exact = token_scaling_sweeps(explicit("cat", 2), COUNTS, STREAM, sweeps=5, noise=noise)
    single = token_scaling_sweeps(explicit("cat", 2, dtype=jnp.float32), COUNTS, STREAM, sweeps=5, noise=noise)
    assert all(U.dtype == jnp.float32 for U in single.model.tables)
    np.testing.assert_allclose(single.losses, exact.losses, rtol=2e-6)  # 16 eps
    assert np.all(np.diff(single.losses) < 0)


def test_sum_s_tables_are_one_array():
    swept = token_scaling_sweeps(explicit("sum", 4), COUNTS, STREAM, sweeps=1)
    assert len(swept.model.tables) == 4 and all(U is swept.model.tables[0] for U in swept.model.tables)


def test_progress_is_reported_and_the_start_is_left_alone():
    start, reports = explicit("cat", 2), []
    before = np.stack(start.tables)
    token_scaling_sweeps(start, COUNTS, STREAM, sweeps=2, progress=lambda *report: reports.append(report))
    assert reports == [(0, 2), (1, 2), (2, 2)]
    np.testing.assert_array_equal(np.stack(start.tables), before)
    token_scaling_sweeps(start, COUNTS, STREAM, sweeps=0, progress=lambda *report: reports.append(report))
    assert len(reports) == 3  # a measurement has no end to wait for


def unigram_base(kind, K, eos=False):
    """The unigram, spread over the K tokens; `<pad>` as unlikely as what was never seen, where it is no target."""
    f = np.maximum(COUNTS[0].sum(axis=0), 0 if eos else [1, *[0] * (N - 1)])
    U = jnp.broadcast_to(jnp.asarray(np.log(np.where(f > 0, f, 1) / f.sum()) / K), (N, N))
    return TokenTables((U,) * K if kind == "sum" else tuple(U + 0 for _ in range(K)), kind, eos)


def penalised(swept):
    return np.add(swept.losses, swept.penalties)


@pytest.mark.parametrize("discount", [0.7, 1.5])
@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_discounted_sweep_is_the_loop_over_positions(kind, K, discount):
    base = unigram_base(kind, K, eos=True)
    begin = base._replace(tables=tuple(U + 0.3 for U in base.tables[:1]) * K if kind == "sum" else base.tables)
    first = token_scaling_sweeps(begin, COUNTS, STREAM, sweeps=0, noise=False, discount=discount, base=base).model
    X, Y = windows(DOCUMENTS, K, eos=True)
    low, U = np.concatenate(blocks(base)), np.concatenate(blocks(first))
    expected = discounted_sweep(features(X, np.eye(N), kind), U, Y, K, discount, low)
    swept = token_scaling_sweeps(begin, COUNTS, STREAM, sweeps=1, noise=False, discount=discount, base=base)
    np.testing.assert_allclose(np.concatenate(blocks(swept.model)), expected, rtol=0, atol=1e-11)
    assert (expected > low).any() and (expected == low).any()


@pytest.mark.parametrize("K", [1, 2, 4])
@KINDS
def test_a_discounted_sweep_lowers_the_loss_with_its_penalty(kind, K):
    for begin in (unigram_base(kind, K), explicit(kind, K)):
        swept = token_scaling_sweeps(begin, COUNTS, STREAM, sweeps=25, noise=False, discount=0.7, base=unigram_base(kind, K))
        total = penalised(swept)
        assert np.all(np.diff(total) < 1e-14) and total[-1] < total[0] - 1e-3
        assert min(swept.penalties) >= 0 and swept.penalties[-1] > 0


@KINDS
def test_discounted_sweeps_reach_the_minimum_that_scipy_finds(kind):
    """L-BFGS-B on the same problem with its bounds; both stop within 1e-6 nats of the minimum."""
    K, D = 2, 0.7
    base = unigram_base(kind, K, eos=True)
    swept = token_scaling_sweeps(base, COUNTS, STREAM, sweeps=2000, noise=False, discount=D, base=base)
    X, Y = windows(DOCUMENTS, K, eos=True)
    H, low = features(X, np.eye(N), kind), np.concatenate(blocks(base))
    F = H.T @ np.eye(N)[Y]

    def objective(flat):
        U = flat.reshape(low.shape)
        log_p = np.array([log_softmax(row) for row in H @ U])
        loss = -log_p[np.arange(len(Y)), Y].sum() + D * (U - low)[F > 0].sum()
        return loss / len(Y), (H.T @ np.exp(log_p) - F + D * (F > 0)).ravel() / len(Y)

    bounds = [(b, None if seen else b) for b, seen in zip(low.ravel(), (F > 0).ravel(), strict=True)]
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-14, "gtol": 1e-9}
    found = scipy.optimize.minimize(objective, low.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    np.testing.assert_allclose(penalised(swept)[-1], found.fun, rtol=0, atol=1e-6)
    U = np.concatenate(blocks(swept.model))
    expected = H.T @ np.exp([log_softmax(row) for row in H @ U])
    inside = U > low + 1e-3
    np.testing.assert_allclose(expected[inside], F[inside] - D, rtol=0.02)  # E = F - D, approached from one side


def test_a_discount_above_all_counts_leaves_the_base():
    base = unigram_base("cat", 2)
    swept = token_scaling_sweeps(explicit("cat", 2), COUNTS, STREAM, sweeps=1, noise=False, discount=1e6, base=base)
    np.testing.assert_array_equal(blocks(swept.model), blocks(base))


def test_a_discount_needs_a_base_that_fits():
    model = explicit("cat", 2)
    sweep = functools.partial(token_scaling_sweeps, model, COUNTS, STREAM, sweeps=1)
    for discount in (-1.0, np.inf):
        with pytest.raises(ValueError, match="a discount of"):
            sweep(noise=False, discount=discount)
    with pytest.raises(ValueError, match="a discount of"):
        sweep(discount=0.5)
    with pytest.raises(ValueError, match="a base without a discount"):
        sweep(base=model)
    with pytest.raises(ValueError, match="give both the same"):
        sweep(discount=0.5, noise=False, base=unigram_base("cat", 1))
    with pytest.raises(ValueError, match="infinite logits"):
        sweep(discount=0.5, noise=False, base=explicit("cat", 2, noise=False))


def test_bad_input_is_refused_with_a_remedy():
    model = explicit("cat", 2)
    with pytest.raises(ValueError, match="-1 sweeps"):
        token_scaling_sweeps(model, COUNTS, STREAM, sweeps=-1)
    with pytest.raises(ValueError, match="counts of 1 offsets.*model's own radius"):
        token_scaling_sweeps(model, COUNTS[:1], STREAM, sweeps=1)
    with pytest.raises(ValueError, match="vocabulary 4 for radius 2 and vocabulary 9"):
        token_scaling_sweeps(model, dense_counts()[0], STREAM, sweeps=1)
    for other in (stream_of(DOCUMENTS[1:]), stream_of([[8] * len(STREAM)]), stream_of([[N, 1]])):
        with pytest.raises(ValueError, match="do not belong together"):
            token_scaling_sweeps(model, COUNTS, other, sweeps=1)
    with pytest.raises(ValueError, match="no position to predict"):
        token_scaling_sweeps(model, tuple(0 * C for C in COUNTS), STREAM, sweeps=1)
    impossible = model._replace(tables=(jnp.full((N, N), -jnp.inf),) * 2)
    with pytest.raises(FloatingPointError, match="tables of the same stream"):
        token_scaling_sweeps(impossible, COUNTS, STREAM, sweeps=1)
