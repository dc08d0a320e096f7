"""Tasks: their law, and sequences of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl.linalg import contract
from icl.tasks import KURTOSIS, Sequence, Tasks, map_pieces, sample_tasks, sequences, tokens


@pytest.mark.parametrize("inputs", sorted(KURTOSIS))
def test_inputs_have_the_variance_and_kurtosis_that_the_closed_form_reads(inputs):
    tasks = Tasks(dim=5, context=9, inputs=inputs, input_range=2.0)
    x = np.asarray(sample_tasks(jax.random.key(0), tasks, 20_000).X)
    n = x.size  # 900,000 draws: the variance is off by some sqrt((kurtosis - 1) / n) = 0.25 % of itself at most
    assert x.mean() == pytest.approx(0, abs=4 * np.sqrt(tasks.variance / n))
    assert x.var() == pytest.approx(tasks.variance, rel=4 * np.sqrt((KURTOSIS[inputs] - 1) / n))
    # the fourth moment of a Laplace law is off by sqrt(E[x^8] / n) / E[x^4] = 0.9 %
    assert np.mean(x**4) / x.var() ** 2 == pytest.approx(KURTOSIS[inputs], rel=0.04)


def test_uniform_inputs_fill_their_range_and_weights_and_noise_have_their_scale():
    tasks = Tasks(dim=3, context=4, outputs=2, input_range=3.0, weight_scale=2.0, noise=0.5)
    batch = sample_tasks(jax.random.key(1), tasks, 50_000)
    assert 1.49 < np.asarray(batch.X).max() <= 1.5 and -1.5 <= np.asarray(batch.x_q).min() < -1.49
    # E[y_q²] = d s c²; the context's y have the noise's variance too. 100,000 squares of kurtosis < 6
    clean, noisy = 3 * tasks.variance * 4, 3 * tasks.variance * 4 + 0.25
    assert np.mean(np.asarray(batch.y_q) ** 2) == pytest.approx(clean, rel=0.03)
    assert np.mean(np.asarray(batch.Y) ** 2) == pytest.approx(noisy, rel=0.03)


def test_answers_are_linear_in_the_inputs_of_one_task():
    one = sample_tasks(jax.random.key(2), Tasks(dim=3, context=20, outputs=2))
    W = np.linalg.lstsq(np.asarray(one.X), np.asarray(one.Y), rcond=None)[0].T
    np.testing.assert_allclose(one.X @ W.T, one.Y, atol=1e-12)
    np.testing.assert_allclose(W @ one.x_q, one.y_q, atol=1e-12)


def test_the_mixture_has_the_frobenius_norm_it_was_asked_for():
    batch = sample_tasks(jax.random.key(3), Tasks(inputs="mixture", input_range=2.5), 300)
    np.testing.assert_allclose(jnp.sqrt(jnp.sum(batch.X**2, axis=(0, 1))), 2.5, rtol=1e-12)
    skewed = np.asarray(jnp.min(batch.X, axis=(0, 1)) > 0)  # all 100 coordinates positive: the exponential
    assert 0.25 < skewed.mean() < 0.42  # a third of 300 tasks, 3 standard deviations of 0.027


def test_exponential_inputs_have_the_variance_and_are_not_centred():
    x = np.asarray(sample_tasks(jax.random.key(4), Tasks(inputs="exponential"), 5_000).X)
    assert x.var() == pytest.approx(1 / 12, rel=0.02) and x.mean() == pytest.approx((1 / 12) ** 0.5, rel=0.01)


def test_one_task_and_a_batch_of_tasks_are_the_same_code():
    tasks = Tasks(dim=3, context=5, outputs=2)
    one, many = sample_tasks(jax.random.key(0), tasks), sample_tasks(jax.random.key(0), tasks, 4)
    assert [leaf.shape + (4,) for leaf in one] == [leaf.shape for leaf in many]
    assert [leaf.shape for leaf in sequences(many)] == [(4,) + leaf.shape for leaf in one]


@pytest.mark.parametrize("piece", [1, 2, 7, 9])
def test_a_batch_in_pieces_is_the_whole_batch(piece):
    batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 7)
    np.testing.assert_array_equal(map_pieces(lambda part: 2 * part.x_q, batch, piece), 2 * batch.x_q)


def test_tokens_put_y_behind_x_and_the_query_last():
    one = Sequence(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[5.0], [6.0]]), jnp.array([7.0, 8.0]), jnp.array([9.0]))
    assert tokens(one).tolist() == [[1, 2, 5], [3, 4, 6], [7, 8, 0]]
    assert tokens(one, jnp.array([[1.0, -1.0]]))[-1].tolist() == [7, 8, 1]


def test_contractions_are_products_of_matrices_and_so_is_their_gradient():
    keys = jax.random.split(jax.random.key(0), 3)
    A, B, G = (jax.random.normal(k, shape) for k, shape in zip(keys, ((4, 3, 5), (4, 2, 5), (3, 2, 5)), strict=True))
    ours, theirs = (jax.vjp(f, A, B) for f in (contract, lambda A, B: jnp.einsum("kib,kjb->ijb", A, B)))
    for a, b in zip((ours[0], *ours[1](G)), (theirs[0], *theirs[1](G)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
