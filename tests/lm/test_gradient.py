"""The gradient by hand, the steps it feeds and the distance from the optimum, against dense features and slow loops.

Tolerances: a cell of a gradient is a sum of at most K M < 900 numbers of size at most 1, whose rounding is typically 1e-12 in
float64: 1e-10. In float32 logits of size 10 are off by 1e-6, and the sum of 900 probabilities by at most 1e-3.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    initial_state,
    kkt_residual,
    loss_and_gradient,
    make_batch,
    training_step,
)
from jexplicit.lm.rows import explicit_language_model
from jexplicit.runs.devices import data_mesh

N = 13  # of no use to 2 or 8 devices: their last columns are fillers
DOCUMENTS = random_documents(0, 30, N, 18)
STREAM = stream_of(DOCUMENTS)
COUNTS = np.bincount(STREAM[1:], minlength=N)
NOISE = noise_model(COUNTS)
GRADIENT_TOLERANCE = {np.float64: 1e-10, np.float32: 1e-3}
LOSS_TOLERANCE = {np.float64: 1e-12, np.float32: 1e-6}  # relative


def positions(K):
    X, Y = windows(DOCUMENTS, K, eos=True)
    return X.astype(np.uint16), Y.astype(np.uint16)


def random_tables(K, kind, dtype: Any = np.float64):
    """The parameters: one table for Sum, K for Cat."""
    rng = np.random.default_rng(0)
    return tuple(jax.device_put(np.asarray(rng.normal(size=(N, N)), dtype)) for _ in range(1 if kind == "sum" else K))


@functools.cache
def compiled(kind, devices):
    return jax.jit(functools.partial(loss_and_gradient, features=kind, mesh=data_mesh(devices)))


def batch_of(X, Y, kind: Any = "cat"):
    return make_batch(X, Y, features=kind, size=len(Y))


def by_hand(tables, X, Y, kind, *, noisy=False, devices=1, program: Any = compiled):
    """Loss and gradient on the host, the gradient with its filler columns."""
    state = initial_state(tables, optax.identity(), data_mesh(devices))
    loss, gradient = program(kind, devices)(state.params, batch_of(X, Y, kind), noise=NOISE if noisy else None)
    return float(loss), [np.asarray(G) for G in gradient]


@jax.jit
def dense_loss(tables, X, Y, E):
    """Eq. 1 with the noisy embedding as a dense matrix: K tables, the same K times for Sum."""
    logits = sum(E[X[:, k]] @ U for k, U in enumerate(tables))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), Y[:, None], axis=1).sum()


def test_loss_and_gradient_equal_the_slow_loop_and_automatic_differentiation_on_any_devices():
    for kind, noisy, dtype in (("sum", True, np.float64), ("cat", False, np.float64), ("cat", True, np.float32)):
        (X, Y), tables, E = positions(3), random_tables(3, kind), noisy_embedding(COUNTS) if noisy else np.eye(N)
        loss, gradient = by_hand(random_tables(3, kind, dtype), X, Y, kind, noisy=noisy)
        H, U, atol = features(X, E, kind), np.concatenate(tables), GRADIENT_TOLERANCE[dtype]
        np.testing.assert_allclose(loss, negative_log_likelihood_loop(H, U, Y), rtol=LOSS_TOLERANCE[dtype])
        np.testing.assert_allclose(np.concatenate(gradient), gradient_of_loss(H, U, Y), rtol=0, atol=atol)

        def brute_force(params, X=X.astype(int), Y=Y.astype(int), E=E):  # noqa: B008
            return dense_loss(params * (3 // len(params)), X, Y, E)

        for G, expected in zip(gradient, jax.jit(jax.grad(brute_force))(tables), strict=True):
            assert G.dtype == dtype
            np.testing.assert_allclose(G, expected, rtol=0, atol=atol)
            np.testing.assert_allclose(G.sum(axis=1), 0, atol=N * atol)  # a constant of a row changes no probability
        if dtype == np.float64:
            loss8, gradient8 = by_hand(tables, X, Y, kind, noisy=noisy, devices=8)
            np.testing.assert_allclose(loss8, loss, rtol=1e-14)  # only the order of sums differs
            for G, one in zip(gradient8, gradient, strict=True):
                np.testing.assert_allclose(G, np.pad(one, ((0, 0), (0, 3))), rtol=0, atol=1e-12)
                np.testing.assert_array_equal(G[:, N:], 0)


def test_an_accelerator_s_gradient_is_that_of_a_cpu(monkeypatch):
    """Cat adds the same numbers in the same order."""
    tables, (X, Y) = random_tables(3, "cat"), positions(3)
    ours = by_hand(tables, X, Y, "cat", devices=8)
    monkeypatch.setattr(gradient_module, "_block_elsewhere", 100)  # of 128 contexts and more: two blocks, the last one filled
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, default, **_: default(*operands))
    theirs = by_hand(tables, X, Y, "cat", devices=8, program=compiled.__wrapped__)  # traced anew
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-12)
    np.testing.assert_array_equal(theirs[1], ours[1])


def test_adagrad_steps_by_hand_compile_once_and_leave_fillers_and_types_and_what_they_started_from():
    optimizer, mesh = optax.adagrad(0.3, initial_accumulator_value=0.1), data_mesh(8)
    (X, Y), tables = positions(2), random_tables(2, "sum")
    H, U, copies = features(X, noisy_embedding(COUNTS), "sum"), np.concatenate(tables), list(map(np.array, tables))
    squares, state, batch = np.full(U.shape, 0.1), initial_state(tables, optimizer, mesh), batch_of(X, Y, "sum")
    placed = jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state)
    step: Any = training_step(optimizer, features="sum", noise=NOISE, mesh=mesh)
    before = step._cache_size()  # of tests before this one
    for _ in range(2):
        state, loss = step(state, batch)
        np.testing.assert_allclose(loss, negative_log_likelihood_loop(H, U, Y), rtol=LOSS_TOLERANCE[np.float64])
        U, squares = adagrad_step(U, gradient_of_loss(H, U, Y), squares, rate=0.3, eps=1e-7)
    assert step._cache_size() <= before + 1  # compilations; a trace may serve several
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state) == placed
    np.testing.assert_array_equal(tables, copies)
    assert (np.asarray(state.params[0])[:, N:] == -1e30).all()
    # a gradient that is rounding, off by its tolerance, moves a cell by rate * tolerance / sqrt(eps) at most
    trained = np.asarray(state.params[0])[:, :N]
    np.testing.assert_allclose(trained, U, rtol=0, atol=0.3 * GRADIENT_TOLERANCE[np.float64] / np.sqrt(1e-7))


def test_the_explicit_solution_at_radius_one_has_no_gradient_and_no_residual_and_stays():
    """Log counts, -inf where a pair never occurs; on 8 devices, some has no finite logit for some context."""
    (X, Y), counts, mesh = positions(1), count(STREAM, radius=1, vocab_size=N), data_mesh(8)
    model = explicit_language_model(counts, features="cat", eos=True, noise=False, dtype=np.float64)
    U, batch = np.asarray(model.tables[0]), batch_of(X, Y)
    loss, (gradient,) = by_hand(model.tables, X, Y, "cat", devices=8)
    entropy = -sum(c * np.log(c / row.sum()) for row in counts[0] for c in row[row > 0])
    np.testing.assert_allclose(loss, entropy, rtol=LOSS_TOLERANCE[np.float64])
    np.testing.assert_allclose(gradient, 0, atol=1e-12)  # counts of at most 100, to rounding
    step = training_step(optax.sgd(0.05), features="cat", noise=None, mesh=mesh)
    state, _ = step(initial_state(model.tables, optax.sgd(0.05), mesh), batch)
    np.testing.assert_allclose(np.asarray(state.params[0])[:, :N], U, rtol=1e-15, atol=0.05 * 1e-12)
    assert np.isneginf(U).sum() > 20
    for devices in (1, 8):  # the rounding of N^2 counts, over their sum
        assert kkt_residual(model, X, Y, mesh=data_mesh(devices)) < N * N * 1e-15
    noisy = explicit_language_model(counts, features="cat", eos=True, dtype=np.float64)
    assert kkt_residual(noisy, X, Y, mesh=mesh) > 0.01


def test_the_residual_equals_the_slow_loop_in_chunks_and_on_devices_and_stays_below_two():
    X, Y = positions(3)
    for kind, dtype in (("sum", np.float64), ("cat", np.float32)):
        tables = random_tables(3, kind)
        expected = misplaced_cooccurrences(features(X, np.eye(N), kind), np.concatenate(tables), Y, 3)
        single, times = random_tables(3, kind, dtype), 3 // len(tables)
        model, rtol = token_model(single * times, kind, True), 10 * LOSS_TOLERANCE[dtype]
        # the mean over K M of errors of K M numbers: those of one of them
        for devices, chunk in ((1, 10_000), (8, 30)):
            residual = kkt_residual(model, X, Y, mesh=data_mesh(devices), chunk=chunk)
            np.testing.assert_allclose(residual, expected, rtol=rtol)
        moved = (jax.device_put(tables[0] + 2.0 * np.eye(N)[1][:, None]), *tables[1:])  # a constant of a row
        residual = kkt_residual(token_model(moved * times, kind, True), X, Y, mesh=data_mesh(1))
        np.testing.assert_allclose(residual, expected, rtol=1e-11)
    X, Y = np.zeros((50, 2), np.uint8), np.full(50, 3, np.uint8)
    tables = (jax.device_put(10.0 * (np.arange(N) == 1) * np.ones((N, 1))),) * 2  # always wrong
    residual = kkt_residual(token_model(tables, "sum", True), X, Y, mesh=data_mesh(2))
    assert 1.999 < residual < 2
