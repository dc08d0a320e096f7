"""The explicit solution, stacks, δ, measures, sweeps and least squares: formulas, loops, scikit-learn; one device and eight.

Tolerances: a few logarithms of order 1..10 and sums of a few hundred counts; 1e-12 leaves a factor of 1000 over float64's
eps, 1e-5 a factor of 100 over float32's.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from interruption import resumed_after
from scipy.special import log_softmax, softmax
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import CategoricalNB, MultinomialNB

from jexplicit.features import fourier_directions, fourier_features
from jexplicit.nn.networks import SoftmaxStack, init_variables, network_outputs
from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.explicit import (
    SoftmaxLayer,
    accuracy,
    calibration_error,
    closeness,
    dense_cooccurrence,
    explicit_solution,
    fit_delta,
    fit_temperature,
    mean_loss,
    priming_number,
    solve_layers,
    stack_logits,
)
from jexplicit.solvers.sweeps import (
    choose_ridge,
    curvature_bound_sweeps,
    gram_least_squares,
    gram_matrix,
    gram_softmax_sweeps,
    iterative_scaling_sweeps,
    split_examples,
    streamed_logits,
    tempered,
)

V, OUTPUTS = 6, 3  # input tokens, outputs
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
device = jax.device_put


def positive(M=300, D=6, N=3, dtype=np.float64):
    """Positive features that say something of labels of different frequencies; targets; labels."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.minimum(np.arange(M) % 4, N - 1))
    H = rng.gamma(1.0, 1.0, (M, D)) * (1 + rng.random((N, D)))[labels] + 0.05
    return device(H.astype(dtype)), device(np.asarray(reference.one_hot(labels, N), dtype)), labels


def log_predictions(logits):
    return log_softmax(np.asarray(logits), axis=1)


@pytest.mark.parametrize("K, dtype", [(2, np.float64), (105.99, np.float32)])
def test_the_solution_equals_the_paper_s_formula(K, dtype):
    F = np.random.default_rng(8).gamma(1.0, 3.0, (6, 3)) + 0.1
    U = explicit_solution(device(F.astype(dtype)), K)
    assert U.dtype == dtype
    expected, atol = reference.explicit_solution(F, K), TOLERANCE[dtype] * 10  # logarithms of order 10
    np.testing.assert_allclose(U, expected, rtol=0, atol=atol)
    blocks = explicit_solution((device(F[:2].astype(dtype)), F[2:].astype(dtype)), K)  # of rows, of JAX and of NumPy
    assert isinstance(blocks, tuple)
    np.testing.assert_allclose(np.concatenate(blocks), expected, rtol=0, atol=atol)
    F[2, 1] = 0  # a pair that never occurred has no chance, and spoils no other
    U = np.asarray(explicit_solution(device(F.astype(dtype)), K))
    assert U[2, 1] == -np.inf and np.isfinite(U).sum() == U.size - 1


@pytest.mark.parametrize("kind, oracle, K", [("cat", CategoricalNB, 3), ("sum", MultinomialNB, 2)])
def test_predictions_are_scikit_learn_s_naive_bayes(K, kind, oracle):
    """Of contexts in which every token meets every output at every offset."""
    rng = np.random.default_rng(7)
    Y = rng.choice(OUTPUTS, 600, p=[0.5, 0.3, 0.2])
    X = np.stack([(Y * rng.integers(0, 2, 600) + rng.integers(0, V, 600)) % V for _ in range(K)], axis=1)
    H = reference.features(X, np.eye(V), kind)
    F = H.T @ reference.one_hot(Y, OUTPUTS)
    inputs, more = (X, {"min_categories": V}) if kind == "cat" else (H, {})
    expected = oracle(alpha=0, force_alpha=True, **more).fit(inputs, Y).predict_log_proba(inputs)
    # 1e-9, the size of what scikit-learn's own order of sums could add over 600 positions, and far below any other model
    found = log_predictions(H @ np.asarray(explicit_solution(device(F), K)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert F.min() > 0 and priming_number(device(H)).item() == K


# M = 30 products of numbers in [0, 1] are added: rounding stays below 30 eps of the sum.
@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-14), (np.float32, 4e-6)])
def test_cooccurrences_are_the_sum_of_outer_products_and_of_labels_those_of_one_hot_targets(dtype, rtol):
    rng = np.random.default_rng(2)
    H, Y, labels = rng.random((30, 5)), rng.dirichlet(np.ones(4), 30), rng.integers(0, 4, 30)
    X = device(H.astype(dtype))
    F = dense_cooccurrence(X, device(Y.astype(dtype)))
    assert F.dtype == dtype
    np.testing.assert_allclose(F, reference.generalized_cooccurrences(H, Y), rtol=rtol)
    F = dense_cooccurrence(X, labels, 5)
    assert F.dtype == dtype
    np.testing.assert_allclose(F, reference.generalized_cooccurrences(H, np.eye(5)[labels]), rtol=rtol)
    np.testing.assert_array_equal(dense_cooccurrence(X, labels), np.asarray(F)[:, : labels.max() + 1])


def test_sums_go_on_above_the_integers_of_float32_and_of_narrow_floats():
    M = 2**24 + 5  # float32 has 2^24 + 4 and 2^24 + 6; one by one it would stay at 2^24
    found = dense_cooccurrence(jnp.ones((M, 1), jnp.float32), np.zeros(M, np.int32), outputs=1)
    assert found.dtype == np.float32 and abs(float(found[0, 0]) - M) <= 1
    ones = jnp.ones((3001, 1), jnp.bfloat16)
    for targets in (np.zeros(3001, np.int32), jnp.ones((3001, 1), jnp.float32)):
        assert float(dense_cooccurrence(ones, targets, outputs=1)[0, 0]) == 3001
    assert float(priming_number(jnp.full((3, 257), 1.0, jnp.bfloat16))) == 257


def test_at_delta_the_mean_log_count_of_the_model_is_that_of_the_targets():
    """Which is where the loss, a convex function of delta, has no slope."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    H = np.random.default_rng(99).gamma(1.0, 2.0, (3, 6))[labels] * rng.gamma(1.0, 1.0, (300, 6)) + 0.1
    F, f, K = H.T @ np.eye(3)[labels], np.bincount(labels).astype(float), H.sum(axis=1).mean()
    u, log_f = H.sum(axis=1) / K, np.log(f)
    base = H @ np.log(F) - (K - 1) * u[:, None] * np.log(F.sum(axis=0))[None, :]
    delta = fit_delta(lambda z: z, *device((base, u, labels, log_f)))

    logits = base - delta * u[:, None] * log_f[None, :]
    assert u @ (softmax(logits, axis=1) @ log_f) == pytest.approx(u @ log_f[labels], rel=1e-4) and abs(delta) > 0.01
    given = np.zeros((4, 2)), np.ones(4), np.array([0, 0, 1, 1]), np.full(2, 3.0)
    assert fit_delta(lambda x: x, *device(given)) == 0  # outputs that are equally frequent


# Stacks: sums of some hundred logarithms of order 10 in float64, 1e-10; float32 leaves 1e-4.


@pytest.mark.parametrize("layers, dtype, tolerance", [(3, np.float64, 1e-10), (1, np.float32, 1e-4)])
def test_every_layer_is_the_papers_solution_of_its_own_inputs_and_a_layer_of_a_network(layers, dtype, tolerance):
    H, Y = positive(dtype=dtype)[:2]
    solved = solve_layers(H, Y, [SoftmaxLayer()] * layers).params
    inputs, expected = np.asarray(H, np.float64), np.zeros(0)
    for U in solved:
        F = reference.generalized_cooccurrences(inputs, np.asarray(Y, np.float64))
        decoder = reference.explicit_solution(F, max(1.0, np.abs(inputs).sum(axis=1).mean()))
        np.testing.assert_allclose(U, decoder, rtol=0, atol=tolerance)
        expected = inputs @ decoder
        inputs = softmax(expected, axis=1)
    np.testing.assert_allclose(stack_logits(solved, H), expected, rtol=0, atol=100 * tolerance)
    model = SoftmaxStack(3, layers, dtype=dtype)
    variables = {"params": {f"layer_{n}": {"kernel": U} for n, U in enumerate(solved, 1)}, "batch_stats": {}}
    assert jax.tree.map(jnp.shape, init_variables(model, jax.random.key(0), H)) == jax.tree.map(jnp.shape, variables)
    np.testing.assert_allclose(network_outputs(model, variables, H), expected, rtol=0, atol=100 * tolerance)


def test_a_layer_may_have_its_own_priming_number():
    H, Y, _ = positive()
    solved = solve_layers(H, Y, [SoftmaxLayer(K=7.0), SoftmaxLayer()])
    np.testing.assert_allclose(solved.params[0], explicit_solution(dense_cooccurrence(H, Y), 7.0), rtol=1e-12)
    assert solved.K == pytest.approx((7.0, 1.0))


# Measures


def test_accuracy_and_mean_loss_are_the_loops():
    rng = np.random.default_rng(0)
    H, U, labels = rng.normal(size=(60, 5)), rng.normal(size=(5, 3)), rng.integers(0, 3, 60)
    Z, Y = device(H @ U), device(reference.one_hot(labels, 3))
    assert accuracy(Z, device(labels)) == pytest.approx(np.mean((H @ U).argmax(axis=1) == labels), rel=1e-15)
    assert mean_loss(Z, Y) == mean_loss(Z, labels) and accuracy(Z, Y) == accuracy(Z, labels)
    assert mean_loss(Z, Y) == pytest.approx(reference.negative_log_likelihood(H, U, labels) / 60, rel=1e-12)


def test_closeness_is_the_loop_and_ignores_what_all_outputs_share():
    rng = np.random.default_rng(0)
    U, V, H = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(40, 5))
    u, v = (np.array([row - sum(row) / 3 for row in W]).ravel() for W in (U, V))
    expected = {"distance": np.sqrt(sum((u - v) ** 2) / sum(v**2)), "cosine": sum(u * v) / np.sqrt(sum(u**2) * sum(v**2))}
    same = sum((h @ U).argmax() == (h @ V).argmax() for h in H) / 40
    U, V, H = map(device, (U + rng.normal(size=(5, 1)), V, H))
    assert closeness(U, V) == pytest.approx(expected, rel=1e-12)
    assert closeness(U, V, H)["agreement"] == pytest.approx(same)


def drawn(M=20_000, temperature=1.0):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(M, 4))
    return logits, (logits / temperature + rng.gumbel(size=(M, 4))).argmax(axis=1)


def test_the_calibration_error_is_the_loop_over_bins(bins=15):
    logits, labels = drawn(M=300)
    P = softmax(logits, axis=1)
    expected = 0.0
    for n in range(bins):
        inside = [m for m in range(300) if min(int(P[m].max() * bins), bins - 1) == n]
        if inside:
            right, sure = (np.mean(of) for of in ([P[m].argmax() == labels[m] for m in inside], [P[m].max() for m in inside]))
            expected += abs(right - sure) * len(inside) / 300
    assert calibration_error(device(logits), device(labels)) == pytest.approx(expected, abs=1e-12)


def test_the_temperature_of_the_draw_is_found():
    for temperature in (0.25, 1.0, 3.0):
        logits, labels = drawn(temperature=temperature)
        found = fit_temperature(device(logits), device(labels))
        assert found == pytest.approx(temperature, rel=0.05)  # 20,000 labels: 1 to 2 per cent
        assert calibration_error(device(logits / found), device(labels)) < 0.02
        assert fit_temperature(device(7 * logits), device(labels)) == pytest.approx(7 * found, rel=1e-4)


def test_few_guesses_that_are_all_right_are_not_taken_for_certain():
    found = fit_temperature(device(2 * np.eye(3)), device(np.arange(3)))
    # of 4 labels one is any class: (3 + 1/3)/4 = 5/6 of them right, and 5/6 = e^(2/T) / (e^(2/T) + 2)
    assert found == pytest.approx(2 / np.log(10), rel=1e-4)


# Sweeps, in memory

M, D, N = 300, 6, 3
IDENTITY = jax.tree_util.Partial(lambda X: X)


def problem(K=None):
    """Positive features, of norm K or of norms that differ, and labels that no layer predicts perfectly."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(M) % N)
    H = rng.gamma(1.0, 1.0, (M, D)) + 0.5 * rng.random((N, D))[labels] + 0.05
    if K is not None:
        H *= K / H.sum(axis=1, keepdims=True)
    return H, reference.one_hot(labels, N), labels


@pytest.mark.parametrize("K, dtype, atol", [(5.0, np.float64, 1e-12), (1.0, np.float32, 1e-5)])
def test_a_sweep_of_scaling_is_the_loop_over_examples(K, dtype, atol):
    H, Y, labels = problem(K)
    U = np.random.default_rng(1).normal(size=(D, N))
    fitted = iterative_scaling_sweeps(*(device(x.astype(dtype)) for x in (H, Y, U)), sweeps=1)
    assert fitted.U.dtype == dtype
    np.testing.assert_allclose(fitted.U, reference.scaling_sweep(H, U, labels, K), rtol=0, atol=atol)
    np.testing.assert_array_equal(fitted.intercept, 0)  # rows of one norm leave nothing for a slack feature


def test_a_sweep_with_the_slack_feature_is_a_sweep_of_features_with_one_more():
    H, Y, labels = problem()
    U, K = np.random.default_rng(1).normal(size=(D, N)), max(H.sum(axis=1))
    wide = np.hstack([H, K - H.sum(axis=1, keepdims=True)])  # rows of one norm
    U_wide = reference.scaling_sweep(wide, np.vstack([U, np.zeros((1, N))]), labels, K)
    fitted = iterative_scaling_sweeps(*map(device, (H, Y, U)), sweeps=1)
    found, expected = log_predictions(fitted.logits(device(H))), log_predictions(wide @ U_wide)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(fitted.intercept, K * U_wide[-1], rtol=0, atol=1e-11)
    losses = [-log_P[np.arange(M), labels].mean() for log_P in (log_predictions(H @ U), expected)]
    np.testing.assert_allclose(fitted.losses, losses, rtol=1e-12)
    assert losses[1] < losses[0]


def signed():
    """Features of both signs and of very different sizes, with a constant."""
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.arange(M) % N)
    X = rng.normal(size=(M, D)) + 0.7 * rng.normal(size=(N, D))[labels]
    X = np.concatenate([X * np.logspace(-1, 1, D), np.ones((M, 1))], axis=1)
    return device(X), device(np.asarray(reference.one_hot(labels, N), float))


def test_a_sweep_with_the_bound_is_the_formula():
    X, Y = signed()
    ridge, U = 0.01, np.random.default_rng(5).normal(size=(D + 1, N))
    A = np.asarray(X.T @ X) / M
    penalty = ridge * np.trace(A) / (D + 1)
    P = np.exp(log_predictions(np.asarray(X) @ U))
    uphill = np.asarray(X).T @ (np.asarray(Y) - P) / M - penalty * U
    expected = U + 2 * np.linalg.inv(A + 2 * penalty * np.eye(D + 1)) @ uphill
    fitted = curvature_bound_sweeps(X, Y, device(U), sweeps=1, ridge=ridge)
    np.testing.assert_allclose(fitted.U, expected, rtol=0, atol=1e-10)  # a condition number of about 100
    loss = -(np.asarray(Y) * np.log(P)).sum() / M + penalty / 2 * (U**2).sum()
    np.testing.assert_allclose(fitted.losses[0], loss, rtol=1e-12)
    least_squares = np.linalg.lstsq(np.asarray(X), 2 * (np.asarray(Y) - 1 / N), rcond=None)[0]
    first = curvature_bound_sweeps(X, Y, sweeps=1, ridge=1e-12)  # from zero
    np.testing.assert_allclose(first.U, least_squares, rtol=0, atol=1e-7)  # the ridge moves it by about 1e-8


def test_interrupted_sweeps_continue_to_the_same_bits(tmp_path):
    run = functools.partial(curvature_bound_sweeps, *signed(), sweeps=6)
    resumed, whole = resumed_after(4, run, tmp_path, "on_sweep"), run()
    np.testing.assert_array_equal(resumed.U, whole.U)
    np.testing.assert_array_equal(resumed.losses, whole.losses)


# Examples in blocks


def some_examples(M=64, r=4):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, N, M)
    return rng.normal(size=(M, r)) + np.eye(N, r)[labels], np.eye(N)[labels]


def gram_and_blocks(X, Y, **options):
    blocks = split_examples(X, Y, **options)
    return gram_matrix(blocks, IDENTITY), blocks, IDENTITY


def test_the_streamed_gram_is_the_dense_one(devices=8, block=5):
    X, Y = some_examples()
    features = jax.tree_util.Partial(fourier_features, W=fourier_directions(jax.random.key(1), 4, 9).astype(float))
    H, done = np.asarray(features(device(X))), list[tuple[int, int]]()
    blocks = split_examples(X, Y, block=block, mesh=data_mesh(devices))
    gram = gram_matrix(blocks, features, progress=lambda *now: done.append(now))
    assert blocks.X.shape[2] <= block and done[-1] == (blocks.X.shape[1],) * 2
    assert [shard.data.shape[0] for shard in blocks.X.addressable_shards] == [1] * devices  # each on its device
    np.testing.assert_allclose(np.tril(gram.HH), np.tril(H.T @ H), rtol=0, atol=1e-12)
    for part, dense in ((gram.HY, H.T @ Y), (gram.h, H.sum(0)), (gram.y, Y.sum(0)), (gram.M, 64)):
        np.testing.assert_allclose(part, dense, rtol=0, atol=1e-12)


def test_least_squares_are_scikit_learn_s_ridge():
    X, Y = some_examples()
    fit = gram_least_squares(gram_and_blocks(X, Y)[0], ridge=0.3)
    peer = Ridge(alpha=0.3 * np.mean((X - X.mean(0)) ** 2) * len(X)).fit(X, Y)
    np.testing.assert_allclose(fit.U, peer.coef_.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fit.intercept, peer.intercept_, rtol=0, atol=1e-12)


def test_the_ridge_is_that_of_the_lowest_held_out_error():
    """By NumPy, one ridge after the other; a ridge that float32 cannot factorise is passed over."""
    X, Y = some_examples(M=60, r=12)
    H, rest = np.pad(X, [(0, 0), (0, 30)], "wrap"), slice(20, None)  # of 42 features 30 are copies
    C, ridges = np.cov(H[rest].T, bias=True), (1e-12, 1e-4, 0.1, 1.0, 30.0)
    errors = []
    for ridge in ridges:
        centred = H[rest] - H[rest].mean(0)
        U = np.linalg.solve(C + ridge * np.trace(C) / len(C) * np.eye(len(C)), centred.T @ Y[rest] / len(centred))
        errors.append(np.mean((H[:20] @ U + Y[rest].mean(0) - H[rest].mean(0) @ U - Y[:20]) ** 2))
    H, Y = H.astype(np.float32), Y.astype(np.float32)
    gram = gram_and_blocks(H[rest], Y[rest])[0]
    ridge, fit = choose_ridge(gram, ridges, H[:20], Y[:20], IDENTITY)
    assert ridge == ridges[np.argmin(errors)] and 0 < np.argmin(errors) < len(ridges) - 1
    np.testing.assert_array_equal(fit.U, gram_least_squares(gram, ridge=ridge).U)
    for nothing, message in (((), "no ridges"), ((1e-12,), "cannot be factorised with ridge 1e-12")):
        with pytest.raises(ValueError, match=message):
            choose_ridge(gram, nothing, H[:20], Y[:20], IDENTITY)


def test_a_streamed_sweep_is_the_formula_and_sweeps_go_on_from_where_they_start_and_lower_the_loss():
    X, Y = some_examples()
    given = gram_and_blocks(X, Y, block=3, mesh=data_mesh(8))
    whole, first = (gram_softmax_sweeps(*given, sweeps=sweeps) for sweeps in (7, 3))
    rest = gram_softmax_sweeps(*given, first, sweeps=4)
    np.testing.assert_allclose(rest.U, whole.U, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rest.losses, whole.losses[3:], rtol=1e-12)
    assert np.all(np.diff(whole.losses) <= 1e-15)
    centred = X - X.mean(axis=0)
    U, C = np.asarray(first.U), centred.T @ centred / len(X)
    b = np.asarray(first.intercept) + X.mean(axis=0) @ U
    penalty, log_P = 1e-4 * np.trace(C) / len(C), log_softmax(centred @ U + b, axis=1)
    np.testing.assert_allclose(streamed_logits(first, X, IDENTITY), centred @ U + b, rtol=0, atol=1e-12)
    loss = -np.mean(np.sum(Y * log_P, axis=1)) + penalty / 2 * np.sum(U**2)
    assert first.losses[-1] == pytest.approx(loss, rel=1e-12)
    R = Y - np.exp(log_P)
    U = U + 2 * np.linalg.solve(C + 2 * penalty * np.eye(len(C)), centred.T @ R / len(X) - penalty * U)
    fourth = gram_softmax_sweeps(*given, first, sweeps=1)
    np.testing.assert_allclose(fourth.U, U, rtol=0, atol=1e-12)
    cooler, ridge = tempered(first, 0.3, 0.05)  # whose logits are divided, and whose ridge weighs the same
    np.testing.assert_allclose(streamed_logits(cooler, X, IDENTITY), (centred @ np.asarray(first.U) + b) / 0.3, atol=1e-12)
    assert ridge * np.sum(np.square(cooler.U)) == pytest.approx(0.05 * np.sum(np.square(first.U)))
    np.testing.assert_allclose(fourth.intercept, b + 2 * R.mean(axis=0) - X.mean(axis=0) @ U, rtol=0, atol=1e-12)
