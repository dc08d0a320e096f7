"""What a learned rule is compared with on equal terms: the cost of an update by hand, and classifiers of the same examples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from samples import two_classes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import StratifiedKFold

from icl.blur import Examples, descent_curves, load_genome, minibatches
from icl.blur.judging import classifiers
from icl.blur.judging.classifiers import classifier_accuracies, fit_classifier
from icl.blur.judging.flops import descent_flops, matrix_flops, rule_flops
from icl.blur.judging.speed import interquartile_mean, updates_to_reach
from icl.blur.judging.suite import SUITE, known_from

pytestmark = pytest.mark.slow  # of learners that a learned rule is compared with
A, B, C = np.ones((2, 3)), np.ones((3, 5)), np.ones((4, 3, 3))


def product(m, k, n):
    """FLOPs of [m, k] by [k, n]."""
    return 2 * m * k * n


def test_products_are_counted_as_often_as_they_run():
    def repeated(A, C):
        return lax.scan(lambda A, _: (A @ C[0], None), A, None, length=5)[0]

    def solved(C, b):
        return lax.custom_linear_solve(lambda x: C[0] @ x, b, lambda product, b: product(product(b)))

    cases = {
        product(2, 3, 5): (lambda A, B: jnp.tanh(A @ B) + 1, A, B),
        4 * product(2, 3, 3): (lambda A, C: A @ C, A, C),  # a batch of four
        5 * product(2, 3, 3): (jax.jit(repeated), A, C),
        2 * product(3, 3, 1): (solved, C, jnp.ones(3)),
        product(2, 3, 2) + product(2, 2, 3): (lambda A: lax.cond(A[0, 0] > 0, lambda A: A @ A.T @ A, jnp.sin, A), A),
    }
    for flops, (function, *args) in cases.items():
        assert matrix_flops(function, *args) == flops
    with pytest.raises(ValueError, match=r"use jax\.lax\.scan"):
        matrix_flops(lambda A: lax.while_loop(lambda A: A[0, 0] < 1, lambda A: A @ A.T @ A, A), A)


def test_the_count_is_the_compiler_s_where_there_is_neither_loop_nor_anything_else():
    analysis: Any = jax.jit(lambda A, B: (A @ B).T @ A).lower(A, B).compile().cost_analysis()
    assert analysis["flops"] == matrix_flops(lambda A, B: (A @ B).T @ A, A, B) == product(2, 3, 5) + product(5, 2, 3)


@pytest.mark.parametrize("normalised", [False, True])
def test_descent_costs_three_products_a_layer_but_no_error_of_the_inputs(normalised):
    n, M = (7, 5, 4, 3), 6
    forward = [product(M, a, b) for a, b in zip(n, n[1:], strict=False)]
    assert descent_flops(n, M, normalised=normalised) == 3 * sum(forward) - forward[0]


def test_an_update_of_the_shipped_rules_by_hand():
    """Every product of a step, in its order; fewer neurons than examples, so that the ridge systems have a column for each."""
    (n0, n1, n2), M = (7, 5, 3), 8
    k, passes = 2, 8
    forward = product(k, 1, M * n0) + k * product(M, n0, n1), product(k, k, M * n1) + k * product(M, n1, n2)
    back = product(k, k, M * n2) + k * product(M, n2, n1)
    first = product(1, 1, M * n0) + product(1, k, M * n1)  # states before and after, mixed into one channel
    first += product(M, n0 + 1, M) + passes * product(n1, M, M) + product(n0 + 1, M, n1) + product(M, M, n1)  # with trust
    last = product(1, k, M * n1) + product(1, k, M * n2)
    last += product(M, n1 + 1, M) + passes * product(n2, M, M) + product(n1 + 1, M, n2)
    genome, rules, _ = load_genome("digits")
    assert rule_flops(genome, rules, (n0, n1, n2), M) == 2 * sum(forward) + back + first + last  # in sequence: forward twice

    k = 4
    forward = product(k, 1, M * n0) + k * product(M, n0, n1), product(k, k, M * n1) + k * product(M, n1, n2)
    back = product(k, k, M * n2) + k * product(M, n2, n1)
    first = product(k, 1, M * n0) + product(k, k, M * n1) + k * product(n0 + 1, M, n1)
    last = product(k, k, M * n1) + product(k, k, M * n2) + k * product(n1 + 1, M, n2)
    genome, rules, _ = load_genome("hebbian")
    assert rule_flops(genome, rules, (n0, n1, n2), M) == sum(forward) + back + first + last


def test_an_update_of_digits_costs_eight_and_a_half_of_descent():
    genome, rules, _ = load_genome("digits")
    assert rule_flops(genome, rules, (64, 32, 10), 64) / descent_flops((64, 32, 10), 64) == pytest.approx(8.53, abs=0.005)


def four_classes(examples, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, examples)
    return Examples((rng.normal(size=(examples, 5)) + 1.5 * np.eye(5)[labels]).astype(np.float32), np.eye(4)[labels])


def test_classifiers_are_those_of_formulas_and_loops():
    train, test = four_classes(90), four_classes(200, 1)
    X, labels, T = train.X.astype(float), train.Y.argmax(axis=1), test.X.astype(float)
    nearest = [labels[min(range(90), key=lambda m: ((X[m] - x) ** 2).sum())] for x in T]
    assert fit_classifier("nearest neighbour", train).predict(T).tolist() == nearest

    targets, errors = 2 * np.asarray(train.Y) - 1, []  # leave one out, by loops: the least squared error
    for ridge in classifiers._ridges:
        left = [Ridge(ridge).fit(np.delete(X, m, 0), np.delete(targets, m, 0)).predict(X[m : m + 1])[0] for m in range(90)]
        errors.append(((np.array(left) - targets) ** 2).sum())
    best = Ridge(classifiers._ridges[int(np.argmin(errors))]).fit(X, targets)
    fitted = fit_classifier("ridge regression", train)
    np.testing.assert_allclose(fitted.decision_function(T), best.predict(T), rtol=1e-6, atol=1e-8)
    assert 0 < int(np.argmin(errors)) < len(errors) - 1  # not at an end of the grid

    scores = []
    for C in classifiers._strengths:
        folds = [
            LogisticRegression(C=C, max_iter=1000, tol=1e-3).fit(X[a], labels[a]).score(X[b], labels[b])
            for a, b in StratifiedKFold(5).split(X, labels)
        ]
        scores.append(np.mean(folds))
    best = LogisticRegression(C=classifiers._strengths[int(np.argmax(scores))], max_iter=1000, tol=1e-3).fit(X, labels)
    np.testing.assert_array_equal(fit_classifier("logistic regression", train).predict(T), best.predict(T))


def test_classifiers_have_the_examples_of_the_learners_and_no_others(monkeypatch):
    """Each fit sees the examples of the first n minibatches once; all learners share the one of all examples."""
    train, test, fitted = four_classes(20), four_classes(50, 1), []
    original = fit_classifier

    def record(name, part):
        fitted.append(part.X)
        return original(name, part)

    monkeypatch.setattr(classifiers, "fit_classifier", record)
    found = classifier_accuracies("nearest neighbour", train, test, at=(1, 2, 5), batch_size=4, seeds=(0, 3))
    assert [len(X) for X in fitted] == [4, 8, 20, 4, 8] and found.shape == (2, 3) and found[0, 2] == found[1, 2]
    batches = minibatches(3, 20, steps=2, batch_size=4)
    assert {row.tobytes() for row in fitted[4]} == {train.X[m].tobytes() for m in batches.ravel()}
    alone = original("nearest neighbour", Examples(train.X[batches.ravel()], train.Y[batches.ravel()]))
    assert found[1, 1] == alone.score(test.X, test.Y.argmax(axis=1))


@pytest.mark.parametrize("name", classifiers.CLASSIFIERS)
@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0], [2, 0, 0, 0, 0, 0, 1]], ids=str)
def test_few_examples_of_few_classes_are_learned_too(name, labels):
    """Of a single class, or where none can be left out."""
    X = np.eye(len(labels), 5, dtype=np.float32) + np.eye(5, dtype=np.float32)[labels]
    found = fit_classifier(name, Examples(X, np.eye(3)[labels])).predict(X)
    assert set(found) <= set(labels) and (np.mean(found == labels) > 0.5)


def test_given_minibatches_take_the_place_of_drawn_ones():
    train, test = two_classes(12), two_classes(50, 1)
    options = {"normalised": False, "steps": 4, "batch_size": 3, "seeds": (0, 5), "at": (1, 4)}
    batches = np.stack([minibatches(seed, 12, steps=4, batch_size=3) for seed in (0, 5)])
    drawn, given, again = (
        descent_curves("sgd", (0.5,), (4,), train, test, **options, batches=chosen)
        for chosen in (None, batches, batches[:, [0, 0, 0, 0]])
    )
    np.testing.assert_array_equal(drawn, given)
    assert (again[..., 0] == given[..., 0]).all() and (again[..., 1] != given[..., 1]).any()


def test_tasks_are_marked_by_what_the_rule_knows_them_from():
    """`digits` was meta-trained on digits, and its ridge update was inspected on three data sets; `hebbian` was not."""
    known = {name: [known_from(load_genome(name), task) for task in SUITE] for name in ("digits", "hebbian", "mnist")}
    counts = {name: (marks.count("meta-training"), marks.count("design"), marks.count(None)) for name, marks in known.items()}
    assert counts == {"digits": (9, 9, 36), "hebbian": (9, 0, 45), "mnist": (12, 0, 42)}
    assert {task.data for task, mark in zip(SUITE, known["digits"], strict=True) if mark == "design"} == {
        *("wine", "breast_cancer", "xor")
    }
    unknown = load_genome("digits")._replace(provenance={})
    assert known_from(unknown, SUITE[0]) is None


@pytest.mark.parametrize(
    ("accuracy", "updates"),
    [(0.2, 1), (0.5, 1), (0.6, 2), (0.65, np.sqrt(2 * 8)), (0.7, 8), (0.75, np.inf)],
)
def test_updates_to_reach_an_accuracy_by_hand(accuracy, updates):
    """From 2 to 8 updates a curve rises by 0.1, so that half of it is reached after 4; a later fall does not matter."""
    assert updates_to_reach(accuracy, (1, 2, 8, 16), (0.5, 0.6, 0.7, 0.65)) == pytest.approx(updates)


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 4.0]) == 3.0  # of five, one is left out at each end
    assert interquartile_mean([1.0, 5.0, 3.0]) == 3.0
    with pytest.raises(ValueError, match="no values: give at least one"):
        interquartile_mean([])


@pytest.mark.parametrize(("at", "curve"), [((1, 2), (0.5,)), ((), ()), ((0, 1), (0.1, 0.2)), ((2, 1), (0.1, 0.2))])
def test_a_curve_without_ascending_updates_is_refused(at, curve):
    with pytest.raises(ValueError, match="give one for each, ascending from 1 on"):
        updates_to_reach(0.5, at, curve)
