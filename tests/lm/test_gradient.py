"""The gradient by hand, the steps it feeds and the distance from the optimum, against dense features and slow loops.

Tolerances: a cell of a gradient is a sum of at most K M < 900 numbers of size at most 1, whose rounding is at worst
900 * 900 * eps = 2e-10 and typically 1e-12 in float64: 1e-10. In float32 logits of size 10 are off by 1e-6, hence
probabilities by 1e-6 of themselves, and the sum of 900 of them by at most 1e-3.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import (
    adagrad_step,
    features,
    gradient_of_loss,
    misplaced_cooccurrences,
    noisy_embedding,
    random_documents,
    stream_of,
    windows,
)
from reference import negative_log_likelihood as negative_log_likelihood_loop

from jexplicit.counts.pairs import count
from jexplicit.lm.core.model import token_model
from jexplicit.lm.core.smoothing import noise_model
from jexplicit.lm.fits import gradient as gradient_module
from jexplicit.lm.fits.gradient import (
    cold_start,
    decoder_model,
    initial_state,
    kkt_residual,
    loss_and_gradient,
    make_batch,
    training_step,
)
from jexplicit.lm.rows import explicit_language_model
from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.explicit import explicit_solution

N = 13  # of no use to 2 or 8 devices: their last columns are fillers
DOCUMENTS = random_documents(0, 30, N, 18)
STREAM = stream_of(DOCUMENTS)
COUNTS = np.bincount(STREAM[1:], minlength=N)
NOISE = noise_model(COUNTS)
GRADIENT_TOLERANCE = {np.float64: 1e-10, np.float32: 1e-3}
LOSS_TOLERANCE = {np.float64: 1e-12, np.float32: 1e-6}  # relative; as in test_softmax

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
SLOW = pytest.mark.slow


OPTIMIZERS = {
    "adagrad": optax.adagrad(0.3, initial_accumulator_value=0.0),
    "adagrad from 0.1": optax.adagrad(0.3, initial_accumulator_value=0.1),
    "gradient descent": optax.sgd(0.05),
    "adam": optax.adam(0.1),
}


def positions(K):
    X, Y = windows(DOCUMENTS, K, eos=True)
    return X.astype(np.uint16), Y.astype(np.uint16)


def random_tables(K, kind, dtype: Any = np.float64, seed=0, vocab_size=N):
    """The parameters: one table for Sum, K for Cat."""
    rng = np.random.default_rng(seed)
    return tuple(
        jax.device_put(np.asarray(rng.normal(size=(vocab_size, vocab_size)), dtype)) for _ in range(1 if kind == "sum" else K)
    )


def embedding(noisy):
    return noisy_embedding(COUNTS) if noisy else np.eye(N)


@functools.cache
def compiled(kind, devices):
    return jax.jit(functools.partial(loss_and_gradient, features=kind, mesh=data_mesh(devices)))


@functools.cache
def compiled_step(optimizer, kind, noisy, devices) -> Any:
    return training_step(optimizer, features=kind, noise=NOISE if noisy else None, mesh=data_mesh(devices))


def batch_of(X, Y, kind: Any = "cat", *, size=None):
    return make_batch(X, Y, features=kind, size=size or len(Y))


def by_hand(tables, X, Y, kind, *, noisy=False, devices=1, size=None, program: Any = compiled):
    """Loss and gradient on the host, the gradient with its filler columns."""
    state = initial_state(tables, optax.identity(), data_mesh(devices))
    loss, gradient = program(kind, devices)(state.params, batch_of(X, Y, kind, size=size), noise=NOISE if noisy else None)
    return float(loss), [np.asarray(G) for G in gradient]


def train(tables, batches, name="gradient descent", kind="cat", *, noisy=False, devices=1):
    """The leaves of the state after a step for each batch, and the losses; tables and filler columns stay as they were."""
    copies, optimizer, losses = list(map(np.array, tables)), OPTIMIZERS[name], []
    state = initial_state(tables, optimizer, data_mesh(devices))
    fillers = [np.array(leaf)[:, tables[0].shape[1] :] for leaf in jax.tree.leaves(state)]
    for batch in batches:
        state, loss = compiled_step(optimizer, kind, noisy, devices)(state, batch)
        losses.append(float(loss))
    np.testing.assert_array_equal(tables, copies)
    leaves = list(map(np.asarray, jax.tree.leaves(state)))
    for leaf, filler in zip(leaves, fillers, strict=True):
        np.testing.assert_array_equal(leaf[:, tables[0].shape[1] :], filler)
    assert (fillers[0] == np.asarray(-1e30, fillers[0].dtype)).all()
    return leaves, losses


@jax.jit
def dense_loss(tables, X, Y, E):
    """Eq. 1 with the noisy embedding as a dense matrix: K tables, the same K times for Sum."""
    logits = sum(E[X[:, k]] @ U for k, U in enumerate(tables))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), Y[:, None], axis=1).sum()


@pytest.mark.parametrize(
    "kind, K, noisy, dtype",
    [
        *(("sum", 3, True, np.float64), ("cat", 3, False, np.float64), ("cat", 3, True, np.float32)),
        *(pytest.param("cat", 1, True, np.float64, marks=SLOW), pytest.param("sum", 3, False, np.float64, marks=SLOW)),
    ],
)
def test_loss_and_gradient_equal_the_slow_loop_and_automatic_differentiation(kind, K, noisy, dtype):
    X, Y = positions(K)
    tables, E = random_tables(K, kind), embedding(noisy)
    loss, gradient = by_hand(random_tables(K, kind, dtype), X, Y, kind, noisy=noisy)
    assert all(G.dtype == dtype for G in gradient)

    H, U = features(X, E, kind), np.concatenate(tables)
    np.testing.assert_allclose(loss, negative_log_likelihood_loop(H, U, Y), rtol=LOSS_TOLERANCE[dtype])
    np.testing.assert_allclose(np.concatenate(gradient), gradient_of_loss(H, U, Y), rtol=0, atol=GRADIENT_TOLERANCE[dtype])

    def brute_force(params):
        return dense_loss(params * K if kind == "sum" else params, X.astype(int), Y.astype(int), E)

    for G, expected in zip(gradient, jax.jit(jax.grad(brute_force))(tables), strict=True):
        np.testing.assert_allclose(G, expected, rtol=0, atol=GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["cat", pytest.param("sum", marks=SLOW)])
def test_an_accelerator_s_gradient_is_that_of_a_cpu(kind, monkeypatch):
    """Cat adds the same numbers in the same order; Sum adds all contexts offset by offset, which changes the rounding."""
    tables, (X, Y) = random_tables(3, kind), positions(3)
    ours = by_hand(tables, X, Y, kind, devices=8)
    monkeypatch.setattr(gradient_module, "_block_elsewhere", 100)  # of 128 contexts and more: two blocks, the last one filled
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, default, **_: default(*operands))
    theirs = by_hand(tables, X, Y, kind, devices=8, program=compiled.__wrapped__)  # traced anew
    assert theirs[0] == pytest.approx(ours[0], rel=LOSS_TOLERANCE[np.float64])
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0 if kind == "cat" else GRADIENT_TOLERANCE[np.float64])


@pytest.mark.parametrize(("kind", "noisy"), [("cat", False), pytest.param("sum", True, marks=SLOW)])
def test_the_number_of_devices_does_not_change_the_gradient_and_fillers_have_none(kind, noisy):
    tables, (X, Y) = random_tables(3, kind), positions(3)
    one_loss, one = by_hand(tables, X, Y, kind, noisy=noisy)
    for G in one:  # a constant added to a row changes no probability
        np.testing.assert_allclose(G.sum(axis=1), 0, atol=N * GRADIENT_TOLERANCE[np.float64])
    loss, gradient = by_hand(tables, X, Y, kind, noisy=noisy, devices=8)
    np.testing.assert_allclose(loss, one_loss, rtol=1e-14)  # only the order of sums differs
    for G, G_one in zip(gradient, one, strict=True):
        assert G.shape == (N, 16)
        np.testing.assert_allclose(G[:, :N], G_one, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(G[:, N:], 0)


@pytest.mark.parametrize("kind", ["sum", pytest.param("cat", marks=SLOW)])
def test_the_padding_of_a_smaller_batch_changes_nothing(kind):
    X, Y = (a[:90] for a in positions(2))
    loss, gradient = by_hand(random_tables(2, kind), X, Y, kind, size=1000)
    exact_loss, exact = by_hand(random_tables(2, kind), X, Y, kind, size=90)
    np.testing.assert_allclose(loss, exact_loss, rtol=1e-14)  # zeros are added, perhaps in another order
    np.testing.assert_array_equal(gradient, exact)


def test_a_batch_has_every_context_once_with_its_weight_and_every_position():
    X, Y = positions(2)
    batch = batch_of(X, Y, size=600)
    assert len(batch.X) == len(batch.Y) == 600 and len(batch.distinct) == len(batch.weights)
    assert len(batch.distinct) % gradient_module._block == 0
    assert batch.weights.sum() == len(Y) and (batch.Y[len(Y) :] == -1).all()
    np.testing.assert_array_equal(batch.X[: len(Y)], X)
    np.testing.assert_array_equal(batch.Y[: len(Y)], Y)
    weights = {tuple(x): int(w) for x, w in zip(batch.distinct, batch.weights, strict=True) if w}
    assert len(weights) == (batch.weights > 0).sum()
    assert weights == {x: int((X == x).all(axis=1).sum()) for x in set(map(tuple, X.tolist()))}
    batch = batch_of(X, Y, "sum")  # which has fewer
    kept = [tuple(x) for x, w in zip(batch.distinct.tolist(), batch.weights, strict=True) if w]
    assert batch.weights.sum() == len(Y) and sorted(kept) == sorted({tuple(sorted(x)) for x in X.tolist()})


@pytest.mark.parametrize("kind, noisy, accumulator", [("sum", True, 0.1), pytest.param("cat", False, 0.0, marks=SLOW)])
def test_adagrad_steps_by_hand(kind, noisy, accumulator, devices=8):
    X, Y = positions(2)
    H, U = features(X, embedding(noisy), kind), np.concatenate(random_tables(2, kind))
    squares = np.full(U.shape, accumulator)
    name = "adagrad from 0.1" if accumulator else "adagrad"
    leaves, losses = train(random_tables(2, kind), [batch_of(X, Y, kind)] * 2, name, kind, noisy=noisy, devices=devices)
    for loss in losses:
        np.testing.assert_allclose(loss, negative_log_likelihood_loop(H, U, Y), rtol=LOSS_TOLERANCE[np.float64])
        U, squares = adagrad_step(U, gradient_of_loss(H, U, Y), squares, rate=0.3, eps=1e-7)
    # a gradient that is rounding, off by its tolerance, moves a cell by rate * tolerance / sqrt(eps) at most
    tolerance = 0.3 * GRADIENT_TOLERANCE[np.float64] / np.sqrt(1e-7)
    trained = np.concatenate([leaf[:, :N] for leaf in leaves[: len(U) // N]])
    np.testing.assert_allclose(trained, U, rtol=0, atol=tolerance)


# steps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_leaves_the_parameters_of_another_state(vocab_size=16):  # without fillers, which would be copies
    mesh, optimizer = data_mesh(2), OPTIMIZERS["gradient descent"]
    given = random_tables(2, "cat", vocab_size=vocab_size)
    batch = batch_of(*positions(2))
    train(given, [batch], devices=2)
    started = initial_state(given, optimizer, mesh)
    compiled_step(optimizer, "cat", False, 2)(initial_state(started.params, optimizer, mesh), batch)
    np.testing.assert_array_equal(started.params, given)


@pytest.mark.parametrize(
    ("name", "devices", "dtype"), [("adagrad", 8, np.float32), pytest.param("adam", 2, np.float64, marks=SLOW)]
)
def test_a_step_compiles_once_and_keeps_the_types_and_placement_of_its_state(name, devices, dtype):
    mesh, optimizer = data_mesh(devices), OPTIMIZERS[name]
    X, Y = positions(2)
    state = initial_state(random_tables(2, "cat", dtype), optimizer, mesh)
    placed = jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state)
    step: Any = training_step(optimizer, features="cat", noise=NOISE, mesh=mesh)
    before = step._cache_size()  # of tests before this one
    for m in (0, 50, 100, 120):
        part = slice(m, min(m + 50, 130))
        state, _ = step(state, batch_of(X[part], Y[part], size=50))
    assert step._cache_size() <= before + 1  # compilations; a trace may serve several
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state) == placed


def test_trained_tables_are_read_as_a_dense_embedding_reads_them():
    tables = random_tables(3, "cat")
    for devices in (1, 8):
        padded = initial_state(tables, optax.identity(), data_mesh(devices)).params
        for params in (padded, tuple(map(np.asarray, padded))):
            plain = decoder_model(params, features="cat", radius=3, eos=False, noise=None)
            noisy = decoder_model(params, features="cat", radius=3, eos=True, noise=NOISE)
            assert (plain.radius, plain.vocab_size, plain.eos, noisy.eos) == (3, N, False, True)
            for U, table, read in zip(tables, plain.tables, noisy.tables, strict=True):
                np.testing.assert_array_equal(table, U)
                np.testing.assert_allclose(read, embedding(True) @ U, rtol=0, atol=1e-14)  # 13 numbers of order 1
    shared = decoder_model(random_tables(3, "sum"), features="sum", radius=3, eos=False, noise=None)
    assert shared.radius == 3 and all(table is shared.tables[0] for table in shared.tables)


# the optimum -----------------------------------------------------------------------------------------------------------


def frequencies():
    """The explicit solution at K = 1 without noise: log counts, -inf where a pair never occurs."""
    model = explicit_language_model(
        count(STREAM, radius=1, vocab_size=N), features="cat", radius=1, eos=True, noise=False, dtype=np.float64
    )
    assert np.isneginf(model.tables[0]).sum() > 20
    return model


@pytest.mark.parametrize("devices", [8, pytest.param(1, marks=SLOW)])  # at 8, some device has no finite logit for some context
def test_the_explicit_solution_at_radius_one_has_no_gradient_and_stays(devices):
    X, Y = positions(1)
    (U,) = frequencies().tables
    loss, (gradient,) = by_hand((U,), X, Y, "cat", devices=devices)
    C = np.bincount(X[:, 0].astype(int) * N + Y, minlength=N * N).reshape(N, N)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row[row > 0])
    np.testing.assert_allclose(loss, entropy, rtol=LOSS_TOLERANCE[np.float64])
    np.testing.assert_allclose(gradient, 0, atol=1e-12)  # counts of at most 100, to rounding
    (stayed,), _ = train((U,), [batch_of(X, Y)], devices=devices)
    np.testing.assert_allclose(stayed[:, :N], U, rtol=1e-15, atol=0.05 * 1e-12)


def test_a_cold_and_a_warm_start_reach_the_same_optimum():
    # every triple occurs, so the optimum is finite
    M, K, n = 200, 2, 4
    rng = np.random.default_rng(0)
    triples = np.concatenate([np.stack(np.meshgrid(*[np.arange(n)] * 3), -1).reshape(-1, 3), rng.integers(0, n, (M - n**3, 3))])
    X, Y = triples[:, :K], triples[:, K]
    F = tuple(jax.device_put(np.asarray(np.bincount(column * n + Y, minlength=n * n).reshape(n, n), float)) for column in X.T)
    H = features(X, np.eye(n), "cat")
    smoothness = np.linalg.eigvalsh(H.T @ H).max() / 2  # the covariance of a softmax is at most 1/2
    mesh, optimizer, ends = data_mesh(1), optax.sgd(1 / smoothness), []
    step = training_step(optimizer, features="cat", noise=None, mesh=mesh)
    batch = batch_of(X, Y)
    cold = cold_start(jax.random.key(0), features="cat", radius=K, vocab_size=n, dtype=jnp.float64)
    for tables in (cold, explicit_solution(F, K)):
        state, loss = initial_state(tables, optimizer, mesh), np.inf
        for _ in range(500):
            state, loss = step(state, batch)
        model = decoder_model(state.params, features="cat", radius=K, eos=True, noise=None)
        assert kkt_residual(model, X, Y, mesh=mesh) < 1e-8 < kkt_residual(token_model(tables, "cat", True), X, Y, mesh=mesh)
        ends.append((float(loss), np.concatenate(state.params)))
    # the loss is convex: L(a) - L(b) <= <grad L(a), a - b>, both ways, and the entries of a gradient sum to at most K M 1e-8
    (one, U), (other, V) = ends
    assert abs(one - other) <= K * M * 1e-8 * np.abs(U - V).max() + 1e-12 * one < 1e-4


def test_the_residual_is_zero_at_the_relative_frequencies():
    X, Y = positions(1)
    for devices in (1, 8):
        # the rounding of N^2 counts, over their sum
        assert kkt_residual(frequencies(), X, Y, mesh=data_mesh(devices)) < N * N * 1e-15
    counted = explicit_language_model(count(STREAM, radius=1, vocab_size=N), features="cat", eos=True, dtype=np.float64)
    assert kkt_residual(counted, X, Y, mesh=data_mesh(1)) > 0.01  # the noise moves it


def as_model(tables, kind, K):
    return token_model(list(tables) * K if kind == "sum" else tables, kind, True)


@pytest.mark.parametrize(
    ("kind", "K", "dtype"),
    [*(("sum", 3, np.float64), ("cat", 3, np.float32)), *(pytest.param("cat", K, np.float64, marks=SLOW) for K in (1, 3))],
)
def test_the_residual_equals_the_slow_loop(kind, K, dtype):
    tables, (X, Y) = random_tables(K, kind), positions(K)
    expected = misplaced_cooccurrences(features(X, np.eye(N), kind), np.concatenate(tables), Y, K)
    model = as_model(random_tables(K, kind, dtype), kind, K)
    # the mean over K M of errors of K M numbers: those of one of them
    np.testing.assert_allclose(kkt_residual(model, X, Y, mesh=data_mesh(1)), expected, rtol=10 * LOSS_TOLERANCE[dtype])
    if dtype == np.float64:
        moved = as_model((jax.device_put(tables[0] + 2.0 * np.eye(N)[1][:, None]), *tables[1:]), kind, K)  # a constant of a row
        np.testing.assert_allclose(kkt_residual(moved, X, Y, mesh=data_mesh(1)), expected, rtol=1e-11)
        large = as_model([jax.device_put(20 * np.asarray(table)) for table in tables], kind, K)
        assert kkt_residual(large, X, Y, mesh=data_mesh(1)) < 2


@pytest.mark.parametrize(("kind", "chunk", "devices"), [("cat", 30, 8), pytest.param("sum", 1, 1, marks=SLOW)])
def test_neither_chunk_nor_devices_change_the_residual(kind, chunk, devices):
    X, Y = (a[:100] for a in positions(2))
    model = as_model(random_tables(2, kind), kind, 2)
    whole = kkt_residual(model, X, Y, mesh=data_mesh(1))
    np.testing.assert_allclose(kkt_residual(model, X, Y, mesh=data_mesh(devices), chunk=chunk), whole, rtol=1e-12)


def test_the_residual_of_a_model_that_is_always_wrong_is_just_below_two():
    X, Y = np.zeros((50, 2), np.uint8), np.full(50, 3, np.uint8)
    for logit in (-1.0, 5.0, 10.0):
        tables = (jax.device_put(logit * (np.arange(N) == 1) * np.ones((N, 1))),) * 2
        p = 1 / (N - 1 + np.exp(2 * logit))  # of the target
        residual = kkt_residual(token_model(tables, "sum", True), X, Y, mesh=data_mesh(2))
        np.testing.assert_allclose(residual, 2 * (1 - p), rtol=1e-13)
        assert residual < 2


@pytest.mark.parametrize("kind, dtype", [("cat", np.float32), pytest.param("sum", np.float64, marks=SLOW)])
def test_a_cold_start_is_uniform_within_its_bound(kind, dtype):
    n, K = 40, 3
    tables = cold_start(jax.random.key(0), features=kind, radius=K, vocab_size=n, dtype=dtype)
    blocks = 1 if kind == "sum" else K
    assert [(U.shape, U.dtype) for U in tables] == [((n, n), dtype)] * blocks
    U = np.concatenate(tables).astype(np.float64)
    b = 1 / np.sqrt(blocks * n)
    assert 0.99 * b < U.max() <= b * (1 + 1e-7) and -b * (1 + 1e-7) <= U.min() < -0.99 * b  # the bound in float32
    # six standard errors: the variance of u is b^2/3, that of u^2 is (1/5 - 1/9) b^4 = 4/45 b^4
    assert abs(U.mean()) < 6 * b / np.sqrt(3 * U.size)
    assert abs((U**2).mean() - b**2 / 3) < 6 * b**2 * np.sqrt(4 / 45 / U.size)


def test_a_cold_start_depends_on_its_key_alone_and_its_tables_differ():
    def start(seed):
        return cold_start(jax.random.key(seed), features="cat", radius=2, vocab_size=N)

    np.testing.assert_array_equal(start(1), start(1))
    distinct = [*start(1), *start(2)]
    assert all(not np.array_equal(distinct[a], distinct[b]) for a in range(4) for b in range(a))
