"""Word vectors as features: loops over positions, naive special cases, and what is refused. Tables are float32: 1e-4."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.rows.explicit import explicit_language_model
from jexplicit.lm.rows.word_vectors import vector_features, vector_language_model, word_vectors
from jexplicit.lm.training_text import Options, TrainingText

pytestmark = pytest.mark.slow

N = 8
RNG = np.random.default_rng(0)
STREAM = np.concatenate([[0], *([*RNG.integers(1, N - 1, 7), 0] for _ in range(40))]).astype(np.uint8)  # N - 1 never occurs
FEATURES: Any = ("sum", "cat")


@pytest.fixture(scope="module")
def counts():
    return count(STREAM, radius=2, vocab_size=N)


def test_vectors_are_the_svd_of_positive_information(counts):
    C = counts[0].astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(C * C.sum() / np.outer(C.sum(axis=1), C.sum(axis=0)))
    ppmi = np.where(C > 0, np.maximum(information, 0), 0)
    S, sigma, T = np.linalg.svd(ppmi)
    V = word_vectors(counts[0], 3)
    np.testing.assert_allclose(V @ V.T, (S[:, :3] * sigma[:3]) @ S[:, :3].T, atol=1e-9)
    assert (V[np.abs(V).argmax(axis=0), range(3)] > 0).all()
    np.testing.assert_array_equal(V, word_vectors(counts[0], 3))


def test_features_are_the_positive_parts_of_norm_1():
    V = RNG.normal(size=(5, 3))
    H = np.asarray(vector_features(V))
    for v, h in zip(V, H, strict=True):
        parts = np.concatenate([np.maximum(v, 0), np.maximum(-v, 0)])
        np.testing.assert_allclose(h, (parts / np.abs(v).sum() + 0.01 / 6) / 1.01, rtol=1e-5)
    assert H.min() > 0


@pytest.mark.parametrize("features, eos", [("sum", False), ("cat", True)])
def test_the_model_is_the_explicit_solution_of_these_features(features, eos, counts):
    """F = sum_m h(x_{m-k}) ⊗ y_m position by position, U by Eq. 3, and logits H U."""
    H = vector_features(word_vectors(counts[0], 2))
    h = np.asarray(H, np.float64)
    X, Y = contexts(STREAM, 2, eos=eos)
    F = np.zeros((2, 4, N))
    for x, y in zip(X, Y, strict=True):
        for k in range(2):
            F[k, :, y] += h[x[k]]
    unseen = sorted(set(range(N)) - set(Y.tolist()))  # as if seen once, whatever the context
    F[:, :, unseen] = F.sum(axis=2)[:, :, None] / len(Y)
    F = F.sum(axis=0)[None].repeat(2, axis=0) if features == "sum" else F
    column = F[0].sum(axis=0) if features == "sum" else F.sum(axis=(0, 1))
    U = np.log(F) - np.log(column) / 2
    model = vector_language_model(counts, H, features=features, eos=eos)
    for x in X[:20]:
        expected = sum(h[x[k]] @ U[k] for k in range(2))
        np.testing.assert_allclose(model.logits(jnp.asarray(x)), expected, atol=1e-4)


@pytest.mark.parametrize("features", FEATURES)
def test_one_hot_vectors_are_the_explicit_solution_without_noise(features):
    """But for pairs that never occur, where the features' floor stands for 0: all pairs occur here."""
    stream = np.concatenate([[0], *([*RNG.integers(1, 5, 9), 0] for _ in range(200))]).astype(np.uint8)
    counts = count(stream, radius=2, vocab_size=5)
    H = jnp.asarray(np.eye(5) * (1 - 5e-6) + 1e-6, jnp.float32)
    ours = vector_language_model(counts, H, features=features, eos=True)
    theirs = explicit_language_model(counts, features=features, eos=True, noise=False)
    X, _ = contexts(stream, 2, eos=True)
    for x in X[20:60]:
        if x.min() > 0:
            np.testing.assert_allclose(ours.logits(jnp.asarray(x)), theirs.logits(jnp.asarray(x)), atol=1e-3)


def test_by_name_it_learns_the_text():
    """Each token makes the next likely: features of two dimensions tell more than none."""
    ids = [1]
    for _ in range(900):
        ids.append(1 + ids[-1] % 6 if RNG.random() < 0.7 else int(RNG.integers(1, 7)))
    stream = np.array([0, *ids, 0], np.uint8)
    text = TrainingText(stream, N)
    fitted = fit_model("word-vectors", text, Options(radius=2, bits=8))
    unigram = fit_model("unigram", text).model
    assert evaluate(fitted.model, stream).loss < evaluate(unigram, stream).loss - 0.05 and fitted.info["bits"] == 8
