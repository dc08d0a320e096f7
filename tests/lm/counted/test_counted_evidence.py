"""Statistics of cells, their evidence, and the mix of it, against slow loops.

Tolerances: sums are made in float64 and kept in float32, whose rounding at the sizes met here is below 1e-5.
"""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import chex
import numpy as np
import pytest
from counted_models import stream, tokenizer
from scipy.optimize import minimize

from jexplicit.lm.counted import evidence as core
from jexplicit.lm.counted.contexts import Context, Decisions, Text, decisions, grow, mix, predicted_places, spelling
from jexplicit.lm.counted.evidence import (
    Gate,
    View,
    blocks_of,
    directions,
    evidence,
    keys,
    newton,
    pass_over,
    read_gate,
    sort,
)

ATOL = 1e-5


def small():
    ids = stream(4)
    N = tokenizer().vocab_size
    tree, block = grow(ids, N)[0], np.arange(len(ids)) * 5 // len(ids)
    d = decisions(ids, tree, predicted_places(ids, False), block)
    base = np.random.default_rng(0).normal(size=len(d.bit)).astype(np.float32)
    return ids, d, base, Text(ids, spelling(tokenizer(), N))[Context(1)]


def take(seen, at):
    return core.Statistics(*(field[at] for field in seen))


def cells(h, node):
    return mix(h, node.astype(np.uint64)) >> np.uint64(29)


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
def test_what_cells_have_seen(name):
    ids, d, base, h = small()
    (key,) = keys(h, d, 1, range(1))
    s = sort(key, base, views(len(ids))[name], d)
    found = s.seen(*((begin, slice(0, len(key)) if end is None else end) for begin, end in s.views))
    at, p = np.argsort(s.time), 1 / (1 + np.exp(-base.astype(float)))
    found = take(found, at)
    for i, before in enumerate(slow("whole" if name == "both" else name, d, base, h)):
        y, r, v = d.bit[before], d.bit[before] - p[before], p[before] * (1 - p[before])
        assert (found.n[i], found.ones[i]) == (len(before), y.sum())
        assert found.last[i] == (y[-1] if len(y) else 0) + 2 * (y[-2] if len(y) > 1 else 0)
        fade = 0.875 ** np.arange(len(y))[::-1]  # the last one has weight 1
        sums = [r.sum(), v.sum(), (fade * r).sum(), (fade * v).sum()]
        np.testing.assert_allclose(list(take(found, i))[3:], sums, atol=ATOL)


def test_evidence_of_a_pass():
    """Counted: the table of the other half of the cells; residual and recent: their formulas."""
    ids, d, base, h = small()
    past = pass_over(h, d, base, View(whole=True))
    tables, middle = np.zeros((2, 2, 576 * 25)), [0, 1, 2, 3, 4, 5.5, 8, 12, 19, 36, 80, 150]
    bins = 1 / (1 + np.exp(-0.6 * np.arange(-12, 13)))
    prior = np.concatenate([(n1 + 4 * bins) / (n0 + n1 + 4) for n0 in middle for n1 in middle for _ in range(4)])
    seen, p = slow("whole", d, base, h), 1 / (1 + np.exp(-base.astype(float)))
    half = (cells(h[d.place], d.node) & np.uint64(1)).astype(int)

    def state(i):
        y = d.bit[seen[i]]
        n0, n1 = (core._sizes[min((y == bit).sum(), 121)] for bit in (0, 1))
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
    monkeypatch.setattr(core, "_shard", 200)
    parts = pass_over(h, d, base, View(whole=True), keep=True)
    np.testing.assert_allclose(parts.x, whole.x, atol=ATOL)
    assert parts.cells is not None and whole.cells is not None
    assert len(np.unique(whole.cells.first)) > 4
    for one, two in zip(parts.cells[:2] + parts.cells.seen[:3], whole.cells[:2] + whole.cells.seen[:3], strict=True):
        np.testing.assert_array_equal(one, two)
    both = pass_over(h, d, base, View(whole=True), table=whole.table).x
    start, cut = (Decisions(*(field[at] for field in d)) for at in (slice(700), slice(700, None)))
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
    monkeypatch.setattr(core, "_shard", 200)
    monkeypatch.setattr(core, "_keys_at_once", 400)  # two shards at once
    table = core.pass_over(h, d, base.copy(), View(), wanted=wanted, weights=solve).table
    assert (weights["seen"] != 0).any() and (weights["seen"][:, 0] == 0).mean() > (whole.x[0, some] == 0).mean()
    assert not np.array_equal(table, whole.table)
    monkeypatch.setattr(core, "_keys_at_once", 1 << 20)
    part = pass_over(h, d, found := base.copy(), View(), wanted=wanted, keep=True, weights=solve)
    np.testing.assert_array_equal(part.table, whole.table)
    np.testing.assert_allclose(part.x, whole.x[:, some], atol=ATOL)
    np.testing.assert_allclose(weights["seen"].T, part.x)
    np.testing.assert_array_equal(part.known, whole.known[some])
    np.testing.assert_allclose(found, expected, atol=ATOL)
    assert part.cells is not None and whole.cells is not None
    np.testing.assert_array_equal(part.cells.low, whole.cells.low)


def test_any_number_of_threads_finds_the_same(monkeypatch):
    _, d, base, h = small()
    monkeypatch.setattr(core, "_shard", 100)
    found = []
    for count in (1, 3, 8):
        with ThreadPoolExecutor(count) as pool:
            monkeypatch.setattr(core, "threads", lambda pool=pool: pool)
            found.append(pass_over(h, d, base, View(), keep=True))
    for past in found[1:]:
        chex.assert_trees_all_equal(past, found[0])


def test_a_chunk_of_one_decision_and_a_context_of_one_cell(monkeypatch):
    _, d, base, h = small()
    whole = pass_over(h, d, base, View(whole=True))
    monkeypatch.setattr(core, "_chunk", len(d.bit) - 1)
    np.testing.assert_allclose(pass_over(h, d, base, View(whole=True)).x, whole.x, atol=ATOL)
    one, zeros = d._replace(node=np.zeros_like(d.node)), np.zeros_like(h)
    kept, cell = pass_over(zeros, one, base, View(whole=True), keep=True).cells, cells(zeros[:1], one.node[:1])
    assert kept is not None and kept.seen.n.tolist() == [len(d.bit)]
    found = kept.find(np.append(cell, [cell + np.uint64(1), cell ^ np.uint64(1 << 34)]))
    assert found.n.tolist() == [len(d.bit), 0, 0] and take(found, [1]).n.tolist() == [0]


def test_cells_hold_what_was_seen_in_small_integers():
    """Numbers that differ in the bits above 32 alone, and counts above 255, come back exactly."""
    rng = np.random.default_rng(0)
    cell = np.unique(rng.integers(0, 8, 300, dtype=np.uint64) << np.uint64(32) | rng.integers(0, 50, 300, dtype=np.uint64))
    n = rng.integers(1, 400, len(cell)).astype(np.int32)
    sums = rng.normal(size=(4, len(cell))).astype(np.float16).astype(np.float32)
    seen = core.Statistics(n, n // 2, (n % 4).astype(np.int8), *sums)
    seen.r[3] = 40_000.5  # more than half precision holds
    kept = core.join([cell[:9], cell[9:]], [take(seen, slice(9)), take(seen, slice(9, None))])
    assert [field.dtype for field in kept.seen[3:]] == [np.float32, *[np.float16] * 3]
    assert kept.seen.n.dtype == np.uint16 and kept.seen.last.dtype == np.uint8
    order = rng.permutation(len(cell))
    for one, two in zip(kept.find(cell[order]), take(seen, order), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    none = kept._replace(low=kept.low[:0], first=kept.first * 0, seen=take(seen, slice(0)))
    assert not none.find(cell).n.any()


def test_cells_of_few_decisions_say_nothing():
    _, d, base, h = small()
    two = pass_over(h, d, base, View(whole=True), least=3, keep=True)
    n = np.array([len(before) for before in slow("whole", d, base, h)])
    np.testing.assert_array_equal(two.known, n >= 3)
    assert (two.x[:, n < 3] == 0).all() and two.cells is not None and two.cells.seen.n.min() >= 3


def test_more_decisions_than_a_key_can_number_are_refused_before_any_is_made():
    ids = stream(4)
    tree = grow(ids, tokenizer().vocab_size)[0]
    long = tree._replace(length=np.full_like(tree.length, 1 << 28))
    with pytest.raises(ValueError, match="decisions: context mixing counts 268,435,456 at most; give less text"):
        decisions(ids, long, np.arange(1, 9))


def test_a_chain_without_discounts_is_smoothing_by_hand():
    """With the log-odds (n1 + k p) / (n0 + k (1 - p)) as table, a chain is additive smoothing towards the shorter context."""
    p, k = 0.3, 2.0
    seen = core.Statistics(np.array([5]), np.array([3]), np.array([1]), *np.zeros((4, 1), np.float32))
    table = np.full((1, 576, 25), np.log((3 + k * p) / (2 + k * (1 - p))), np.float32)
    base = np.log([p / (1 - p)]).astype(np.float32)
    x = evidence(seen, base, table, np.zeros(1, np.int32), 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-(base + x[:, 0]))), (3 + k * p) / (5 + k), atol=1e-6)


def test_newtons_method_finds_the_minimum():
    rng = np.random.default_rng(0)
    X, y, offset = rng.normal(size=(200, 3)), rng.integers(0, 2, 200), rng.normal(size=200)

    def loss(w):
        a = offset + X @ w
        return np.logaddexp(0, np.where(y > 0, -a, a)).sum() + ((w - 0.5) ** 2).sum()

    found = newton(X.astype(np.float32), y, np.full(3, 0.5), 2.0, offset.astype(np.float32))
    np.testing.assert_allclose(found, minimize(loss, np.zeros(3)).x, atol=2e-3)  # its last step gains less than .001 nats
    assert loss(found) < loss(minimize(loss, np.zeros(3)).x) + 1e-3


def test_a_gate_by_a_loop():
    rng = np.random.default_rng(0)
    x, y, sets, a = rng.normal(size=(5, 300)), rng.integers(0, 2, 300), rng.integers(0, 4, 300), rng.normal(size=300)
    gate = Gate(rng.normal(size=(5, 2)), np.array([3.0, 9.0]), np.zeros((4, 2)), np.zeros((4, 2)))
    gate = Gate(*(v.astype(np.float32) for v in gate))
    place = np.repeat(np.arange(60), 5)
    out, after = read_gate(gate, x.astype(np.float32), a, sets, y, blocks_of(place)[:260])
    D, H, z = np.zeros((4, 2)), np.zeros((4, 2)), np.clip(x.T @ gate.U, -8, 8)
    exact = np.zeros((4, 2))  # sums of implicit steps by bisection, of which three steps of Newton's method are within 1e-4
    for start, end in ((0, 65), (65, 130), (130, 195), (195, 260), (260, 300)):  # a token begins at 0, 65, 130, 195, 260
        dD, dH = np.zeros_like(D), np.zeros_like(H)
        for i in range(start, end):
            o = np.clip(a[i] + D[sets[i]] @ z[i], -9.5, 9.5)
            np.testing.assert_allclose(out[i], o, atol=1e-5)  # float32
            rate, p = z[i] / (H[sets[i]] + gate.ridge), 1 / (1 + np.exp(-o))
            low, high, d, reach = -50.0, 50.0, 0.0, z[i] @ rate
            for _ in range(3):
                q = 1 / (1 + np.exp(-(o + d)))
                d -= (d - reach * (y[i] - q)) / (1 + reach * q * (1 - q))
            for _ in range(80):
                m = (low + high) / 2
                low, high = (m, high) if m < reach * (y[i] - 1 / (1 + np.exp(-(o + m)))) else (low, m)
            dD[sets[i]] += (y[i] - 1 / (1 + np.exp(-(o + d)))) * rate
            exact[sets[i]] += (y[i] - 1 / (1 + np.exp(-(o + low)))) * rate * (end <= 260)
            dH[sets[i]] += p * (1 - p) * z[i] ** 2
        if end <= 260:
            D, H = D + dD, H + dH
    np.testing.assert_allclose(after.D, D, atol=1e-5)
    np.testing.assert_allclose(after.D, exact, atol=1e-4)
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
