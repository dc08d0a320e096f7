"""The language model of joint features: a distribution over every output, of the past alone, with Kneser-Ney as a special case.

Tolerances: rows are float32 and up to 10; a position adds up 22 of them with float32 exponents, so that its logits, and the
log softmax, are right to some 20 eps of that: 2e-5. A mean loss over positions is right to as much.
"""

import functools

import numpy as np
import pytest
from reference import PAD, Chain, log_linear, random_documents, stream_of, windows

from jexplicit import count
from jexplicit.lm import ngram_mixture as joint_model
from jexplicit.lm.ngram_mixture import (
    CACHES,
    CHAIN,
    GAPS,
    KINDS,
    RADIUS,
    Cache,
    fit_joint,
    joint_log_probabilities,
    joint_tables,
    joint_text,
    kneser_ney_exponents,
    read_tables,
)

N = 7
ATOL = 2e-5
DOCUMENTS = random_documents(seed=11, number=70, vocab_size=N, longest=14)
STREAM, HELD = stream_of(DOCUMENTS), stream_of(random_documents(seed=12, number=30, vocab_size=N, longest=14))
EOS = pytest.mark.parametrize("eos", [False, True])


@functools.cache
def tables_of(eos=False, caches=CACHES):
    counts = count(STREAM, radius=RADIUS, vocab_size=N)
    return joint_tables(joint_text(STREAM, eos=eos), counts, eos=eos, caches=caches)


@functools.cache
def fitted_of(kinds=KINDS):
    text = joint_text(HELD)
    return fit_joint(tables_of(), text, np.arange(len(text.Y)), kinds=kinds)


def some_exponents(tables):
    return np.random.default_rng(0).uniform(0.1, 0.9, len(tables.names))


def distribution(tables, exponents, text, m):
    """[M, N] the log probability of every output, one at a time."""
    every = [text._replace(Y=np.full_like(text.Y, i)) for i in range(N)]
    return np.stack([joint_log_probabilities(tables, exponents, each, m) for each in every], axis=1)


def slow_log_p(exponents, text, m):
    """[M, N] the same, position by position in float64."""
    log_tables, positions = read_tables(tables_of(), text, m)
    tables = [np.asarray(table, np.float64) for table in log_tables.dense]
    for rows in log_tables.sparse:
        table = np.zeros((len(rows.start) - 1, N))
        table[np.repeat(np.arange(len(table)), np.diff(rows.start)), rows.outputs] = rows.values
        tables.append(table)
    return log_linear(tables, exponents, *positions)


def slow_loss(exponents, text, m):
    return -np.mean(slow_log_p(exponents, text, m)[np.arange(len(m)), text.Y[m]])


# Reading


@EOS
def test_predictions_are_those_of_the_stream_in_its_order(eos):
    text = joint_text(STREAM, eos=eos)
    X, Y = windows(DOCUMENTS, RADIUS, eos=eos)
    np.testing.assert_array_equal(text.X, X)
    np.testing.assert_array_equal(text.Y, Y)
    np.testing.assert_array_equal(STREAM[text.places], Y)
    assert np.all(np.diff(text.places) > 0) and (PAD in text.Y) == eos


def test_names_say_what_each_exponent_weighs():
    names = tables_of().names
    assert names[:2] == ("unigram", "offset 1") and names[9:13] == ("context 1", "context 2", "context 3", "context 4")
    assert names[13] == "gap 1, 3" and names[-1] == "cache 2000 successors"
    assert len(names) == 1 + RADIUS + len(CHAIN) + len(GAPS) + len(CACHES)
    assert {name.split()[0] for name in names} == set(KINDS)
    assert len(tables_of(caches=()).names) == len(names) - len(CACHES)


def test_every_table_is_read_and_weighed_by_its_own_exponent():
    text, m = joint_text(HELD), np.arange(0, 100, 7)
    exponents = some_exponents(tables_of())
    fast = joint_log_probabilities(tables_of(), exponents, text, m)
    np.testing.assert_allclose(fast, slow_log_p(exponents, text, m)[np.arange(len(m)), text.Y[m]], rtol=0, atol=ATOL)
    for s, name in enumerate(tables_of().names):
        without = np.where(np.arange(len(exponents)) == s, 0, exponents)
        assert np.max(np.abs(joint_log_probabilities(tables_of(), without, text, m) - fast)) > 100 * ATOL, name


@EOS
def test_probabilities_of_all_outputs_add_up_to_1(eos):
    tables, text, m = tables_of(eos), joint_text(HELD, eos=eos), np.arange(60)
    P = np.exp(distribution(tables, some_exponents(tables), text, m))
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=0, atol=ATOL)
    assert np.ptp(P) > 0.1  # not the uniform distribution


@EOS
def test_exponents_1_of_the_chain_are_kneser_ney_of_order_5(eos):
    tables, text, m = tables_of(eos), joint_text(HELD, eos=eos), np.arange(0, 120, 2)
    slow = Chain(*windows(DOCUMENTS, RADIUS, eos=eos), CHAIN, N)
    expected = np.log([[slow.P(tuple(map(int, x[:4])), i) for i in range(N)] for x in text.X[m]])
    found = distribution(tables, kneser_ney_exponents(tables), text, m)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_adds_what_the_pair_says_beyond_its_first_token(gap):
    tables, text, m = tables_of(), joint_text(HELD), np.arange(0, 120, 6)
    slow, expected = Chain(*windows(DOCUMENTS, RADIUS), gap, N), []
    for x in text.X[m]:
        pair = tuple(int(x[offset - 1]) for offset in gap)
        backed_off = [slow.gamma(pair) * slow.P(pair[:-1], i) for i in range(N)]
        ratio = [slow.P(pair, i) / backed_off[i] for i in range(N)]  # 1 for what never followed the pair
        expected.append(np.log(ratio) - np.log(sum(ratio)))
    alone = np.array([float(name == f"gap {gap[0]}, {gap[1]}") for name in tables.names])
    np.testing.assert_allclose(distribution(tables, alone, text, m), expected, rtol=0, atol=ATOL)


def test_unigram_alone_is_the_share_of_each_target():
    tables, text = tables_of(), joint_text(HELD)
    f = np.maximum(np.bincount(joint_text(STREAM).Y, minlength=N), 1)  # one for <pad>, which is never a target
    alone = np.array([float(name == "unigram") for name in tables.names])
    log_p = joint_log_probabilities(tables, alone, text)
    np.testing.assert_allclose(log_p, np.log(f / sum(f))[text.Y], rtol=0, atol=ATOL)


def test_positions_in_several_calls_are_those_in_one(monkeypatch):
    tables, text = tables_of(), joint_text(HELD)
    exponents, seen = some_exponents(tables), []
    whole = joint_log_probabilities(tables, exponents, text)
    assert len(whole) == len(text.Y)
    monkeypatch.setattr(joint_model, "_positions_per_call", 50)
    parts = joint_log_probabilities(tables, exponents, text, progress=lambda *done: seen.append(done))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=ATOL)
    assert seen[0] == (50, len(whole)) and seen[-1] == (len(whole), len(whole))
    some = np.array([3, 99, 17])
    np.testing.assert_allclose(joint_log_probabilities(tables, exponents, text, some), whole[some], rtol=0, atol=ATOL)


def test_nothing_at_or_after_a_position_changes_its_prediction():
    tables, text = tables_of(), joint_text(HELD)
    exponents, now = some_exponents(tables), len(text.Y) // 2
    place = int(text.places[now])
    other = HELD.copy()
    tokens = np.flatnonzero(HELD[place:]) + place
    other[tokens] = HELD[tokens] % (N - 1) + 1  # every token from the target on is another one, in as many documents
    changed = joint_text(other)
    assert np.all(changed.Y[now:] != text.Y[now:])
    before = np.arange(now - 20, now + 1)
    mine, theirs = (distribution(tables, exponents, t, before) for t in (text, changed))
    np.testing.assert_array_equal(mine, theirs)
    # and the token before matters
    past = HELD.copy()
    last = int(np.flatnonzero(HELD[:place])[-1])
    past[last] = HELD[last] % (N - 1) + 1
    assert np.max(np.abs(distribution(tables, exponents, joint_text(past), before[-1:]) - mine[-1:])) > 100 * ATOL


# Fitting


def test_fitted_exponents_are_stationary_and_better_than_kneser_ney():
    text = joint_text(HELD)
    m, fitted = np.arange(len(text.Y)), fitted_of()
    assert fitted.loss == pytest.approx(slow_loss(fitted.exponents, text, m), abs=ATOL)
    log_p = joint_log_probabilities(tables_of(), kneser_ney_exponents(tables_of()), text)
    assert fitted.loss < -np.mean(log_p) - 0.05
    gradient, step = [], 1e-4
    for s in range(len(fitted.exponents)):
        e = step * np.eye(len(fitted.exponents))[s]
        gradient.append((slow_loss(fitted.exponents + e, text, m) - slow_loss(fitted.exponents - e, text, m)) / (2 * step))
    # the fit's tolerance, and the penalty of 1e-4 on the distance from the start, which is below 2
    np.testing.assert_allclose(gradient, 0, rtol=0, atol=3e-4)
    at_kneser_ney = slow_loss(kneser_ney_exponents(tables_of()), text, m)
    e = 0.01 * np.eye(len(gradient))[12]
    assert abs(slow_loss(kneser_ney_exponents(tables_of()) + e, text, m) - at_kneser_ney) / 0.01 > 0.01


def test_more_kinds_of_tables_never_fit_worse_and_the_others_have_exponent_0():
    losses = []
    for kinds in (("unigram", "context"), ("unigram", "context", "offset"), ("unigram", "context", "offset", "gap"), KINDS):
        fitted = fitted_of(kinds)
        absent = [name.split()[0] not in kinds for name in tables_of().names]
        np.testing.assert_array_equal(np.abs(fitted.exponents) < 1e-12, absent)  # rounding of Newton's system
        losses.append(fitted.loss)
    # each is at its minimum, to the square of the tolerance over the curvature, and the penalty
    assert np.all(np.diff(losses) < 1e-3) and losses[-1] < losses[0] - 0.01


def test_positions_that_are_not_asked_for_are_not_fitted():
    text, some = joint_text(HELD), np.arange(0, 150, 3)
    other = text._replace(Y=np.where(np.isin(np.arange(len(text.Y)), some), text.Y, PAD).astype(text.Y.dtype))
    one, two = (fit_joint(tables_of(), t, some, kinds=("unigram", "context")) for t in (text, other))
    np.testing.assert_array_equal(one.exponents, two.exponents)
    assert np.any(one.exponents != fitted_of(("unigram", "context")).exponents)


# The tables


def test_counting_in_threads_builds_each_table_once_and_says_so():
    seen = []
    counts = count(STREAM, radius=RADIUS, vocab_size=N)
    again = joint_tables(joint_text(STREAM), counts, progress=lambda *done: seen.append(done))
    assert seen == [(done + 1, 1 + len(GAPS)) for done in range(1 + len(GAPS))]
    assert again.chain.offsets == CHAIN and tuple(gap.offsets for gap in again.gaps) == GAPS
    dense = (RADIUS + 1) * 4 * N * N + 4 * N
    assert again.nbytes == dense + again.chain.nbytes + sum(gap.nbytes for gap in again.gaps)


def test_a_cache_reads_what_it_is_asked_for():
    text, m = joint_text(HELD), np.arange(50, 80)
    long, short = (tables_of(caches=(Cache(length),)) for length in (400, 3))
    exponents = np.append(np.zeros(len(long.names) - 1), 1.0)
    far, near = (joint_log_probabilities(tables, exponents, text, m) for tables in (long, short))
    assert np.max(np.abs(far - near)) > 0.1
    p = np.exp(np.asarray(short.offsets.log_p[0], np.float64))
    for at, log_p in zip(m, near, strict=True):
        place = int(text.places[at])
        c = np.bincount(HELD[place - 3 : place][HELD[place - 3 : place] != PAD], minlength=N)
        logits = np.log(1 + c / (max(np.sum(c > 0), 1) * p))
        assert log_p == pytest.approx(logits[text.Y[at]] - np.log(np.sum(np.exp(logits))), abs=ATOL)


def test_counts_of_a_smaller_radius_are_refused():
    with pytest.raises(ValueError, match="radius of at least 8"):
        joint_tables(joint_text(STREAM), count(STREAM, radius=2, vocab_size=N))
