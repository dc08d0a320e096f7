"""Classify texts by the explicit solution of a softmax layer on words.

    jexplicit classify-text --train reviews.csv --field text --label stars --text "a fine film"

The features H of a text are the shares of its words times K, the mean number of words of a text; U of `softmax(H U)` is solved
from F = HᵀY + 1, the words of each label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jexplicit.data.text import file_records, list_files
from jexplicit.runs.files import NonNegativeInt
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.kit.views import Column, rich_table

_most_words, _part = 20_000, 10  # the most frequent words; every tenth text of a label is held out
_columns = (Column("model", "model"), Column("accuracy, %", "accuracy", ".2f", 100), Column("loss, nats", "loss", ".4f"))


@dataclass(frozen=True, kw_only=True)
class Config:
    train: tuple[str, ...]
    """Labelled texts: files of records (.csv, .tsv, .jsonl, .parquet), globs or folders."""
    field: str
    """Field of the text."""
    label: str
    """Field of the label."""
    test: tuple[str, ...] = ()
    """Labelled texts to measure on, as --train. Default: a tenth of the texts of each label, held out with --seed."""
    text: tuple[str, ...] = ()
    """Texts whose labels are wanted."""
    seed: NonNegativeInt = 0
    """Seed of the held-out texts."""


def measure(
    train: Sequence[str], Y: np.ndarray, test: Sequence[str], Y_test: np.ndarray, new: Sequence[str]
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Accuracy and loss by model on test texts, and probabilities of new ones."""
    import jax.numpy as jnp
    from scipy.special import softmax
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    from jexplicit.solvers import accuracy, explicit_solution, mean_loss

    counter = CountVectorizer(token_pattern=r"\w+", max_features=_most_words)
    counts = [counter.fit_transform(train), *(counter.transform(texts) for texts in (test, new))]
    sizes = [np.asarray(n.sum(axis=1), np.float64).reshape(-1, 1) for n in counts]
    K = max(1.0, float(sizes[0].mean()))
    H, *others = (n.multiply(K / np.maximum(size, 1)).tocsr() for n, size in zip(counts, sizes, strict=True))
    U = np.asarray(explicit_solution(jnp.asarray(H.T @ np.eye(Y.max() + 1)[Y] + 1), K))
    prior = np.log(np.bincount(Y) / len(Y))  # of a text without a known word
    solved, wanted = (h @ U + (size == 0) * prior for h, size in zip(others, sizes[1:], strict=True))
    trained = LogisticRegression(max_iter=1000).fit(H, Y).predict_log_proba(others[0])
    logits = {"class prior": prior + 0 * solved, f"explicit solution, K = {K:.4g}": solved, "logistic regression": trained}
    tested = [(name, jnp.asarray(x), jnp.asarray(Y_test)) for name, x in logits.items()]
    rows = [{"model": name, "accuracy": accuracy(x, y), "loss": mean_loss(x, y)} for name, x, y in tested]
    return rows, softmax(wanted, axis=1)


def _read_labelled(paths: Sequence[str], field: str, label: str) -> tuple[list[str], np.ndarray]:
    """The texts of records and their labels, none of them empty."""
    records = [record for path in list_files(paths) for record in file_records(path, [field, label])]
    found = [(record.text_in(field), "" if (y := record.value(label)) is None else str(y)) for record in records]
    for record, pair in zip(records, found, strict=True):
        if not all(map(str.strip, pair)):
            place = f"{record.file}, line {record.line}"
            raise ValueError(f"{place}: {field} or {label} is empty; fill it, or take the record out")
    return [text for text, _ in found], np.array([y for _, y in found])


def run(config: Config) -> dict[str, Any]:
    """Read, fit and measure; print a table, and the labels of new texts."""
    if blank := [text for text in config.text if not text.strip()]:
        raise ValueError(f"--text {blank[0]!r}: give at least one word to classify")
    texts, labels = _read_labelled(config.train, config.field, config.label)
    classes, Y = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"--label {config.label}: --train has {len(classes)} labels; give texts of two labels or more")
    order = np.random.default_rng(config.seed).permutation(len(Y))
    if config.test:
        held, (tests, given) = order[:0], _read_labelled(config.test, config.field, config.label)
    else:
        held = np.concatenate([order[Y[order] == n][_part - 1 :: _part] for n in range(len(classes))])
        tests, given = [texts[n] for n in held], labels[held]
    if unknown := set(given) - set(classes):
        raise ValueError(f"--test has the label '{min(unknown)}', which --train has not: give --train texts of that label")
    if not tests:
        raise ValueError(f"--train has fewer than {_part} texts of every label: give more, or name --test FILES")
    rest, Y_test = np.setdiff1d(order, held), np.searchsorted(classes, given)
    rows, p = measure([texts[n] for n in rest], Y[rest], tests, Y_test, config.text)
    found = [{"label": str(classes[n]), "p": float(p[m, n]), "text": config.text[m]} for m, n in enumerate(p.argmax(axis=1))]
    table = rich_table(_columns, rows, title=f"{len(rest)} training texts, {len(tests)} test texts")
    show(table, *(f"{one['label']} ({one['p']:.3f}): {one['text']}" for one in found))
    return {"rows": rows, "texts": found}


main = entry_point(run, Config, __doc__, module=__name__)
