"""The gradient by hand, training steps, and sweeps, against dense features and slow loops.

Tolerances: a cell of a gradient is a sum of at most K M < 900 numbers of size at most 1, whose rounding is typically 1e-12 in
float64: 1e-10. In float32 logits of size 10 are off by 1e-6, and the sum of 900 probabilities by at most 1e-3. A sweep is a
logarithm of sums of at most 300 numbers in float64, 1e-11; a mean loss may rise by rounding, 1e-14.
"""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference as ref
from interruption import resumed_after
from reference import features

from jexplicit import evaluate
from jexplicit.lm import training
from jexplicit.lm.fit import fit_model
from jexplicit.lm.layers import explicit_language_model, noise_model
from jexplicit.lm.model import token_model
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import data_mesh

N = 13  # of no use to 2 or 8 devices: their last columns are fillers
DOCUMENTS = ref.random_documents(0, 30, N, 18)
STREAM = ref.stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in ref.cooccurrences(DOCUMENTS, 4, N))
TEXT = TrainingText(STREAM, N, counts=COUNTS)
TOKENS = np.bincount(STREAM[1:], minlength=N)
NOISE = noise_model(TOKENS)
GRADIENT_TOLERANCE, LOSS_TOLERANCE = {np.float64: 1e-10, np.float32: 1e-3}, {np.float64: 1e-12, np.float32: 1e-6}


def positions(K):
    X, Y = ref.windows(DOCUMENTS, K, eos=True)
    return X.astype(np.uint16), Y.astype(np.uint16)


def random_tables(K, kind, dtype: Any = np.float64):
    """The parameters: one table for Sum, K for Cat."""
    rng = np.random.default_rng(0)
    return tuple(jax.device_put(np.asarray(rng.normal(size=(N, N)), dtype)) for _ in range(1 if kind == "sum" else K))


def by_hand(tables, X, Y, kind, *, noisy=False, devices=1, program: Any = training.loss_and_gradient):
    """Loss and gradient on the host, the gradient with its filler columns."""
    given = training.split_columns(tables, mesh := data_mesh(devices)), training.make_batch(X, Y, features=kind, size=len(Y))
    loss, gradient = program(*given, features=kind, noise=NOISE if noisy else None, mesh=mesh)
    return float(loss), [np.asarray(G) for G in gradient]


def test_loss_and_gradient_equal_the_slow_loop_on_any_devices():
    for kind, noisy, dtype in (("sum", True, np.float64), ("cat", False, np.float64), ("cat", True, np.float32)):
        (X, Y), tables, E = positions(3), random_tables(3, kind), ref.noisy_embedding(TOKENS) if noisy else np.eye(N)
        loss, gradient = by_hand(random_tables(3, kind, dtype), X, Y, kind, noisy=noisy)
        H, U, atol = features(X, E, kind), np.concatenate(tables), GRADIENT_TOLERANCE[dtype]
        np.testing.assert_allclose(loss, ref.negative_log_likelihood(H, U, Y), rtol=LOSS_TOLERANCE[dtype])
        np.testing.assert_allclose(np.concatenate(gradient), ref.gradient_of_loss(H, U, Y), rtol=0, atol=atol)
        assert {G.dtype for G in gradient} == {np.dtype(dtype)}
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
    monkeypatch.setattr(training, "_block_elsewhere", 100)  # of 128 contexts and more: two blocks, the last one filled
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *operands, default, **_: default(*operands))
    anew = jax.jit(functools.partial(inspect.unwrap(training.loss_and_gradient)), static_argnames=("features", "mesh"))
    theirs = by_hand(tables, X, Y, "cat", devices=8, program=anew)
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-12)
    np.testing.assert_array_equal(theirs[1], ours[1])


def test_adagrad_steps_by_hand_compile_once_and_leave_fillers_and_types_and_what_they_started_from():
    optimizer, mesh = optax.adagrad(0.3, initial_accumulator_value=0.1), data_mesh(8)
    (X, Y), tables = positions(2), random_tables(2, "sum")
    H, U, copies = features(X, ref.noisy_embedding(TOKENS), "sum"), np.concatenate(tables), list(map(np.array, tables))
    squares, state = np.full(U.shape, 0.1), training.initial_state(tables, optimizer, mesh)
    batch = training.make_batch(X, Y, features="sum", size=len(Y))
    placed = jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state)
    step: Any = training.training_step(optimizer, features="sum", noise=NOISE, mesh=mesh)
    before = step._cache_size()  # of tests before this one
    for _ in range(2):
        state, loss = step(state, batch)
        np.testing.assert_allclose(loss, ref.negative_log_likelihood(H, U, Y), rtol=LOSS_TOLERANCE[np.float64])
        G = ref.gradient_of_loss(H, U, Y)
        squares += G**2
        U = U - 0.3 * G / np.sqrt(squares + 1e-7)
    assert step._cache_size() <= before + 1  # compilations; a trace may serve several
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), state) == placed
    np.testing.assert_array_equal(tables, copies)
    assert (np.asarray(state.params[0])[:, N:] == -1e30).all()
    # a gradient that is rounding, off by its tolerance, moves a cell by rate * tolerance / sqrt(eps) at most
    trained = np.asarray(state.params[0])[:, :N]
    np.testing.assert_allclose(trained, U, rtol=0, atol=0.3 * GRADIENT_TOLERANCE[np.float64] / np.sqrt(1e-7))


def test_the_explicit_solution_with_one_token_of_context_has_no_gradient():
    """Log counts, -inf where a pair never occurs; on 8 devices, some has no finite logit for some context."""
    (X, Y), counts = positions(1), COUNTS[:1]
    model = explicit_language_model(counts, features="cat", eos=True, noise=False, dtype=np.float64)
    loss, (gradient,) = by_hand(model.tables, X, Y, "cat", devices=8)
    entropy = -sum(c * np.log(c / row.sum()) for row in counts[0] for c in row[row > 0])
    np.testing.assert_allclose(loss, entropy, rtol=LOSS_TOLERANCE[np.float64])
    np.testing.assert_allclose(gradient, 0, atol=1e-12)  # counts of at most 100, to rounding
    assert np.isneginf(model.tables[0]).sum() > 20


# Sweeps


def explicit(kind, K, *, noise=True, dtype=jnp.float64, eos=False):
    return explicit_language_model(COUNTS, features=kind, context=K, noise=noise, dtype=dtype, eos=eos)


def blocks(model):
    return [np.asarray(U) for U in (model.tables[:1] if model.features == "sum" else model.tables)]


WEIGHTS = np.random.default_rng(5).uniform(0, 1, (2, N)) * np.array([[1], [0.5]])  # of Sum's offsets and tokens


def attentive():
    """Sum's table, which each offset weighs."""
    (V,) = blocks(explicit("sum", 2, eos=True))
    return token_model([jax.device_put(w[:, None] * V) for w in WEIGHTS], "sum", True)


def test_a_sweep_is_the_loop_over_positions_with_and_without_noise():
    for kind, K, eos in (("sum", 2, True), ("cat", 4, False)):
        model, (X, Y) = explicit(kind, K, eos=eos), ref.windows(DOCUMENTS, K, eos=eos)
        swept = training.sweep_tables(model, TEXT, noise=False, sweeps=1).model
        expected = ref.scaling_sweep(features(X, np.eye(N), kind), np.concatenate(blocks(model)), Y, K)
        np.testing.assert_allclose(np.concatenate(blocks(swept)), expected, rtol=0, atol=1e-11)
        assert (swept.features, swept.context, swept.eos) == (kind, K, eos)
    E, rng = ref.noisy_embedding(TOKENS), np.random.default_rng(0)
    for kind, K in (("sum", 2), ("cat", 4)):
        U = [rng.normal(size=(N, N)) for _ in range(1 if kind == "sum" else K)]
        tables = tuple(jax.device_put(E @ U_b) for U_b in U)
        X, Y = ref.windows(DOCUMENTS, K)
        expected = ref.scaling_sweep(features(X, E, kind), np.concatenate(U), Y, K)
        swept = training.sweep_tables(token_model(tables * (K // len(tables)), kind, False), TEXT, sweeps=1)
        for read, U_b in zip(blocks(swept.model), np.split(expected, len(U)), strict=True):
            np.testing.assert_allclose(read, E @ U_b, rtol=0, atol=1e-11)


def test_sweeps_with_a_prior_are_the_loop_over_positions_also_of_one_weighted_table():
    for kind, K in (("sum", 2), ("cat", 4)):
        start, (X, Y) = explicit(kind, K, eos=True), ref.windows(DOCUMENTS, K, eos=True)
        H, U0 = features(X, np.eye(N), kind), np.concatenate(blocks(start))
        once = ref.sweep_near(H, U0, Y, K, 0.7, U0)
        for sweeps, expected in ((1, once), (2, ref.sweep_near(H, once, Y, K, 0.7, U0))):
            moved = blocks(training.sweep_tables(start, TEXT, noise=False, sweeps=sweeps, discount=0.7).model)
            np.testing.assert_allclose(np.concatenate(moved), expected, rtol=0, atol=1e-11)
        assert (once > U0).any() and (once < U0).any() and (once == U0).any()
    (V,), (X, Y) = blocks(explicit("sum", 2, eos=True)), ref.windows(DOCUMENTS, 2, eos=True)
    # F and E weigh every pair by its offset's w(j): features of norms up to C
    H = np.array([sum(w[j] * np.eye(N)[j] for w, j in zip(WEIGHTS, x, strict=True)) for x in X])
    C = H.sum(axis=1).max()
    for discount, moved in ((0.0, ref.scaling_sweep(H, V, Y, C)), (0.7, ref.sweep_near(H, V, Y, C, 0.7, V))):
        swept = training.sweep_tables(attentive(), TEXT, noise=False, sweeps=1, discount=discount, weights=WEIGHTS).model
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
    swept, met = training.sweep_tables(model, TEXT, sweeps=25, **options), []
    total = swept.losses
    assert len(total) == 26 and (swept.penalty > 0) == ("discount" in options)
    assert np.all(np.diff(total) < 1e-14) and total[-1] < total[0] - 1e-4
    if kind == "impossible":
        np.testing.assert_array_equal(np.isneginf(swept.model.tables[0])[:, 1:], COUNTS[0][:, 1:] == 0)

    def on_sweep(sweep, loss, model):
        met.append((sweep, loss, evaluate(model, STREAM).loss))
        return sweep == 3  # it ends where it is told to

    spread = TrainingText(STREAM, N, counts=COUNTS, mesh=data_mesh(8))
    other = training.sweep_tables(model, spread, sweeps=9, on_sweep=on_sweep, **options)
    np.testing.assert_allclose(other.losses, total[:4], rtol=1e-12)
    sweeps, losses, own = zip(*met, strict=True)
    assert sweeps == (0, 1, 2, 3) and ("discount" in options or list(losses) == other.losses.tolist())
    np.testing.assert_allclose(own, losses, rtol=1e-12)  # those of the models on the way


def test_float32_tables_stay_float32_and_interrupted_sweeps_go_on_bit_for_bit(tmp_path):
    exact, single = (
        training.sweep_tables(explicit("cat", 2, dtype=dtype), TEXT, sweeps=5) for dtype in (jnp.float64, jnp.float32)
    )
    assert all(U.dtype == jnp.float32 for U in single.model.tables)
    np.testing.assert_allclose(single.losses, exact.losses, rtol=2e-6)  # 16 eps
    met = []

    def run(on_sweep=lambda sweep, *_: met.append(sweep), **saving):
        return training.sweep_tables(explicit("cat", 2), TEXT, noise=False, sweeps=5, discount=0.7, on_sweep=on_sweep, **saving)

    whole, resumed = run(lambda *_: None), resumed_after(4, run, tmp_path / "sweeps", "on_sweep")
    assert met == [3, 4, 5]
    assert resumed.losses.tolist() == whole.losses.tolist() and resumed.penalty == whole.penalty
    np.testing.assert_array_equal(blocks(resumed.model), blocks(whole.model))


@pytest.mark.slow
@pytest.mark.parametrize("features, K", [("sum", 2), ("cat", 4)])
def test_the_fit_ends_no_higher_than_the_log_linear_model_on_held_out_text(features, K):
    """By name: it starts from the weights of the log-linear fit, and takes as many sweeps as documents left out like best."""
    events: list[dict] = []
    options, rng = Options(features=features, context=K, sweeps=6, calibration_positions=300), np.random.default_rng(0)
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
