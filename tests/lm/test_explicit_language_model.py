"""The whole model, from documents to tables, against a dense loop over documents.

Tolerances: counts below 1000 and logarithms of order 10, summed over at most 3 offsets: 1e-11 is 1000 times what float64
rounds. The float32 tables that models have by default may be off by some eps * 10 * K per logit: 1e-4 nats.
"""

from itertools import product

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from reference import (
    PAD,
    cooccurrences,
    features,
    kneser_ney,
    language_model,
    log_softmax,
    random_documents,
    stream_of,
    windows,
)

from jexplicit.counts.dense import count
from jexplicit.counts.merging import merge_counts
from jexplicit.lm.rows.explicit import (
    bigram_model,
    explicit_blocks,
    explicit_language_model,
    target_counts,
    token_counts,
    unigram_model,
    with_targets,
)

N = 8
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))
ALL = pytest.mark.parametrize("kind, K, eos", list(product(["sum", "cat"], [1, 2, 3], [False, True])))


def fit(counts=COUNTS, *, dtype=jnp.float64, **options):
    return explicit_language_model(counts, dtype=dtype, **options)


def log_probabilities(model, X):
    """Of all outputs after every context, read from the tables."""
    rows = [np.sum([np.asarray(table)[j] for table, j in zip(model.tables, x, strict=True)], axis=0) for x in X]
    return np.array([log_softmax(row) for row in rows])


def all_contexts(K):
    return np.array(list(product(range(N), repeat=K)))


def assert_same_tables(a, b):
    for table, other in zip(a.tables, b.tables, strict=True):
        np.testing.assert_array_equal(table, other)


@ALL
def test_the_model_equals_the_dense_loop_from_documents_to_logits(kind, K, eos):
    E, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    X, _ = windows(DOCUMENTS, K, eos=eos)
    expected = np.array([log_softmax(row) for row in features(X, E, kind) @ U])
    model = fit(features=kind, radius=K, eos=eos)
    np.testing.assert_allclose(log_probabilities(model, X), expected, rtol=0, atol=1e-11)


@ALL
def test_the_decoder_below_the_noise_is_that_of_dense_features(kind, K, eos):
    _, _, U = language_model(DOCUMENTS, K, N, kind, eos=eos)
    blocks, of_offset = explicit_blocks(COUNTS, features=kind, radius=K, eos=eos, dtype=jnp.float64, read=False)
    assert len(blocks) == (K if kind == "cat" else 1) and len(of_offset) == K
    np.testing.assert_allclose(np.concatenate(blocks), U, rtol=0, atol=1e-11)


def test_the_model_of_real_counts_is_that_of_loop_counts():
    assert_same_tables(fit(count(stream_of(DOCUMENTS), radius=3, vocab_size=N), features="cat"), fit(features="cat"))


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_sum_equals_cat_at_k_1(eos, noise):
    sum_model, cat_model = (fit(features=kind, radius=1, eos=eos, noise=noise) for kind in ("sum", "cat"))
    assert_same_tables(sum_model, cat_model)


def test_without_noise_the_model_at_k_1_is_the_bigram_maximum_likelihood():
    documents = random_documents(3, 60, 5, 6)
    (C,) = cooccurrences(documents, 1, 5)
    model = fit((C,), features="cat", eos=True, noise=False)
    P = np.exp(log_probabilities(model, np.arange(5)[:, None]))
    np.testing.assert_allclose(P, C / C.sum(axis=1, keepdims=True), rtol=0, atol=1e-13)
    assert np.any(P == 0)  # <pad> after <pad>: a pair that never occurred


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_without_noise_and_without_ends_of_documents_the_model_equals_the_dense_loop(kind):
    documents = random_documents(3, 200, 4, 9)  # every pair of tokens occurs
    X, _ = windows(documents, 2)
    E, _, U = language_model(documents, 2, 4, kind, eos=False, noise=False)
    expected = np.array([log_softmax(row) for row in features(X, E, kind) @ U])
    counts = tuple(cooccurrences(documents, 2, 4))
    model = fit(counts, features=kind, noise=False)
    np.testing.assert_allclose(log_probabilities(model, X), expected, rtol=0, atol=1e-11)


@ALL
def test_probabilities_are_positive_and_sum_to_one_after_any_context(kind, K, eos):
    assert any(np.any(C[1:, 1:] == 0) for C in COUNTS)  # pairs never seen
    assert token_counts(COUNTS)[5] == 0  # a token never seen
    log_P = log_probabilities(fit(features=kind, radius=K, eos=eos), all_contexts(K))
    assert np.all(np.isfinite(log_P))
    np.testing.assert_allclose(np.exp(log_P).sum(axis=1), 1, rtol=1e-12)


def test_without_noise_an_output_never_seen_has_the_probability_of_one_observation():
    M = target_counts(COUNTS).sum()
    X, _ = windows(DOCUMENTS, 1)
    P = np.exp(log_probabilities(fit(features="cat", radius=1, noise=False), X))
    np.testing.assert_allclose(P[:, [PAD, 5]], 1 / (M + 2), rtol=1e-11)  # one of <pad>, one of token 5, beside M others


@pytest.mark.parametrize("kind, K", list(product(["sum", "cat"], [1, 2, 3])))
def test_the_end_of_a_document_is_as_good_as_never_predicted_unless_it_is_asked_for(kind, K):
    M = target_counts(COUNTS).sum()
    X, _ = windows(DOCUMENTS, K)
    P = np.exp(log_probabilities(fit(features=kind, radius=K), X))[:, PAD]
    if K == 1:  # noise mixes rows geometrically, which by Hölder's inequality only shrinks the sum over the other outputs
        assert P.min() >= 1 / (M + 2) * (1 - 1e-11)
    assert P.mean() == pytest.approx(1 / M, rel=0.05)  # measured: within 0.02
    assert P.max() < 3 / M  # measured: 2.2
    predicted = np.exp(log_probabilities(fit(features=kind, radius=K, eos=True), X))[:, PAD]
    assert predicted.mean() > 20 / M  # there are 40 documents


@pytest.mark.parametrize("eos", [False, True])
def test_token_and_target_counts_are_those_of_the_documents(eos):
    tokens = [token for document in DOCUMENTS for token in [*document, PAD]]
    f = np.bincount(tokens, minlength=N)
    np.testing.assert_array_equal(token_counts(COUNTS), f)
    np.testing.assert_array_equal(target_counts(COUNTS, eos=eos)[1:], f[1:])
    assert target_counts(COUNTS, eos=eos)[PAD] == (len(DOCUMENTS) if eos else 0)


def test_token_counts_are_int64_whatever_the_table():
    table = np.full((2, 2), 2**31 - 1, np.int32)
    for f in (token_counts((table,)), target_counts((table,)), target_counts((table,), eos=True)):
        assert f.dtype == np.int64
    assert token_counts((table,)).tolist() == [2**32 - 2] * 2


def test_only_the_column_of_document_ends_is_taken_out_of_the_targets():
    without = with_targets(COUNTS[0])
    np.testing.assert_array_equal(without[:, 1:], COUNTS[0][:, 1:])
    assert not without[:, PAD].any()
    np.testing.assert_array_equal(with_targets(COUNTS[0], eos=True), COUNTS[0])


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_a_model_of_merged_counts_is_the_model_of_the_whole_text(kind):
    parts = [count(stream_of(part), radius=2, vocab_size=N) for part in (DOCUMENTS[:9], DOCUMENTS[9:31], DOCUMENTS[31:])]
    merged = merge_counts(merge_counts(parts[0], parts[1]), parts[2])
    whole = count(stream_of(DOCUMENTS), radius=2, vocab_size=N)
    assert_same_tables(fit(merged, features=kind), fit(whole, features=kind))


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_a_radius_smaller_than_the_counted_one_is_as_if_counted_with_it(kind):
    assert_same_tables(fit(features=kind, radius=2), fit(COUNTS[:2], features=kind))


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_renaming_tokens_renames_the_model(kind):
    new = np.array([0, 3, 6, 1, 2, 7, 5, 4])  # <pad> stays <pad>
    renamed = count(new[stream_of(DOCUMENTS)], radius=2, vocab_size=N)
    for table, other in zip(fit(renamed, features=kind).tables, fit(features=kind, radius=2).tables, strict=True):
        np.testing.assert_allclose(np.asarray(table)[np.ix_(new, new)], other, rtol=0, atol=1e-11)


@ALL
def test_float32_models_agree_with_float64_ones(kind, K, eos):
    X = all_contexts(K)
    model = fit(features=kind, radius=K, eos=eos, dtype=jnp.float32)
    assert model.tables[0].dtype == jnp.float32
    exact = log_probabilities(fit(features=kind, radius=K, eos=eos), X)
    np.testing.assert_allclose(log_probabilities(model, X), exact, rtol=0, atol=1e-4)


def test_tables_are_float32_unless_asked_otherwise():
    assert explicit_language_model(COUNTS, features="cat").tables[0].dtype == jnp.float32


def test_a_model_knows_its_sizes_and_its_features():
    sum_model, cat_model = fit(features="sum", eos=True), fit(features="cat", radius=2)
    assert (sum_model.radius, sum_model.vocab_size, sum_model.ordered, sum_model.eos) == (3, N, False, True)
    assert (cat_model.radius, cat_model.vocab_size, cat_model.ordered, cat_model.eos) == (2, N, True, False)


def test_sum_holds_one_table_however_large_its_radius():
    assert len({id(table) for table in fit(features="sum").tables}) == 1
    assert len({id(table) for table in fit(features="cat").tables}) == 3


@pytest.mark.parametrize("radius", [0, -1, 4])
def test_a_radius_that_was_not_counted_is_refused(radius):
    with pytest.raises(ValueError, match=f"radius {radius} with counts of offsets 1..3"):
        fit(features="cat", radius=radius)


@pytest.mark.parametrize("fit_or_blocks", [explicit_language_model, explicit_blocks])
def test_unknown_features_are_refused(fit_or_blocks, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    with pytest.raises(ValueError, match="features 'mean': choose sum .* or cat"):
        fit_or_blocks(COUNTS, features="mean")


@pytest.mark.parametrize("eos", [False, True])
def test_the_unigram_model_gives_relative_frequencies_after_any_token(eos):
    f = np.maximum(target_counts(COUNTS, eos=eos), 1)
    model = unigram_model(COUNTS, eos=eos)
    P = np.exp([log_softmax(np.asarray(model.logits(jnp.array([j])))) for j in range(N)])
    np.testing.assert_allclose(P, np.tile(f / f.sum(), (N, 1)), rtol=1e-5)  # float32
    assert model.eos is eos


@pytest.mark.parametrize("eos", [False, True])
def test_the_bigram_model_gives_kneser_ney_probabilities(eos):
    model = bigram_model(COUNTS, eos=eos)
    P = np.exp(log_probabilities(model, np.arange(N)[:, None]))
    np.testing.assert_allclose(P, kneser_ney(with_targets(COUNTS[0], eos=eos)), rtol=1e-5)  # float32
    assert model.eos is eos
