"""The paired comparison against the bootstrap, scipy and special cases."""

import math

import numpy as np
import pytest
import scipy.stats

from jexplicit.lm.comparison import paired_difference

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
