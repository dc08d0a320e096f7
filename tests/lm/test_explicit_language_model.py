"""The whole model, from documents to logits, against a dense loop over documents: in dense tables, sparse ones and on devices.

Tolerances: counts below 1000 and logarithms of order 10, summed over at most 3 offsets: 1e-11 is 1000 times what float64
rounds. Float32 tables may be off by some eps * 10 * K per logit: 1e-4 nats.
"""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import (
    PAD,
    cooccurrences,
    features,
    kneser_ney,
    language_model,
    log_softmax,
    negative_log_likelihood,
    random_documents,
    stream_of,
    windows,
)
from scipy.sparse import csr_array

from jexplicit.counts.pairs import count
from jexplicit.lm.evaluation import evaluate, log_probabilities
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.rows import (
    bigram_model,
    bigram_optimum,
    explicit_blocks,
    explicit_language_model,
    sparse_language_model,
    target_counts,
    token_counts,
    unigram_model,
    with_targets,
)
from jexplicit.lm.training_text import Options, TrainingText

N = 9  # of no use to 8 devices: their last columns are fillers
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
DEV = random_documents(4, 25, N, 8)  # token 5 too, and pairs never seen
STREAM = stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))
KINDS = pytest.mark.parametrize("kind", ["sum", "cat"])
EOS = pytest.mark.parametrize("eos", [False, True])
ALL = list(product(["sum", "cat"], [1, 2, 3], [False, True]))
SOME = [("cat", 1, False), ("sum", 3, True), ("cat", 3, False)]
SLOW = pytest.mark.slow
REST = [(s, *c) for s, cases in {"dense": ALL, "sparse": ALL}.items() for c in cases]
FEW = [(s, *c) for s in ("dense", "sparse") for c in SOME]
STORED = [*FEW, *(pytest.param(*case, marks=SLOW) for case in REST if case not in FEW)]


def fit(stored: Any = "dense", *, dtype: Any = np.float64, counts=COUNTS, **options):
    """The explicit model in dense tables or in sparse ones."""
    if stored == "dense":
        return explicit_language_model(counts, dtype=dtype, **options)
    return sparse_language_model(tuple(map(csr_array, counts)), dtype=dtype, **options)


def all_log_probabilities(model, X):
    """[M, N] of every output, as the loss reads them."""
    return log_probabilities(model, np.repeat(X, N, axis=0), np.tile(np.arange(N), len(X))).reshape(-1, N)


def assert_same_tables(a, b):
    for table, other in zip(a.tables, b.tables, strict=True):
        np.testing.assert_array_equal(table, other)


@pytest.mark.parametrize("stored, kind, K, eos", STORED)
def test_the_model_equals_the_dense_loop_from_documents_to_logits(stored, kind, K, eos):
    E, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    X, Y = windows(DEV, K, eos=eos)
    H, model = features(X, E, kind), fit(stored, features=kind, radius=K, eos=eos)
    expected = np.array([log_softmax(row) for row in H @ U])
    assert np.isfinite(expected).all() and not COUNTS[0][5].any() and (COUNTS[0][1:, 1:] == 0).any()
    np.testing.assert_allclose(all_log_probabilities(model, X), expected, rtol=0, atol=1e-11)
    found = evaluate(model, stream_of(DEV))
    assert found.positions == len(Y)
    np.testing.assert_allclose(found.nll, negative_log_likelihood(H, U, Y), rtol=1e-12)
    one_by_one = jax.jit(jax.vmap(lambda x: jax.nn.log_softmax(model.logits(x))))(jax.device_put(X[:20]))
    np.testing.assert_allclose(one_by_one, expected[:20], rtol=0, atol=1e-11)
    if (kind, K) == ("cat", 1):
        return
    single = fit(stored, features=kind, radius=K, eos=eos, dtype=np.float32)
    assert any(leaf.dtype == np.float32 for leaf in jax.tree.leaves(single.rows))
    np.testing.assert_allclose(all_log_probabilities(single, X), expected, rtol=0, atol=1e-5 if stored == "sparse" else 1e-4)


@pytest.mark.parametrize("stored", ["dense", "sparse", pytest.param(3, marks=SLOW)])
def test_a_model_knows_its_sizes_and_sum_holds_one_table_however_large_its_radius(stored):
    sum_model, cat_model = fit(stored, features="sum"), fit(stored, features="cat", radius=2, eos=True)
    assert (sum_model.radius, sum_model.vocab_size, sum_model.ordered, sum_model.eos) == (3, N, False, False)
    assert (cat_model.radius, cat_model.vocab_size, cat_model.ordered, cat_model.eos) == (2, N, True, True)
    assert [len(model.rows.different) for model in (sum_model, cat_model)] == [1, 2]


@pytest.mark.parametrize("kind, K, eos", [*SOME, *(pytest.param(*case, marks=SLOW) for case in ALL if case not in SOME)])
def test_the_decoder_below_the_noise_is_that_of_dense_features(kind, K, eos):
    _, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    blocks = explicit_blocks(COUNTS, features=kind, radius=K, eos=eos, dtype=jnp.float64, read=False)
    assert len(blocks) == (K if kind == "cat" else 1)
    np.testing.assert_allclose(np.concatenate(blocks), U, rtol=0, atol=1e-11)


def test_sum_equals_cat_at_k_1():
    for eos, noise in ((False, True), (True, False)):
        sum_model, cat_model = (fit(features=kind, radius=1, eos=eos, noise=noise) for kind in ("sum", "cat"))
        assert_same_tables(sum_model, cat_model)


def test_without_noise_the_model_at_k_1_is_the_bigram_maximum_likelihood():
    documents = random_documents(3, 60, 5, 6)
    (C,) = cooccurrences(documents, 1, 5)
    P = np.exp([log_softmax(np.asarray(row)) for row in fit(counts=(C,), features="cat", eos=True, noise=False).tables[0]])
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=0, atol=1e-13)
    assert np.any(P == 0)  # <pad> after <pad>: a pair that never occurred


@pytest.mark.parametrize(
    "kind, eos, stored",
    [
        ("sum", False, "dense"),
        ("cat", True, "sparse"),
        pytest.param("cat", False, "dense", marks=SLOW),
        pytest.param("sum", True, "sparse", marks=SLOW),
    ],
)
def test_where_every_output_is_seen_the_model_equals_the_dense_loop(kind, eos, stored):
    """Without noise in dense tables, and with it in sparse ones."""
    documents = random_documents(3, 200, 4, 9)  # every pair of tokens occurs
    X, Y = windows(documents, 2, eos=eos)
    E, _, U = language_model(documents, 2, 4, kind, eos=eos, noise=stored == "sparse")
    options = {} if stored == "sparse" else {"noise": False}
    model = fit(stored, counts=tuple(cooccurrences(documents, 2, 4)), features=kind, eos=eos, **options)
    nll = negative_log_likelihood(features(X, E, kind), U, Y)
    np.testing.assert_allclose(evaluate(model, stream_of(documents)).nll, nll, rtol=1e-12)


def test_without_noise_an_output_never_seen_has_the_probability_of_one_observation():
    M = target_counts(COUNTS).sum()
    X, _ = windows(DOCUMENTS, 1)
    P = np.exp(all_log_probabilities(fit(features="cat", radius=1, noise=False), X))
    np.testing.assert_allclose(P[:, [PAD, 5]], 1 / (M + 2), rtol=1e-11)  # one of <pad>, one of token 5, beside M others
    # noise mixes rows geometrically, which by Hölder's inequality only shrinks the sum over the other outputs
    noisy = np.exp(all_log_probabilities(fit(features="cat", radius=1), X))[:, PAD]
    assert 1 / (M + 2) * (1 - 1e-11) <= noisy.min() and noisy.max() < 3 / M and noisy.mean() == pytest.approx(1 / M, rel=0.05)


@EOS
def test_token_and_target_counts_are_those_of_the_documents(eos):
    f = np.bincount([token for document in DOCUMENTS for token in [*document, PAD]], minlength=N)
    np.testing.assert_array_equal(token_counts(COUNTS), f)
    np.testing.assert_array_equal(target_counts(COUNTS, eos=eos), [len(DOCUMENTS) if eos else 0, *f[1:]])
    np.testing.assert_array_equal(with_targets(COUNTS[0], eos=eos), COUNTS[0] * np.where(np.arange(N) == PAD, eos, 1))
    largest = (np.full((2, 2), 2**31 - 1, np.int32),)
    assert token_counts(largest).tolist() == [2**32 - 2] * 2 and target_counts(largest, eos=eos).dtype == np.int64


@KINDS
def test_counts_of_a_larger_radius_and_of_the_stream_give_the_same_model(kind):
    assert_same_tables(fit(features=kind, radius=2), fit(counts=COUNTS[:2], features=kind))
    assert_same_tables(fit(features=kind), fit(counts=count(STREAM, radius=3, vocab_size=N), features=kind))


def test_renaming_tokens_renames_the_model():
    new = np.array([0, 3, 6, 1, 2, 8, 4, 5, 7])  # <pad> stays <pad>
    renamed, X = count(new[STREAM], radius=2, vocab_size=N), windows(DEV, 2)[0]
    for stored, kind in (("dense", "cat"), ("sparse", "sum")):
        one, other = fit(stored, features=kind, radius=2), fit(stored, counts=renamed, features=kind)
        log_p = all_log_probabilities(other, new[X])[:, new]
        np.testing.assert_allclose(log_p, all_log_probabilities(one, X), rtol=0, atol=1e-11)


@EOS
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_baselines_are_relative_frequencies_and_kneser_ney(stored, eos):
    counts: Any = COUNTS if stored == "dense" else tuple(map(csr_array, COUNTS))
    f, X = np.maximum(target_counts(COUNTS, eos=eos), 1), np.arange(N)[:, None]
    expected = [np.tile(f / f.sum(), (N, 1)), kneser_ney(with_targets(COUNTS[0], eos=eos))]
    for model, P in zip((unigram_model(counts, eos=eos), bigram_model(counts, eos=eos)), expected, strict=True):
        np.testing.assert_allclose(np.exp(all_log_probabilities(model, X)), P, rtol=1e-5)  # float32
        assert model.eos is eos and evaluate(model, stream_of(DEV)).positions == len(windows(DEV, 1, eos=eos)[1])


# Other weights of the outputs, and the optimum at K = 1


@pytest.mark.parametrize("kind, eos", [("sum", False), ("cat", True)])
def test_delta_is_the_lowest_of_a_scan_over_positions(kind, eos):
    fitted = fit_model(
        "delta", TrainingText(STREAM, N, eos=eos), Options(features=kind, radius=3, calibration_positions=10_000)
    )
    tables = explicit_language_model(COUNTS, features=kind, radius=3, eos=eos).tables
    (X, Y), log_f = windows(DOCUMENTS, 3, eos=eos), np.log(np.maximum(target_counts(COUNTS, eos=eos), 1))
    z = np.array([sum(np.asarray(U, np.float64)[j] for U, j in zip(tables, x, strict=True)) for x in X])

    def loss(delta):
        return -np.mean([log_softmax(row - delta * log_f)[y] for row, y in zip(z, Y, strict=True)])

    scan = np.linspace(fitted.info["delta"] - 0.2, fitted.info["delta"] + 0.2, 81)
    assert abs(scan[np.argmin([loss(delta) for delta in scan])] - fitted.info["delta"]) < 0.004
    found = evaluate(fitted.model, STREAM).loss
    assert found == pytest.approx(loss(fitted.info["delta"]), rel=1e-5) and found < loss(0)  # float32
    assert fitted.info["scalars"] == 1 and fitted.model.features == kind


def test_the_optimum_of_one_token_is_the_conditional_relative_frequencies():
    C = np.random.default_rng(0).integers(1, 50, (N, N))
    table, loss = bigram_optimum(C)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row) / C.sum()
    np.testing.assert_allclose(loss, entropy, rtol=1e-13)
    np.testing.assert_allclose(np.exp(table), C / C.sum(axis=1, keepdims=True), rtol=1e-14)


def test_the_optimum_is_the_infimum_where_pairs_never_occur():
    C = np.array([[3, 0, 1, 0], [0, 5, 0, 0], [0, 0, 0, 0], [1, 0, 2, 3]])
    table, loss = bigram_optimum(C, floor=1e-6)
    above = -sum(c @ log_softmax(row) for c, row in zip(C, table, strict=True)) - loss * C.sum()
    assert np.isfinite(table).all() and 0 < above <= C.size * 1e-6
    np.testing.assert_allclose(table[2], -np.log(4), rtol=1e-14)  # a context that never occurs
    infimum = -sum(c * np.log(c / row.sum()) for row in C for c in row[row > 0])
    np.testing.assert_allclose(loss * C.sum(), infimum, rtol=1e-14)
    np.testing.assert_allclose(bigram_optimum(with_targets(np.array([[0, 2], [1, 1]])))[1], 0, atol=1e-15)  # one target alone
