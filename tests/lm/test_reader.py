"""Tables of all kinds read at many positions, on 1, 2 and 8 devices, against a loop over positions.

Tolerances: a logit is a sum of five products of order 10, and its log softmax adds a sum over N; rounding stays below some 100
eps of that: 1e-12 in float64, 1e-5 in float32. Means over positions round less, but a reduction over devices adds float32 sums:
1e-6 of a loss of order 1 and of second moments of order 3.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_linear as log_linear_loop

from jexplicit.lm.fits.mixtures.calibration import fit_exponents
from jexplicit.lm.tables import placing, reader, storage
from jexplicit.lm.tables.moments import moments_of, place_rows, position_slopes
from jexplicit.lm.tables.placing import Positions, place, prepare, prune_rows
from jexplicit.lm.tables.reader import add_compensated, log_probabilities
from jexplicit.lm.tables.storage import Dense, Gathered, Sparse, SparseRows, ranges, sparse_row
from jexplicit.runs.devices import data_mesh

pytestmark = pytest.mark.slow

N, M = 70, 150
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
MEANS = {np.float64: 1e-12, np.float32: 1e-6}
EXPONENTS = np.array([0.7, -0.3, 1.1])
ALL = ("dense", "classes", "short", "long", "none")


def sparse_rows(table, ids=np.int32):
    """The entries of a table that are not 0."""
    r, i = np.nonzero(table)
    return SparseRows(np.searchsorted(r, np.arange(len(table) + 1)), i.astype(ids), table[r, i])


def sparse(table, base=None, ids=np.int32):
    rows = sparse_rows(table, ids)
    return Sparse(rows, table.shape[1], rows.longest, base)


@functools.cache
def problem(dtype=np.float64, positions=M, features=ALL):
    """Tables: a dense one, one by classes of outputs, and sparse ones over a base: with rows of a few entries, of more than two
    segments, and of none. Exponents that positions choose, targets, and the tables as arrays, the last row that of no row."""
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 4, N)
    arrays = {
        "dense": rng.normal(size=(5, N)),
        "classes": rng.normal(size=(6, 4))[:, columns],
        "short": rng.normal(size=(9, N)) * (rng.random((9, N)) < 0.05),
        "long": rng.normal(size=(4, N)) * (np.arange(N) < [[N], [33], [0], [64]]),
        "none": np.zeros((3, N)),
    }
    bases = {name: rng.normal(size=N).astype(dtype) for name in ("long", "none")} | {"short": None}
    tables, whole, rows = [], [], []
    for name in features:
        array, base = arrays[name].astype(dtype), bases.get(name)
        if name == "dense":
            tables.append(Dense(jnp.asarray(array)))
        elif name == "classes":
            tables.append(Gathered(jnp.asarray(array[:, np.unique(columns, return_index=True)[1]]), jnp.asarray(columns)))
        else:
            tables.append(sparse(array, base, {"short": np.uint8, "long": np.uint16}.get(name, np.int32)))
            array = np.concatenate([array, np.zeros((1, N), dtype)]) + (0 if base is None else base)
        whole.append(array.astype(np.float64))
        rows.append(rng.integers(-1 if name in bases else 0, len(arrays[name]), positions))
    read = Positions(np.stack(rows, axis=1), rng.integers(0, 3, (positions, len(features))))
    return tuple(tables), read, rng.integers(0, N, positions), whole


def by_loop(whole, read, Y, a=EXPONENTS):
    """log p of every position, one after the other in float64."""
    rows = np.where(read.rows < 0, [len(table) - 1 for table in whole], read.rows)
    return np.asarray(log_linear_loop(whole, a, rows, read.exponents))[np.arange(len(Y)), Y]


def agree(found, expected, atol):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "devices, dtype, features",
    [
        *((devices, dtype, ALL) for devices, dtype in ((1, np.float64), (8, np.float64), (2, np.float32))),
        *((2, np.float64, features) for features in (("dense", "short"), ("short", "none", "dense"), ("classes", "long"))),
    ],
)
def test_log_probabilities_are_those_of_a_loop(devices, dtype, features):
    tables, read, Y, whole = problem(dtype, features=features)
    found = log_probabilities(tables, EXPONENTS, read, Y, data_mesh(devices))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, by_loop(whole, read, Y), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("positions, features", [(1, ("dense", "short")), (3, ("dense",)), (9, ("dense", "none"))])
def test_few_positions_and_devices_without_any(positions, features):
    tables, read, Y, whole = problem(positions=positions, features=features)
    found = log_probabilities(tables, EXPONENTS, read, Y, data_mesh(8))
    np.testing.assert_allclose(found, by_loop(whole, read, Y), rtol=0, atol=1e-12)
    one, many = (moments_of(tables, read, Y, 3, data_mesh(n))(EXPONENTS) for n in (1, 8))
    agree(many, one, 1e-12)


def test_two_rows_are_weighed_as_worked_by_hand():
    tables = [jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.1, 0.9], [0.8, 0.2]]))]
    read = Positions(np.array([[0, 1], [0, 1]]), np.array([[0, 1], [0, 1]]))
    log_p = log_probabilities(tables, np.array([1.0, 0.5]), read, np.array([0, 1]))
    np.testing.assert_allclose(np.exp(log_p), [2 / 3, 1 / 3], rtol=1e-14)  # roots of 0.8 and 0.2 are 2 to 1


def test_without_exponents_every_output_is_as_likely():
    tables, read, Y, _ = problem()
    np.testing.assert_allclose(log_probabilities(tables, np.zeros(3), read, Y), -np.log(N), rtol=1e-14)


def test_probabilities_of_all_outputs_sum_to_one_and_no_constant_of_a_row_changes_them():
    tables, read, _, whole = problem()
    every = read.take(np.repeat(np.arange(20), N))
    log_p = log_probabilities(tables, EXPONENTS, every, np.tile(np.arange(N), 20))
    np.testing.assert_allclose(np.exp(log_p).reshape(20, N).sum(axis=1), 1, rtol=1e-12)
    shifted = (Dense(jnp.asarray(whole[0] + np.arange(5)[:, None])), *tables[1:])
    found = log_probabilities(shifted, EXPONENTS, every, np.tile(np.arange(N), 20))
    np.testing.assert_allclose(found, log_p, rtol=0, atol=1e-12)


def test_positions_are_read_on_their_own_whatever_block_they_are_in():
    tables, read, Y, _ = problem()
    log_p = log_probabilities(tables, EXPONENTS, read, Y)
    order = np.random.default_rng(5).permutation(M)[:77]
    found = log_probabilities(tables, EXPONENTS, read.take(order), Y[order])
    np.testing.assert_allclose(found, log_p[order], rtol=0, atol=1e-13)


@pytest.mark.parametrize("cells, width, long", [(N, 1, 1), (4 * N, 3, 16), (64 * N, 128, 1e9)])
def test_neither_blocks_nor_segments_nor_long_rows_change_the_result(cells, width, long, monkeypatch):
    """Rows are long with more than one entry for so many outputs: none, some, or all."""
    tables, read, Y, _ = problem()
    whole, moments = log_probabilities(tables, EXPONENTS, read, Y), moments_of(tables, read, Y, 3)(EXPONENTS)
    for name, value in {"_cells": cells, "WIDTH": width, "_long": long}.items():
        monkeypatch.setattr(placing, name, value)
    monkeypatch.setattr(reader, "WIDTH", width)
    for function in (reader.compiled_map, reader.compiled_sums):
        function.cache_clear()
    np.testing.assert_allclose(log_probabilities(tables, EXPONENTS, read, Y, data_mesh(2)), whole, rtol=0, atol=1e-12)
    agree(moments_of(tables, read, Y, 3, data_mesh(2))(EXPONENTS), moments, 1e-12)
    for function in (reader.compiled_map, reader.compiled_sums):
        function.cache_clear()


def test_long_rows_are_held_dense_up_to_some_bytes(monkeypatch):
    tables, *_ = problem()
    monkeypatch.setattr(placing, "_long", 2)
    prepared = prepare(tables, N, data_mesh(1))
    assert [list(table.long) for table in prepared.tables[2:]] == [[], [0, 3], []]
    monkeypatch.setattr(placing, "_most_bytes", 8 * N)
    assert [list(table.long) for table in prepare(tables, N, data_mesh(1)).tables[2:]] == [[], [0], []]  # the longest


@pytest.mark.parametrize("devices, dtype, long", [(1, np.float64, 16), (2, np.float32, 10**9)])
def test_tables_in_the_memory_of_an_accelerator_are_read_there(devices, dtype, long, elsewhere, monkeypatch):
    """By the code of an accelerator, with rows of entries and rows with their zeros, and some rows alone."""
    tables, read, Y, whole = problem(dtype)
    there = tuple(jax.tree.map(jnp.asarray, table) for table in tables)
    monkeypatch.setattr(placing, "_long", long)
    monkeypatch.setattr(storage, "on_accelerator", lambda: True)
    found = elsewhere(log_probabilities, there, EXPONENTS, read, Y, data_mesh(devices))
    np.testing.assert_allclose(found, by_loop(whole, read, Y), rtol=0, atol=TOLERANCE[dtype])
    few, own = prune_rows(there, read.take(np.arange(0, M, 3)))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves([table.rows for table in few[:2]]))
    assert all(isinstance(x, jax.Array) for table in few[2:] for x in (table.rows.outputs, table.rows.values))
    found = elsewhere(log_probabilities, few, EXPONENTS, own, Y[::3], data_mesh(devices))
    np.testing.assert_allclose(found, by_loop(whole, read, Y)[::3], rtol=0, atol=TOLERANCE[dtype])


def test_every_position_has_a_place_of_its_own_and_every_entry_is_read_once(monkeypatch):
    monkeypatch.setattr(placing, "_cells", 16 * N)
    monkeypatch.setattr(placing, "_long", 1)
    tables, read, Y, _ = problem()
    placed = place(prepare(tables, N, data_mesh(8)), read, Y, data_mesh(8), summed=True)
    assert len(set(placed.order.tolist())) == M and placed.blocks.y.shape[1] == 16
    y = np.asarray(placed.blocks.y).ravel()
    np.testing.assert_array_equal(y[placed.order], Y)
    entries = sum(int(np.diff(table.rows.start)[r[r >= 0]].sum()) for table, r in zip(tables[2:], read.rows.T[2:], strict=True))
    assert int(np.asarray(placed.shared.length).sum()) == entries


def test_tables_of_only_the_rows_that_are_read_are_read_alike():
    tables, read, Y, whole = problem(positions=12)
    few, fewer = prune_rows(tables, read)
    for table, r in zip(few, read.rows.T, strict=True):
        rows = len(table.rows.start) - 1 if isinstance(table, Sparse) else len(table.rows)
        assert rows == len(set(r.tolist()) - {-1})
    assert np.any(read.rows != fewer.rows)  # they are numbered anew
    found = log_probabilities(few, EXPONENTS, fewer, Y)
    np.testing.assert_allclose(found, by_loop(whole, read, Y), rtol=0, atol=1e-12)


def test_the_curvature_of_every_third_position_is_that_of_these_alone():
    tables, read, Y, _ = problem()
    every, some = moments_of(tables, read, Y, 3)(EXPONENTS), slice(None, None, 3)
    found = moments_of(tables, read, Y, 3, data_mesh(2), most_of_hessian=M // 3)(EXPONENTS)
    alone = moments_of(tables, read.take(some), Y[some], 3)(EXPONENTS)
    assert np.abs(alone.hessian - every.hessian).max() > 1e-3
    agree(found, (every.loss, every.gradient, alone.hessian), 1e-12)


@pytest.mark.parametrize("devices, dtype", [(1, np.float64), (8, np.float64), (2, np.float32)])
def test_moments_are_the_derivatives_of_the_loss(devices, dtype):
    tables, read, Y, whole = problem(dtype)
    W = np.stack([table[read.rows[:, g]] for g, table in enumerate(whole)], axis=1)  # row -1 is the last one

    def log_p(a):
        return jax.nn.log_softmax(jnp.einsum("mg,mgn->mn", a[read.exponents], W), axis=1)[np.arange(M), Y]

    def loss(a):
        return -jnp.mean(log_p(a))

    expected = jax.jit(lambda a: (loss(a), jax.grad(loss)(a), jax.hessian(loss)(a)))(EXPONENTS)
    agree(moments_of(tables, read, Y, 3, data_mesh(devices))(EXPONENTS), expected, MEANS[dtype])
    found, slopes, means = position_slopes(place_rows(tables, read, Y, 3, data_mesh(devices)), EXPONENTS)
    np.testing.assert_allclose(found, log_p(EXPONENTS), rtol=0, atol=TOLERANCE[dtype])
    summed = np.zeros((M, 3))
    np.add.at(summed, (np.arange(M)[:, None], read.exponents), slopes)
    np.testing.assert_allclose(summed, jax.jacobian(log_p)(EXPONENTS), rtol=0, atol=TOLERANCE[dtype])
    p = jax.nn.softmax(jnp.einsum("mg,mgn->mn", EXPONENTS[read.exponents], W), axis=1)
    np.testing.assert_allclose(means, jnp.einsum("mgn,mn->mg", W, p), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("devices, dtype", [(8, np.float64), (2, np.float32)])
def test_exponents_are_those_fitted_on_one_device(devices, dtype):
    tables, read, Y, _ = problem(dtype)
    fits = [fit_exponents(tables, read, Y, EXPONENTS, mesh=data_mesh(n), ridge=0.01, tolerance=1e-5) for n in (devices, 1)]
    assert fits[0].passes == fits[1].passes
    # the difference of two gradients over the smallest curvature, at least the penalty
    np.testing.assert_allclose(fits[0].exponents, fits[1].exponents, rtol=0, atol=2 * MEANS[dtype] / 0.01)
    assert fits[0].loss == pytest.approx(fits[1].loss, abs=MEANS[dtype])


def test_a_long_sum_in_float32_does_not_lose_what_it_adds():
    """4096 blocks of a loss near 1: added up plainly in float32 they would be off by 1e-5 or more."""
    more = (1 + np.random.default_rng(0).random((4096, 3))).astype(np.float32)
    total = rest = jnp.zeros(3, jnp.float32)
    (total, rest), _ = jax.lax.scan(lambda sums, x: (add_compensated(*sums, x), None), (total, rest), jnp.asarray(more))
    exact = more.astype(np.float64).sum(axis=0)
    assert np.all(np.asarray(total) != exact)
    np.testing.assert_allclose(np.asarray(total, np.float64) + np.asarray(rest, np.float64), exact, rtol=1e-12)


# Single rows and entries


@pytest.mark.parametrize("ids", [np.uint8, np.uint16, np.int32])
def test_a_row_is_read_with_its_zeros_alone_and_many_at_once(ids):
    rng = np.random.default_rng(8)
    table = rng.normal(size=(6, 7)) * (rng.random((6, 7)) < 0.4)
    table[2] = 0
    rows = sparse_rows(table, ids)
    r, expected = np.arange(-1, 6), np.concatenate([np.zeros((1, 7)), table])
    for n, row in zip(r, expected, strict=True):
        np.testing.assert_array_equal(sparse_row(rows, jnp.asarray(n), 7, rows.longest), row)
    np.testing.assert_array_equal(jax.jit(jax.vmap(sparse(table, None, ids).row))(jnp.asarray(r)), expected)
    # the entries read beyond a row's own are dropped, however many
    np.testing.assert_array_equal(sparse_row(rows, jnp.asarray(5), 7, 21), table[5])


def test_an_entry_is_that_of_its_row():
    tables, _, _, whole = problem()
    for table, array in zip(tables, whole, strict=True):
        r, i = (ids.ravel() for ids in np.mgrid[: len(array) - 1, :N])
        found = jax.jit(jax.vmap(table.entry))(jnp.asarray(r), jnp.asarray(i))
        np.testing.assert_array_equal(found, array[r, i])


def test_sparse_rows_know_their_sizes():
    assert sparse_rows(np.eye(4)[:, [0, 0, 1]]).longest == 2
    assert sparse_rows(np.zeros((3, N))).longest == 1  # so that a row can always be read
    assert sparse_rows(np.eye(3, dtype=np.float32)).nbytes == 4 * 8 + 3 * 4 + 3 * 4


def test_ranges_are_those_of_python_one_after_the_other():
    rng = np.random.default_rng(6)
    first = rng.integers(0, 50, 30)
    last = first + rng.integers(0, 4, 30)
    assert np.any(first == last)  # an empty one among them
    assert ranges(first, last).tolist() == [i for a, b in zip(first, last, strict=True) for i in range(a, b)]
    assert ranges(first[:0], last[:0]).tolist() == []
