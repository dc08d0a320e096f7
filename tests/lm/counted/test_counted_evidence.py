"""Columns, trees, evidence of cells and word vectors, and the mix of it, against slow loops.

Tolerances: sums are made in float64 and kept in float32, whose rounding at the sizes met here is below 1e-5.
"""

import functools
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import chex
import numpy as np
import pytest
from refusals import refused
from scipy.optimize import minimize
from scipy.sparse import csr_array

from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.counted import contexts, evidence
from jexplicit.lm.counted.evidence import Described, Gate, View, blocks_of, directions, newton, pass_over, read_gate

ATOL = 1e-5

# Columns and trees

_play = (
    "First Man:\nTo be, or not.  Is't?\nOh NO! we\n\nKing:\nwe, two\nbe it\n\n\nFirst Man:\nSo\n",
    "a line\n\nKing:\nTo be? it's two; NO\n\nFirst Man:\nOh\n\nKing:\n-",
    "\nwe\nbe",
)
_all = (1, 3, *contexts.COLUMNS, "4:2")


@functools.cache
def characters():
    return train_tokenizer(_play, kind="char")


def plays(n, seed=0):
    return encode_documents(characters(), [_play[i % 3] for i in np.random.default_rng(seed).integers(0, 3, n)])


def text(ids, history="none"):
    N = characters().vocab_size
    return contexts.Text(ids, contexts.spelling(characters(), N)._replace(classes={4: np.arange(N) % 4}), history)


def facts(ids, t):
    """The columns of place t by a loop over the characters before it, in the document."""
    own, pieces = contexts.spelling(characters(), characters().vocab_size), characters().pieces()
    begin = max(i for i in range(t) if ids[i] == 0)
    before = [pieces[i] for i in ids[begin + 1 : t]]
    words, part, since, line, lines, opens, in_line, begun, mark, shape = [], [], [], [], [], [], 0, 0, None, []
    for piece, i in zip(before, ids[begin + 1 : t], strict=True):
        if not own.inside[i] and part:
            words, part, since, in_line = [*words, "".join(part)], [], [], in_line + 1
        since.append(piece)
        if own.inside[i]:
            begun += not part
            part.append(piece)
        elif piece not in ("▁", "\n"):
            mark = piece
        begun *= piece not in (".", "!", "?")
        kind = 1 + (piece.isupper()) if own.inside[i] else {"▁": 3, "\n": 4}.get(piece, 5 if piece in (".", "!", "?") else 6)
        shape += [] if shape[-1:] == [1] and kind == 1 else [kind]
        line.append(piece)
        if piece == "\n":
            opens += [line] if len(line) > 1 and (not lines or lines[-1] == "\n") else []
            lines, line, in_line = [*lines, "".join(line)], [], 0
    word = [*([None] * 3), *words]
    return {
        1: ids[t - 1],
        3: ids[t - 3] if t - 3 >= begin else None,
        "part": "".join(part),
        "word": word[-1],
        "word before": word[-2],
        "since": "".join(since),
        "line": "".join(line),
        "width": len(line),
        "speaker": "".join(opens[-1]) if opens else None,
        "speaker before": "".join(opens[-2]) if len(opens) > 1 else None,
        "paragraph": (not lines or lines[-1] == "\n") * (2 - bool(line)),
        "first": line[0] if line else None,
        "words in line": in_line,
        "width before": len(lines[-1]) if lines else 0,
        "line end": (lines[-1][-2:-1] or ("\n" if len(lines) > 1 else "start")) if lines else None,
        "sentence": begun,
        "punctuation": mark,
        "shape": tuple(shape[-8:]),
        "folded part": "".join(part).lower(),
        "folded word": word[-1] and word[-1].lower(),
        "4:2": None if t - 2 < begin else ids[t - 2] % 4,
    }


def test_columns_tell_places_apart_as_slow_facts_do():
    ids = plays(3)
    own, slow = text(ids), [facts(ids, t) for t in range(1, len(ids))]
    for name in slow[0]:
        numbers, known = own[name][1:], {}
        for number, fact in zip(numbers.tolist(), (fact[name] for fact in slow), strict=True):
            assert known.setdefault(number, fact) == fact, name
        assert len(known) == len({fact[name] for fact in slow}), name


def test_no_column_sees_the_future_or_beyond_a_window():
    ids, far = plays(3), plays(6)
    for t in (1, 40, 121, len(ids) - 2):
        one, two = (text(own, "all") for own in (ids, np.concatenate([ids[:t], plays(3, seed=7)[: len(ids) - t]])))
        for column in _all:
            np.testing.assert_array_equal(one[column][: t + 1], two[column][: t + 1], err_msg=f"{column}")
    for t in (60, 140, len(far) - 1):
        other = np.append(np.resize(plays(9, seed=7), t - 32), far[t - 32 :])
        one, two = (text(own, "window:32") for own in (far, other))
        assert [one[column][t] for column in _all] == [two[column][t] for column in _all], t


def test_trees_have_a_path_for_every_token_and_those_of_the_same_places_share_theirs():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 40, 3000) // 3
    pairs = csr_array((np.ones(2999, int), (ids[1:], ids[:-1])), shape=(14, 14))
    for tree in (
        contexts.grow(ids, 14)[0],
        contexts.bisect(contexts.word_vectors([pairs, pairs.T.tocsr()], 3), np.bincount(ids, minlength=14)),
        contexts.bisect(np.zeros((14, 3)), np.ones(14, int)),  # vectors that say nothing
        contexts.agglomerate(rng.random((14, 5))),
    ):
        log_odds = rng.normal(size=(2, 13)) * 3
        np.testing.assert_allclose(np.exp(tree.log_probabilities(log_odds)).sum(axis=1), 1, atol=1e-12)
        assert np.bincount(tree.node[tree.within], minlength=13).min() >= 2
    tree = contexts.grow(np.concatenate([[0, 1, rng.integers(3, 5), 2] for _ in range(300)]), 5)[0]
    assert tree.bit[3, : tree.length[3] - 1].tolist() == tree.bit[4, : tree.length[4] - 1].tolist()


def test_a_set_is_halved_between_its_clusters_and_each_half_keeps_its_share():
    def halved(sizes, counts):
        rng = np.random.default_rng(0)
        x = np.repeat(np.eye(len(sizes)) * 3, sizes, axis=0)  # well separated groups
        x = x + rng.normal(size=x.shape) / 4
        tree = contexts.bisect(x / np.linalg.norm(x, axis=1, keepdims=True), np.array(counts))
        return tree, {frozenset(np.flatnonzero(tree.bit[:, 0] == bit).tolist()) for bit in (0, 1)}

    assert halved((3, 9), [1] * 12)[1] == {frozenset(range(3)), frozenset(range(3, 12))}  # the median would cut the larger one
    assert min(map(len, halved((1, 19), [1] * 20)[1])) == 4  # a twentieth is no share: others go with it
    often = halved((3, 9), [100, *[1] * 11])[0]  # a token that has more than all others ends early
    assert often.length[0] <= 2 and often.length.max() < 12


def test_word_classes_are_the_groups_of_words_that_stand_in_the_same_places(monkeypatch):
    monkeypatch.setattr(contexts, "_merged", 10)
    monkeypatch.setattr(contexts, "_short", 1000)
    rng = np.random.default_rng(1)
    groups = np.arange(1, 31).reshape(3, 10)  # subjects, verbs, objects; token 31 never occurs
    ids = np.stack([rng.choice(group, 2000) for group in groups], axis=1).ravel()
    found = contexts.grow(ids, 32, (3, 40))[1]
    assert all(len(set(found[3][group].tolist())) == 1 for group in groups) and len(set(found[3][1:31].tolist())) == 3
    assert found[3][31] == found[3][0] == 0 and found[40].max() == 30  # no more classes than tokens
    np.testing.assert_array_equal(contexts.grow(ids, 32, (3,))[1][3], found[3])
    tree, cuts = contexts.grow(ids[:999], 32, (3,))
    np.testing.assert_array_equal(cuts[3], tree.classes(3, np.bincount(ids[:999], minlength=32)))


def test_trees_contexts_and_texts_that_are_refused_before_anything_is_counted():
    refused("at least two", contexts.grow, np.zeros(4, int), 1)
    for history in ("some", "window:31", "none:document"):
        refused("choose none, document", contexts.window_of, history)
    for column in (0, "parts", "60:0"):
        refused("give k >= 1", contexts.Context, column)
    tree = contexts.grow(plays(4), characters().vocab_size)[0]
    huge = tree._replace(length=np.full_like(tree.length, 1 << 28))
    refused(
        "decisions: context mixing counts 268,435,456 at most; give less", contexts.decisions, plays(4), huge, np.arange(1, 9)
    )


# Evidence of cells


def small():
    ids = plays(5)
    tree, block = contexts.grow(ids, characters().vocab_size)[0], np.arange(len(ids)) * 5 // len(ids)
    d = contexts.decisions(ids, tree, contexts.predicted_places(ids, False), block)
    base = np.random.default_rng(0).normal(size=len(d.bit)).astype(np.float32)
    return ids, d, base, text(ids)[contexts.Context(1)]


def take(seen, at):
    return evidence.Statistics(*(field[at] for field in seen))


def cells(h, node):
    return contexts.mix(h, node.astype(np.uint64)) >> np.uint64(29)


def views(L):
    window = np.maximum(np.arange(L) - 30, 0)
    block = np.searchsorted(np.arange(L) * 5 // L, np.arange(L) * 5 // L)
    return {"training": View(), "whole": View(whole=True), "window": View(False, window), "both": View(True, block)}


def slow(name, d, base, h):
    """Of every decision what its cell has seen before: (time, y, p) of each."""
    of, seen = defaultdict(list), []
    for i in range(len(d.bit)):
        of[h[d.place[i]], d.node[i]].append(i)
    for i in range(len(d.bit)):
        before = [j for j in of[h[d.place[i]], d.node[i]] if j < i]
        if name == "training":
            before = [j for j in before if d.block[j] < d.block[i]]
        if name == "window":
            before = [j for j in before if d.place[j] >= d.place[i] - 30]
        seen.append(before)
    return seen


@pytest.mark.parametrize("name", ["training", "whole", "window", "both"])
def test_evidence_of_a_pass(name):
    """Counted: the table of the other half of the cells; residual and recent: their formulas."""
    ids, d, base, h = small()
    past = pass_over(h, d, base, views(len(ids))[name])
    tables, middle = np.zeros((2, 2, 576 * 25)), [0, 1, 2, 3, 4, 5.5, 8, 12, 19, 36, 80, 150]
    bins = 1 / (1 + np.exp(-0.6 * np.arange(-12, 13)))
    prior = np.concatenate([(n1 + 4 * bins) / (n0 + n1 + 4) for n0 in middle for n1 in middle for _ in range(4)])
    seen, p = slow("whole" if name == "both" else name, d, base, h), 1 / (1 + np.exp(-base.astype(float)))
    half = (cells(h[d.place], d.node) & np.uint64(1)).astype(int)

    def state(i):
        y = d.bit[seen[i]]
        n0, n1 = (evidence._sizes[min((y == bit).sum(), 121)] for bit in (0, 1))
        x = np.clip(base[i] / 0.6 + 12, 0, 23.999)
        return ((n0 * 12 + n1) * 4 + (y[-1] + 2 * (y[-2] if len(y) > 1 else 0))) * 25 + int(x), x % 1

    for i in range(len(d.bit)):
        if seen[i]:
            cell, part = state(i)
            tables[half[i], d.bit[i], cell] += 1 - part
            tables[half[i], d.bit[i], cell + 1] += part
    for i in range(0, len(d.bit), 7):
        if not seen[i]:
            assert (past.x[:, i] == 0).all() and not past.known[i]
            continue
        (cell, part), before = state(i), seen[i]
        zeros, ones = tables[1 - half[i]]  # and ten pseudo-counts, as the state has them over four of the base
        own = np.log(ones + 10 * prior) - np.log(zeros + 10 * (1 - prior))
        y, n = d.bit[before], len(before)
        counted = (1 - part) * own[cell] + part * own[cell + 1]
        if n > 60:
            counted = (counted + np.log((y.sum() + 0.3) / (n - y.sum() + 0.3))) / 2
        r, v = y - p[before], p[before] * (1 - p[before])
        fade = 0.875 ** np.arange(n)[::-1]
        expected = [counted - base[i], r.sum() / (v.sum() + 2), (fade * r).sum() / ((fade * v).sum() + 0.7)]
        np.testing.assert_allclose(past.x[:, i], expected, atol=1e-4)  # the position in a bin is float32


def test_shards_and_reading_on_change_nothing(monkeypatch):
    ids, d, base, h = small()
    whole = pass_over(h, d, base, View(whole=True), keep=True)
    monkeypatch.setattr(evidence, "_shard", 200)
    parts = pass_over(h, d, base, View(whole=True), keep=True)
    np.testing.assert_allclose(parts.x, whole.x, atol=ATOL)
    assert parts.cells is not None and whole.cells is not None
    for one, two in zip(parts.cells[:2] + parts.cells.seen[:3], whole.cells[:2] + whole.cells.seen[:3], strict=True):
        np.testing.assert_array_equal(one, two)
    both = pass_over(h, d, base, View(whole=True), table=whole.table).x
    start, cut = (contexts.Decisions(*(field[at] for field in d)) for at in (slice(700), slice(700, None)))
    first = pass_over(h, start, base[:700], View(whole=True), keep=True, table=whole.table)
    later = pass_over(h, cut, base[700:], View(whole=True), table=whole.table, before=first.cells)
    np.testing.assert_allclose(first.x, both[:, :700], atol=ATOL)
    np.testing.assert_allclose(later.x[0], both[0, 700:], atol=1e-4)
    np.testing.assert_allclose(later.x[1:], both[1:, 700:], atol=3e-3)  # cells hold sums in half precision


def test_a_long_text_changes_its_base_shard_by_shard(monkeypatch):
    """Evidence of some decisions, and the base of all, as if the evidence of all were kept."""
    _, d, base, h = small()
    wanted, some = np.array([[40, 90], [200, 300]]), np.r_[40:90, 200:300]
    weights = {}

    def solve(x):
        weights["seen"] = x.copy()
        return np.array([0.7, 0.4, 0.2], np.float32)

    whole = pass_over(h, d, expected := base.copy(), View(), keep=True, weights=solve)
    monkeypatch.setattr(evidence, "_shard", 200)
    monkeypatch.setattr(evidence, "_keys_at_once", 400)  # two shards at once
    table = pass_over(h, d, base.copy(), View(), wanted=wanted, weights=solve).table
    assert (weights["seen"] != 0).any() and (weights["seen"][:, 0] == 0).mean() > (whole.x[0, some] == 0).mean()
    assert not np.array_equal(table, whole.table)
    monkeypatch.setattr(evidence, "_keys_at_once", 1 << 20)
    part = pass_over(h, d, found := base.copy(), View(), wanted=wanted, keep=True, weights=solve)
    np.testing.assert_array_equal(part.table, whole.table)
    np.testing.assert_allclose(part.x, whole.x[:, some], atol=ATOL)
    np.testing.assert_allclose(weights["seen"].T, part.x)
    np.testing.assert_array_equal(part.known, whole.known[some])
    np.testing.assert_allclose(found, expected, atol=ATOL)
    assert part.cells is not None and whole.cells is not None
    np.testing.assert_array_equal(part.cells.low, whole.cells.low)


def test_threads_and_chunks_change_nothing_and_a_context_may_have_one_cell(monkeypatch):
    _, d, base, h = small()
    whole = pass_over(h, d, base, View(whole=True))
    monkeypatch.setattr(evidence, "_chunk", len(d.bit) - 1)
    np.testing.assert_allclose(pass_over(h, d, base, View(whole=True)).x, whole.x, atol=ATOL)
    one, zeros = d._replace(node=np.zeros_like(d.node)), np.zeros_like(h)
    kept, cell = pass_over(zeros, one, base, View(whole=True), keep=True).cells, cells(zeros[:1], one.node[:1])
    assert kept is not None and kept.seen.n.tolist() == [len(d.bit)]
    assert kept.find(np.append(cell, [cell + np.uint64(1), cell ^ np.uint64(1 << 34)])).n.tolist() == [len(d.bit), 0, 0]
    monkeypatch.setattr(evidence, "_shard", 100)
    found = []
    for count in (1, 8):
        with ThreadPoolExecutor(count) as pool:
            monkeypatch.setattr(evidence, "threads", lambda pool=pool: pool)
            found.append(pass_over(h, d, base, View(), keep=True))
    chex.assert_trees_all_equal(*found)


def test_cells_hold_what_was_seen_in_small_integers():
    """Numbers that differ in the bits above 32 alone, and counts above 255, come back exactly."""
    rng = np.random.default_rng(0)
    cell = np.unique(rng.integers(0, 8, 300, dtype=np.uint64) << np.uint64(32) | rng.integers(0, 50, 300, dtype=np.uint64))
    n = rng.integers(1, 400, len(cell)).astype(np.int32)
    sums = rng.normal(size=(4, len(cell))).astype(np.float16).astype(np.float32)
    seen = evidence.Statistics(n, n // 2, (n % 4).astype(np.int8), *sums)
    seen.r[3] = 40_000.5  # more than half precision holds
    kept = evidence.join([cell[:9], cell[9:]], [take(seen, slice(9)), take(seen, slice(9, None))])
    assert [field.dtype for field in kept.seen[3:]] == [np.float32, *[np.float16] * 3]
    assert kept.seen.n.dtype == np.uint16 and kept.seen.last.dtype == np.uint8
    order = rng.permutation(len(cell))
    for one, two in zip(kept.find(cell[order]), take(seen, order), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype


def test_cells_of_few_decisions_say_nothing():
    _, d, base, h = small()
    two = pass_over(h, d, base, View(whole=True), least=3, keep=True)
    n = np.array([len(before) for before in slow("whole", d, base, h)])
    np.testing.assert_array_equal(two.known, n >= 3)
    assert (two.x[:, n < 3] == 0).all() and two.cells is not None and two.cells.seen.n.min() >= 3


def test_newtons_method_finds_the_minimum():
    rng = np.random.default_rng(0)
    X, y, offset = rng.normal(size=(200, 3)), rng.integers(0, 2, 200), rng.normal(size=200)

    def loss(w):
        a = offset + X @ w
        return np.logaddexp(0, np.where(y > 0, -a, a)).sum() + ((w - 0.5) ** 2).sum()

    found = newton(X.astype(np.float32), y, np.full(3, 0.5), 2.0, offset.astype(np.float32))
    np.testing.assert_allclose(found, minimize(loss, np.zeros(3)).x, atol=2e-3)  # its last step gains less than .001 nats


def test_a_gate_by_a_loop():
    rng = np.random.default_rng(0)
    x, y, sets, a = rng.normal(size=(5, 300)), rng.integers(0, 2, 300), rng.integers(0, 4, 300), rng.normal(size=300)
    gate = Gate(rng.normal(size=(5, 2)), np.array([3.0, 9.0]), np.zeros((4, 2)), np.zeros((4, 2)))
    gate = Gate(*(v.astype(np.float32) for v in gate))
    place = np.repeat(np.arange(60), 5)
    out, after = read_gate(gate, x.astype(np.float32), a, sets, y, blocks_of(place)[:260])
    D, H, z = np.zeros((4, 2)), np.zeros((4, 2)), np.clip(x.T @ gate.U, -8, 8)
    for start, end in ((0, 65), (65, 130), (130, 195), (195, 260), (260, 300)):  # a token begins at 0, 65, 130, 195, 260
        dD, dH = np.zeros_like(D), np.zeros_like(H)
        for i in range(start, end):
            o = np.clip(a[i] + D[sets[i]] @ z[i], -9.5, 9.5)
            np.testing.assert_allclose(out[i], o, atol=1e-5)  # float32
            rate, p = z[i] / (H[sets[i]] + gate.ridge), 1 / (1 + np.exp(-o))
            d, reach = 0.0, z[i] @ rate
            for _ in range(3):  # of Newton's method, to the implicit step
                q = 1 / (1 + np.exp(-(o + d)))
                d -= (d - reach * (y[i] - q)) / (1 + reach * q * (1 - q))
            dD[sets[i]] += (y[i] - 1 / (1 + np.exp(-(o + d)))) * rate
            dH[sets[i]] += p * (1 - p) * z[i] ** 2
        if end <= 260:
            D, H = D + dD, H + dH
    np.testing.assert_allclose(after.D, D, atol=1e-5)
    np.testing.assert_allclose(after.H, H, rtol=1e-4)


def test_directions_are_those_in_which_sets_differ():
    rng = np.random.default_rng(0)
    X, sets = rng.normal(size=(40_000, 3)).astype(np.float32), rng.integers(0, 20, 40_000)
    own = rng.normal(size=20)[sets] * 2  # weights of the second input, which differ between the sets
    y = rng.random(40_000) < 1 / (1 + np.exp(-own * X[:, 1]))
    M = np.eye(3)
    for halves in (None, np.arange(40_000) % 2):
        gate = directions(X.T, y, np.zeros(40_000), sets, M, 20, 3, 3.0, halves)
        best = gate.U[:, np.argmin(gate.ridge)]
        assert abs(best[1]) > 0.99 * np.linalg.norm(best)
    even = rng.random(40_000) < 0.5
    none = directions(X.T, even, np.zeros(40_000), sets, M, 20, 3, 3.0)
    assert none.ridge.min(initial=np.inf) > 100 * gate.ridge.min()


# The layer on word vectors: eigenvectors are float32, whose rounding in systems of this condition is below a thousandth

N, R = 13, 3


@functools.cache
def problem():
    rng = np.random.default_rng(0)
    topics = rng.integers(1, 7, (12, 30)) + 6 * rng.integers(0, 2, (12, 1))
    ids = np.append(0, np.pad(topics, ((0, 0), (0, 1))).ravel()).astype(np.int32)
    text, tree = contexts.Text(ids, contexts.spelling(None, N)), contexts.grow(ids[ids > 0], N)[0]
    d = contexts.decisions(ids, tree, contexts.predicted_places(ids, False), np.arange(len(ids)) * 4 // len(ids))
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
    all_places = contexts.predicted_places(text.ids, False)
    for places in (all_places, all_places[[3, 50, 51]], all_places[-1:]):
        expected = [z_by_loop(vectors, text.ids, t) for t in places]
        np.testing.assert_allclose(evidence.described(vectors, text, places), expected, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 10])
def test_rows_by_a_loop_over_decisions(monkeypatch, depth):
    text, tree, d, vectors, base = problem()
    monkeypatch.setattr(evidence, "_deepest", depth)
    monkeypatch.setattr(evidence, "_of_group", 1)
    places = contexts.predicted_places(text.ids, False)[:-39]
    d = contexts.Decisions(*(field[d.place <= places[-1]] for field in d))
    base = base[: len(d.bit)]
    rows, near_to = evidence.layer_rows(vectors, text, d, base, tree), np.arange(N - 1)
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
