"""The paired comparison against the bootstrap, scipy and special cases; the bootstrap of a mean against theory."""

import math

import numpy as np
import pytest
import scipy.stats

from jexplicit.lm.measures import DocumentLosses, bootstrap_standard_error, loss_fields, paired_difference

RNG = np.random.default_rng(0)
SIZES = RNG.integers(5, 300, 400)
HARD = RNG.gamma(5.0, 0.3, 400)  # how hard a document is, for all models
ONE, OTHER = SIZES * (HARD + RNG.normal(0.02, 0.05, 400)), SIZES * HARD


def test_documents_of_equal_length_give_the_paired_t_test():
    sizes = np.full(400, 50)
    found = paired_difference(50 * ONE / SIZES, 50 * OTHER / SIZES, sizes)
    expected = scipy.stats.ttest_rel(ONE / SIZES, OTHER / SIZES)
    assert found.mean / found.standard_error == pytest.approx(expected.statistic)


def test_the_standard_error_is_that_of_the_bootstrap():
    draws = RNG.integers(0, 400, (2000, 400))
    means = (ONE - OTHER)[draws].sum(axis=1) / SIZES[draws].sum(axis=1)
    found = paired_difference(ONE, OTHER, SIZES)
    assert found.mean == pytest.approx((ONE.sum() - OTHER.sum()) / SIZES.sum())
    # 2000 draws: the relative error of a standard deviation is 1 / sqrt(2 * 2000) = 1.6 %, times 5
    assert found.standard_error == pytest.approx(means.std(), rel=0.08)


def test_a_model_does_not_differ_from_itself_and_the_order_changes_the_sign():
    assert paired_difference(ONE, ONE, SIZES) == (0, 0)
    there, back = paired_difference(ONE, OTHER, SIZES), paired_difference(OTHER, ONE, SIZES)
    assert there.mean == -back.mean and there.standard_error == pytest.approx(back.standard_error)
    assert math.isnan(paired_difference(ONE[:1], OTHER[:1], SIZES[:1]).standard_error)


def test_documents_that_all_lose_the_same_have_no_error():
    assert bootstrap_standard_error(np.full(50, 3.0), np.full(50, 7)) == 0
    assert bootstrap_standard_error(2.0 * SIZES, SIZES) == 0  # of any length, losses per prediction being equal
    assert math.isnan(bootstrap_standard_error(np.ones(1), np.ones(1, int)))


def test_the_error_of_independent_documents_of_equal_length_is_that_of_a_mean():
    """sd / sqrt(n) of means over 20 predictions. The 4000 draws have a relative error of 1 / sqrt(8000) = 1.1 %, times 5."""
    losses = RNG.normal(3.0, 0.7, (500, 20)).sum(axis=1)
    found = bootstrap_standard_error(losses, np.full(500, 20), draws=4000)
    assert found == pytest.approx(losses.std() / 20 / np.sqrt(500), rel=5 / np.sqrt(8000))


def test_the_error_is_how_much_new_texts_differ():
    """Texts of 300 documents drawn anew. The deviation of 2000 losses is known to 1.6 %, that of 1000 draws to 2.2 %, and a
    text knows its own spread to some 8 % (gamma documents): together 8.5 %, times 3."""

    def text(rng):
        sizes = rng.integers(5, 300, 300)
        return sizes * rng.gamma(5.0, 0.3, 300), sizes

    rng = np.random.default_rng(4)
    means = [nll.sum() / sizes.sum() for nll, sizes in (text(rng) for _ in range(2000))]
    assert bootstrap_standard_error(*text(rng)) == pytest.approx(np.std(means), rel=3 * 0.085)


def test_the_error_is_that_of_the_paired_comparison_with_a_model_that_loses_nothing():
    """Which is linearised: it differs by order 1/n, beside the 1 / sqrt(2000) = 2.2 % of the draws, times 4."""
    expected = paired_difference(ONE, np.zeros_like(ONE), SIZES).standard_error
    assert bootstrap_standard_error(ONE, SIZES) == pytest.approx(expected, rel=0.09)
    assert bootstrap_standard_error(ONE, SIZES) == bootstrap_standard_error(ONE, SIZES)  # of the same seed
    assert bootstrap_standard_error(ONE, SIZES, seed=1) != bootstrap_standard_error(ONE, SIZES)


@pytest.mark.parametrize(
    ("nll", "sizes", "draws"),
    [([], [], 10), ([1.0, np.nan], [1, 2], 10), ([1.0, 2.0], [0, 2], 10), ([1.0], [1], 1)],
)
def test_bad_documents_are_refused(nll, sizes, draws):
    with pytest.raises(ValueError, match=r"give one of each|leave these documents out"):
        bootstrap_standard_error(np.array(nll, float), np.array(sizes, int), draws=draws)


def test_the_fields_of_two_texts_are_those_of_their_documents_together():
    one, two = DocumentLosses(np.array([2.0, 4.0]), np.array([1, 3])), DocumentLosses(np.array([6.0]), np.array([4]))
    found = loss_fields([one, two])
    assert (found["loss"], found["positions"], found["perplexity"]) == (12 / 8, 8, np.exp(12 / 8))
    nll, sizes = np.array([2.0, 4.0, 6.0]), np.array([1, 3, 4])
    assert found["loss_se"] == bootstrap_standard_error(nll, sizes) > 0
    assert loss_fields([two])["loss_se"] is None
