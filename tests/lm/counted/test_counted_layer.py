"""The layer on word vectors: its inputs and rows by loops, no look at later blocks, and what it is for.

Tolerances: sums and eigenvectors are float32, whose rounding in systems of this condition is below a thousandth.
"""

import functools

import numpy as np
import pytest
from counted_models import histories

from jexplicit.lm.attribution import account
from jexplicit.lm.counted import evidence as core
from jexplicit.lm.counted.contexts import Decisions, Text, decisions, grow, predicted_places, spelling
from jexplicit.lm.counted.evidence import Described, Layer, described, layer_rows, solve_layer
from jexplicit.lm.counted.model import CountedModel, begin, fit_counted, orders
from jexplicit.lm.evaluation import evaluate, init, read
from jexplicit.lm.model_files import read_model_file, save_model

N, R = 13, 3


def topics(documents: int, seed: int) -> np.ndarray:
    """Documents of 30 tokens, the six of one topic or of another, in random order."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 2, documents)
    return np.concatenate([[0], *([*(rng.integers(1, 7, 30) + 6 * topic), 0] for topic in own)]).astype(np.int32)


@functools.cache
def problem():
    rng, ids = np.random.default_rng(0), topics(12, 0)
    text, tree = Text(ids, spelling(None, N)), grow(ids[ids > 0], N)[0]
    d = decisions(ids, tree, predicted_places(ids, False), np.arange(len(ids)) * 4 // len(ids))
    tables = [rng.normal(size=(N, R)).astype(np.float32) * (np.arange(N) > 0)[:, None] for _ in range(2)]
    vectors = Described(tables[0], (1, 3), ()), Described(tables[1], (), (5, 40))
    return text, tree, d, vectors, rng.normal(size=len(d.bit)).astype(np.float32)


def z_by_loop(vectors, ids: np.ndarray, t: int) -> np.ndarray:
    start, found = np.flatnonzero(ids[:t] == 0)[-1] + 1, []
    for v in vectors:
        found += [v.table[ids[t - k]] if t - k >= start else np.zeros(R) for k in v.offsets]
        for W in v.windows:
            total = v.table[ids[max(start, t - W) : t]].sum(axis=0)
            found.append(total / (np.linalg.norm(total) + 1e-6))
    return np.concatenate([*found, [0.3]])


def test_inputs_by_a_loop():
    text, _, d, vectors, _ = problem()
    all_places = predicted_places(text.ids, False)
    for places in (all_places, all_places[[3, 50, 51]], all_places[-1:]):
        expected = [z_by_loop(vectors, text.ids, t) for t in places]
        np.testing.assert_allclose(described(vectors, text, places), expected, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 10])
def test_rows_by_a_loop_over_decisions(monkeypatch, depth):
    text, tree, d, vectors, base = problem()
    monkeypatch.setattr(core, "_deepest", depth)
    monkeypatch.setattr(core, "_of_group", 1)
    places = predicted_places(text.ids, False)[:-39]
    d = Decisions(*(field[d.place <= places[-1]] for field in d))
    base = base[: len(d.bit)]
    rows, near_to = layer_rows(vectors, text, d, base, tree), np.arange(N - 1)
    for path, length in zip(tree.node, tree.length, strict=True):  # nodes below one at this depth share F
        near_to[path[depth:length]] = path[min(depth, length - 1)]
    Z = np.array([z_by_loop(vectors, text.ids, t) for t in d.place])
    p = 1 / (1 + np.exp(-base))
    v = p * (1 - p)
    S = np.mean([np.outer(z, z) for z in (z_by_loop(vectors, text.ids, t) for t in places)], axis=0)
    S += 1e-5 * np.trace(S) / len(S) * np.eye(len(S))
    for blocks in (1, 4):
        theta = rows[blocks - 1]
        for n in range(N - 1):
            of = np.flatnonzero(near_to[d.node] == near_to[n])
            F = (sum(v[i] * np.outer(Z[i], Z[i]) for i in of) + 2 * S) / (v[of].sum() + 2)
            own = np.flatnonzero((d.node == n) & (d.block < blocks))
            G, h = sum((d.bit[i] - p[i]) * Z[i] for i in own), v[own].sum()
            np.testing.assert_allclose((h * F + 200 * S) @ theta[n], G, atol=2e-3 * max(1, np.abs(G).max()))
    assert (len(np.unique(near_to)) == N - 1) == (depth == 10)


def test_evidence_of_a_block_does_not_know_the_bits_after_it():
    text, tree, d, vectors, base = problem()
    other = d._replace(bit=np.where(d.block >= 2, 1 - d.bit, d.bit).astype(np.int8))
    one, two = (layer_rows(vectors, text, of, base, tree) for of in (d, other))
    for k, same in ((2, True), (3, False)):
        x, y = (Layer(vectors, rows[k - 1], 1.0).evidence(text, d.place, d.node) for rows in (one, two))
        assert np.array_equal(x, y) == same


def test_vectors_of_a_text_tell_its_topics_apart():
    ids = topics(40, 1)
    text = Text(ids, spelling(None, N))
    tree = grow(ids, N)[0]
    d = decisions(ids, tree, predicted_places(ids, False), np.arange(len(ids)) * 4 // len(ids))
    table = solve_layer(text, d, np.zeros(len(d.bit), np.float32), tree, np.zeros(0, int))[0].vectors[1].table
    alike = table @ table.T
    assert alike[1:7, 1:7].mean() > alike[1:7, 7:].mean() + 0.3 and not table[0].any()


@functools.cache
def fitted(history: str) -> CountedModel:
    return fit_counted(topics(40, 2), N, history=history, contexts=orders(0, 1), gates=(("node",),), layer=True)


def test_topics_that_contexts_do_not_see_are_predicted():
    """Contexts know the token before; the topic is known from two, and more of them are surer."""
    ids = topics(10, 3)
    shape = {"history": "none", "contexts": orders(0, 0), "gates": ()}
    without, layer = (evaluate(fit_counted(topics(400, 2), N, layer=layer, **shape), ids).loss for layer in (False, True))
    assert layer < without - 0.2  # log 2 = .69 nats at most, of them a part while rows have a strong ridge


@pytest.mark.parametrize("history", histories("none", slow=("window:40", "adaptive")))
def test_a_model_with_a_layer_is_read_saved_and_explained(history, tmp_path):
    model, ids = fitted(history), topics(2, 4)
    log_p, state = read(model, init(model), ids[1:20])
    again, _ = read(model, state, ids[20:])
    np.testing.assert_allclose(np.append(log_p, again), read(model, init(model), ids[1:])[0], atol=1e-4)
    own = account(model, begin(model), ids[1:20])
    assert model.names[-1] == "word vectors" and own.entries[:, -3].any()
    np.testing.assert_allclose(own.entries.sum(axis=1), own.log_odds, atol=1e-5)
    np.testing.assert_allclose(own.by_token(19)[2].sum(), log_p.sum(), rtol=1e-5)
    save_model(tmp_path / "model.safetensors", model)
    same = read_model_file(tmp_path / "model.safetensors")[0]
    assert isinstance(same, CountedModel) and isinstance(same.layer, Layer)
    np.testing.assert_array_equal(read(same, init(same), ids[1:20])[0], log_p)
