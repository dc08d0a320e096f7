"""Opponents of a learned rule on equal terms: SGD at equal cost, and classifiers of scikit-learn on the examples it has seen.

An update of a rule costs several of SGD, so SGD may make as many updates as the rule has FLOPs for: on new minibatches
("FLOPs"), or in turn on those that the rule has seen ("FLOPs and examples").
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from icl.blur.baselines import descent_curves
from icl.blur.genome_files import LearnedRule
from icl.blur.judging.classifiers import CLASSIFIERS, Classifier, classifier_accuracies
from icl.blur.judging.flops import descent_flops, rule_flops
from icl.blur.learning import minibatches
from launch.blur.config import LearnersConfig
from launch.blur.data import first_examples
from launch.blur.learners import (
    TUNING,
    Place,
    examples_seen,
    layer_sizes,
    learner_name,
    learner_options,
    part,
    percent,
    place_name,
    place_of,
)
from launch.kit.experiment import Part
from launch.kit.rows import Results, Row, groups, only, where
from launch.kit.tables import Column
from launch.kit.views import Table

UPDATES = (1, 2, 5, 10, 20)
"""Numbers of updates of the rule that opponents are measured after, of those that the learners have."""
EQUAL_COST = "sgd, equal cost"


def opponents(
    config: LearnersConfig, rule: LearnedRule, place: Place, rates: tuple[float, ...], *, classify: bool = True, **key: Any
) -> Iterator[Part]:
    """Rows of SGD at equal cost, and of the classifiers, which depend on the data alone."""
    at = tuple(n for n in UPDATES if n <= config.steps)
    yield part(functools.partial(descent_at_equal_cost, config, rule, place, rates, at), **key, baseline=EQUAL_COST)
    for name in CLASSIFIERS if classify else ():
        yield part(functools.partial(classified, config, place, name, at), **key, baseline=name)


def descent_at_equal_cost(
    config: LearnersConfig, rule: LearnedRule, place: Place, rates: tuple[float, ...], at: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Rows of SGD after as many updates as have the FLOPs of n updates of the rule, for each n of `at`.

    Learning rate and activation are those with the best accuracy on dev, with other networks, for each number of updates.
    """
    (sets, hidden), activations = place, getattr(config, "baseline_activations", ("tanh",))
    options = learner_options(config, sets)
    B, seeds = options["batch_size"], options["seeds"]
    own, theirs = rule_flops(*rule[:2], layer_sizes(place), B), descent_flops(layer_sizes(place), B)
    updates = {n: n * own // theirs for n in at}
    ends = tuple(sorted(set(updates.values())))
    steps, M = max(1, ends[-1]), len(sets.train.X)
    repeated = [n for n in at if n * B < M]  # later the rule has seen all examples

    def curves(name: str, first_seed: int) -> np.ndarray:  # [activations * rates, 1 + repeated, learners, ends]
        of = tuple(seed + first_seed for seed in seeds)
        new = np.stack([minibatches(seed, M, steps=steps, batch_size=B) for seed in of])
        batches = np.concatenate([new, *(new[:, np.arange(steps) % n] for n in repeated)])
        run = functools.partial(descent_curves, "sgd", rates, hidden, sets.train, first_examples(getattr(sets, name)))
        run = functools.partial(run, normalised=False, steps=steps, batch_size=B, at=ends, batches=batches)
        found = np.concatenate([run(hidden_activation=a, seeds=of * (1 + len(repeated))) for a in activations])
        return found.reshape(len(found), 1 + len(repeated), len(of), len(ends))

    dev, test, rows = curves("dev", TUNING), curves("test", 0), []
    for n in at:
        end = ends.index(updates[n])
        again = 1 + repeated.index(n) if n in repeated else 0
        for equal, stream, seen in (("FLOPs", 0, updates[n]), ("FLOPs and examples", again, n)):
            best = int(dev[:, stream, :, end].mean(axis=1).argmax())
            chosen = {"learning_rate": rates[best % len(rates)], "activation": activations[best // len(rates)]}
            cost = {"updates": updates[n], "flops": updates[n] * theirs, "examples": examples_seen(seen, B, sets)}
            key = {**place_of(*place), "step": n, "equal": equal}
            rows.append({**key, **cost, **chosen, **_accuracy(test[best, stream, :, end])})
    return rows


def classified(config: LearnersConfig, place: Place, name: Classifier, at: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows of a classifier of the examples in the first n minibatches of the learners, for each n of `at`."""
    sets, options = place[0], learner_options(config, place[0])
    found = classifier_accuracies(name, sets.train, first_examples(sets.test), at=at, **options)
    seen = [examples_seen(n, options["batch_size"], sets) for n in at]
    return [
        {**place_of(*place), "step": n, "equal": "examples", "examples": examples, **_accuracy(accuracies)}
        for n, examples, accuracies in zip(at, seen, found.T, strict=True)
    ]


def _accuracy(learners: np.ndarray) -> Row:
    return {"test_accuracy": float(learners.mean()), "spread": float(learners.std())}


# --- views ---------------------------------------------------------------------------------------------------------------


def _name(row: Row) -> str:
    equal = row.get("equal") or "updates"
    return f"sgd at equal {equal}" if row.get("baseline") in ("sgd", EQUAL_COST) else learner_name(row)


def equal_lines(results: Results) -> list[Row]:
    """A line for each place and number of updates of the rule: its cost, and the accuracies of all that are on equal terms."""
    rows = [row for row in results.rows if row.get("baseline") in (None, "sgd", EQUAL_COST, *CLASSIFIERS)]
    lines = []
    for place, here in groups(rows, place_name).items():
        for n in sorted({row["step"] for row in where(here, baseline=EQUAL_COST)}):
            own = where(here, step=n)
            rule, descent = only(own, baseline=None), only(own, equal="FLOPs")
            cost = {"examples": rule["examples"], "flops": rule["flops"], "updates": descent["updates"]}
            among = [row["test_accuracy"] for row in own]
            lines.append({"where": place, "n": n, **cost, **{_name(row): percent(row["test_accuracy"], among) for row in own}})
    return lines


def _columns(lines: list[Row]) -> list[Column]:
    costs = [Column("", "where")] if len({line["where"] for line in lines}) > 1 else []
    costs += [Column("n", "n"), Column("examples", "examples"), Column("MFLOPs", "flops", ".1f", 1e-6)]
    costs += [Column("updates of sgd", "updates")]
    names = dict.fromkeys(name for line in lines for name in line)
    return [*costs, *(Column(name, name) for name in names if name not in ("where", "n", "examples", "flops", "updates"))]


EQUAL = Table(
    _columns,
    equal_lines,
    note="Test accuracy in % after n updates of the rule. FLOPs are those of matrix products. SGD at equal FLOPs makes more "
    "updates, on new minibatches or in turn on those of the rule. Classifiers of scikit-learn have the examples of the rule; "
    "their regularisation is chosen on these by cross-validation.",
)
