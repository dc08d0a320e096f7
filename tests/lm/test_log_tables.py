"""Rows of dense and sparse log tables, weighed by exponents.

Tolerances: a logit is a sum of at most six products of order 10, and its log softmax adds a sum over N; rounding stays below
some 100 eps of the logits: 1e-12 in float64, 1e-4 in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_linear as log_linear_loop

from jexplicit.lm.rows import log_tables as log_tables_module
from jexplicit.lm.rows.log_tables import (
    Gathered,
    LogTables,
    Positions,
    SparseRows,
    SplitRows,
    blocks,
    feature_rows,
    log_probabilities,
    mixed_logits,
    ranges,
    sparse_row,
    split_rows,
    summed_logits,
)
from jexplicit.lm.rows.table_parts import dense_where_full, only_read, select
from jexplicit.lm.rows.threads import map_in_threads

N, M = 7, 150  # outputs; positions, more than two blocks
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-4}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def sparse_rows(table):
    """The entries of a table that are not 0."""
    r, i = np.nonzero(table)
    return SparseRows(np.searchsorted(r, np.arange(len(table) + 1)), i.astype(np.int32), table[r, i])


def random_table(rng, rows, share=1.0, outputs=N):
    return rng.normal(size=(rows, outputs)) * 3 * (rng.random((rows, outputs)) < share)


def random_model(seed=0, positions=M):
    """Two dense tables, one of them read twice, and two sparse ones; five features share three exponents."""
    rng = np.random.default_rng(seed)
    first, second = random_table(rng, 4), random_table(rng, 5)
    tables = [first, second, second, random_table(rng, 6, 0.3), random_table(rng, 3, 0.2)]
    rows = np.stack([rng.integers(0 if g < 3 else -1, len(table), positions) for g, table in enumerate(tables)], axis=1)
    which = rng.integers(0, 3, rows.shape)
    return tables, np.array([0.7, -0.3, 1.1]), Positions(rows, which), rng.integers(0, N, positions)


def as_log_tables(tables, dense, dtype=np.float64):
    return LogTables(
        tuple(jnp.asarray(table, dtype) for table in tables[:dense]),
        tuple(sparse_rows(table.astype(dtype)) for table in tables[dense:]),
    )


def at(log_p, Y):
    return log_p[np.arange(len(Y)), Y]


@DTYPES
def test_log_probabilities_equal_their_loop(dtype):
    tables, exponents, positions, Y = random_model()
    assert np.any(positions.rows == -1)
    log_p = log_probabilities(as_log_tables(tables, 3, dtype), exponents, positions, Y)
    assert log_p.dtype == dtype
    expected = at(log_linear_loop(tables, exponents, *positions), Y)
    np.testing.assert_allclose(log_p, expected, rtol=0, atol=TOLERANCE[dtype])


def test_two_rows_are_weighed_as_worked_by_hand():
    tables = LogTables((jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.1, 0.9], [0.8, 0.2]]))))
    positions = Positions(np.array([[0, 1], [0, 1]]), np.array([[0, 1], [0, 1]]))
    log_p = log_probabilities(tables, np.array([1.0, 0.5]), positions, np.array([0, 1]))
    np.testing.assert_allclose(np.exp(log_p), [2 / 3, 1 / 3], rtol=1e-14)  # roots of 0.8 and 0.2 are 2 to 1


def test_without_exponents_every_output_is_as_likely():
    tables, _, positions, Y = random_model()
    log_p = log_probabilities(as_log_tables(tables, 3), np.zeros(3), positions, Y)
    np.testing.assert_allclose(log_p, -np.log(N), rtol=1e-14)


def test_a_table_of_log_probabilities_with_exponent_1_is_read_as_it_is():
    P = np.random.default_rng(1).dirichlet(np.ones(N), 4)
    rows, Y = np.random.default_rng(2).integers(0, [[4, N]], (M, 2)).T
    log_p = log_probabilities(LogTables((jnp.log(P),)), np.ones(1), Positions(rows[:, None], np.zeros((M, 1), int)), Y)
    np.testing.assert_allclose(log_p, np.log(P[rows, Y]), rtol=0, atol=1e-13)


def test_a_sparse_table_equals_the_same_table_dense():
    tables, exponents, positions, Y = random_model()
    tables = [*tables[:3], *(np.concatenate([table, np.zeros((1, N))]) for table in tables[3:])]
    none = [len(table) - 1 for table in tables]  # the row of zeros, in the place of -1
    dense = Positions(np.where(positions.rows < 0, none, positions.rows), positions.exponents)
    np.testing.assert_allclose(
        log_probabilities(as_log_tables(tables, 3), exponents, positions, Y),
        log_probabilities(as_log_tables(tables, 5), exponents, dense, Y),
        rtol=0,
        atol=1e-13,
    )


@DTYPES
def test_bases_are_added_to_every_row_of_a_sparse_table(dtype):
    tables, exponents, positions, Y = random_model()
    bases = np.random.default_rng(7).normal(size=(2, N))
    read = Positions(np.maximum(positions.rows, 0), positions.exponents)  # where there is no row, nothing is added
    log_p = log_probabilities(as_log_tables(tables, 3, dtype)._replace(bases=jnp.asarray(bases, dtype)), exponents, read, Y)
    assert log_p.dtype == dtype
    over = [*tables[:3], *(table + base for table, base in zip(tables[3:], bases, strict=True))]
    expected = at(log_linear_loop(over, exponents, *read), Y)
    np.testing.assert_allclose(log_p, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("columns", [[0, 3], [4, 0], [1, 3, 4], [0, 1, 2, 3, 4]])
def test_some_of_the_tables_are_a_model_of_their_own(columns):
    tables, exponents, positions, Y = random_model()
    bases = np.random.default_rng(7).normal(size=(2, N))
    positions = Positions(np.maximum(positions.rows, 0), positions.exponents)
    log_tables = as_log_tables(tables, 3)._replace(bases=jnp.asarray(bases))
    over = [*tables[:3], *(table + base for table, base in zip(tables[3:], bases, strict=True))]
    expected = at(
        log_linear_loop([over[c] for c in sorted(columns)], exponents, *(part[:, sorted(columns)] for part in positions)), Y
    )
    some, read = select(log_tables, positions, columns)
    np.testing.assert_allclose(log_probabilities(some, exponents, read, Y), expected, rtol=0, atol=TOLERANCE[np.float64])


@pytest.mark.parametrize("ids", [np.uint8, np.uint16, np.int32])
def test_a_row_is_read_with_its_zeros_alone_and_many_at_once(ids):
    table = random_table(np.random.default_rng(8), 6, 0.4)
    table[2] = 0
    rows = sparse_rows(table)._replace(outputs=np.nonzero(table)[1].astype(ids))
    r, expected = np.arange(-1, 6), np.concatenate([np.zeros((1, N)), table])
    for n, row in zip(r, expected, strict=True):
        np.testing.assert_array_equal(sparse_row(rows, jnp.asarray(n), N, rows.longest), row)
    every = jax.jit(jax.vmap(lambda n: sparse_row(rows, n, N, rows.longest)))(jnp.asarray(r))
    np.testing.assert_array_equal(every, expected)
    # the entries read beyond a row's own are dropped, however many
    np.testing.assert_array_equal(sparse_row(rows, jnp.asarray(5), N, 3 * N), table[5])


def test_the_longest_row_is_at_least_one_entry_long():
    assert sparse_rows(np.eye(4)[:, [0, 0, 1]]).longest == 2
    assert sparse_rows(np.zeros((3, N))).longest == 1


def test_a_block_may_read_more_entries_than_its_smallest_size():
    rng = np.random.default_rng(3)
    tables = [random_table(rng, 1, outputs=100), random_table(rng, 8, outputs=100)]  # 64 positions read 6400 entries
    positions = Positions(np.stack([np.zeros(M, int), rng.integers(-1, 8, M)], axis=1), np.tile([0, 1], (M, 1)))
    Y, exponents = rng.integers(0, 100, M), np.array([0.5, 0.9])
    expected = at(log_linear_loop(tables, exponents, *positions), Y)
    np.testing.assert_allclose(
        log_probabilities(as_log_tables(tables, 1), exponents, positions, Y), expected, rtol=0, atol=1e-12
    )


def test_adding_a_constant_to_dense_rows_changes_nothing():
    tables, exponents, positions, Y = random_model()
    log_p = log_probabilities(as_log_tables(tables, 3), exponents, positions, Y)
    shifted = [table + np.arange(len(table))[:, None] * (g < 3) for g, table in enumerate(tables)]
    np.testing.assert_allclose(log_probabilities(as_log_tables(shifted, 3), exponents, positions, Y), log_p, rtol=0, atol=1e-12)


def test_a_table_read_twice_is_weighed_by_the_sum_of_its_exponents():
    tables, _, positions, Y = random_model()
    twice = Positions(positions.rows[:, [0, 0]], np.tile([0, 1], (M, 1)))
    once = Positions(positions.rows[:, :1], np.zeros((M, 1), int))
    table = jnp.asarray(tables[0])
    np.testing.assert_allclose(
        log_probabilities(LogTables((table, table)), np.array([0.7, 0.6]), twice, Y),
        log_probabilities(LogTables((table,)), np.array([1.3]), once, Y),
        rtol=0,
        atol=1e-13,
    )


def test_renaming_outputs_changes_nothing():
    tables, exponents, positions, Y = random_model()
    order = np.random.default_rng(4).permutation(N)
    renamed = [table[:, order] for table in tables]
    np.testing.assert_allclose(
        log_probabilities(as_log_tables(renamed, 3), exponents, positions, np.argsort(order)[Y]),
        log_probabilities(as_log_tables(tables, 3), exponents, positions, Y),
        rtol=0,
        atol=1e-13,
    )


def test_positions_are_read_on_their_own_whatever_block_they_are_in():
    tables, exponents, positions, Y = random_model()
    log_tables = as_log_tables(tables, 3)
    log_p = log_probabilities(log_tables, exponents, positions, Y)
    order = np.random.default_rng(5).permutation(M)[:77]
    np.testing.assert_array_equal(log_probabilities(log_tables, exponents, positions.take(order), Y[order]), log_p[order])


def test_probabilities_of_all_outputs_sum_to_one():
    tables, exponents, positions, _ = random_model(positions=20)
    every = positions.take(np.repeat(np.arange(20), N))
    log_p = log_probabilities(as_log_tables(tables, 3), exponents, every, np.tile(np.arange(N), 20))
    np.testing.assert_allclose(np.exp(log_p).reshape(20, N).sum(axis=1), 1, rtol=1e-12)


def test_progress_counts_positions_and_ends_with_all(monkeypatch):
    monkeypatch.setattr(log_tables_module, "_cells_of_logits", 64 * N)
    tables, exponents, positions, Y = random_model()
    seen = []
    log_probabilities(as_log_tables(tables, 3), exponents, positions, Y, progress=lambda *done: seen.append(done))
    assert seen == [(64, M), (128, M), (M, M)]


def test_all_blocks_have_one_shape_and_count_every_position_once(monkeypatch):
    tables, exponents, positions, Y = random_model()
    whole = log_probabilities(as_log_tables(tables, 3), exponents, positions, Y)
    assert len(list(blocks(as_log_tables(tables, 3), positions, Y))) == 1  # of few outputs a block has more positions
    monkeypatch.setattr(log_tables_module, "_cells_of_rows", 64 * N * positions.rows.shape[1])
    monkeypatch.setattr(log_tables_module, "_cells_of_logits", 64 * N)
    np.testing.assert_array_equal(log_probabilities(as_log_tables(tables, 3), exponents, positions, Y), whole)
    tables, _, positions, Y = random_model()
    for summed in (None, np.ones(3)):
        every = list(blocks(as_log_tables(tables, 3), positions, Y, summed=summed))
        assert len({tuple(part.shape for part in block) for block in every}) == 1
        assert [block.weight.sum() for block in every] == [64, 64, M - 128]


@DTYPES
@pytest.mark.parametrize("long", [1, 3, N + 1])
def test_long_rows_read_dense_are_the_same_rows(dtype, long, monkeypatch):
    """Of a share of the outputs on: all rows are long, some, or none; positions without a row read zeros."""
    monkeypatch.setattr(log_tables_module, "_long_row", long)
    tables, exponents, positions, Y = random_model()
    bases = jnp.asarray(np.random.default_rng(7).normal(size=(2, N)), dtype)
    plain = as_log_tables(tables, 3, dtype)._replace(bases=bases)
    split = plain._replace(sparse=tuple(split_rows(table, N) for table in plain.sparse if isinstance(table, SparseRows)))
    kinds = {type(table) for table in split.sparse}
    assert kinds == ({SparseRows} if long == 1 else {SplitRows})  # no row has more than all outputs
    rows = [len(table.long) for table in split.sparse if isinstance(table, SplitRows)]
    assert long == 1 or (0 < rows[0] < 6 if long == 3 else True)
    expected = log_probabilities(plain, exponents, positions, Y)
    np.testing.assert_allclose(log_probabilities(split, exponents, positions, Y), expected, rtol=0, atol=TOLERANCE[dtype])
    a = jnp.asarray(exponents, dtype)
    (one,), (other,) = (list(blocks(tables, positions, Y)) for tables in (plain, split))
    (summed,) = blocks(split, positions, Y, summed=np.asarray(a))
    W = feature_rows(split.arrays, other)
    np.testing.assert_allclose(W[:M], feature_rows(plain.arrays, one)[:M], rtol=0, atol=TOLERANCE[dtype])
    logits = summed_logits(split.arrays, a, summed)
    np.testing.assert_allclose(logits[:M], mixed_logits(W, a, other)[:M], rtol=0, atol=TOLERANCE[dtype])


def test_an_error_in_a_thread_reaches_the_caller_and_order_is_kept():
    assert list(map_in_threads(lambda n: n * n, range(50))) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(lambda n: 1 // (n - 20), range(50)))


@pytest.mark.parametrize("features", [4, 6])
def test_a_number_of_features_other_than_of_tables_is_refused(features):
    tables, exponents, positions, Y = random_model()
    wrong = Positions(*(np.resize(part, (M, features)) for part in positions))
    with pytest.raises(ValueError, match=f"positions of {features} features, and 3 dense and 2 sparse tables"):
        log_probabilities(as_log_tables(tables, 3), exponents, wrong, Y)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_a_dense_table_does_not_have_is_refused(row):
    tables, exponents, positions, Y = random_model()
    positions.rows[100, 0] = row
    with pytest.raises(ValueError, match=f"row {row} of a dense table of 4 rows"):
        log_probabilities(as_log_tables(tables, 3), exponents, positions, Y)


@pytest.mark.parametrize("exponent", [-1, 3])
def test_an_exponent_that_is_not_there_is_refused(exponent):
    tables, exponents, positions, Y = random_model()
    positions.exponents[100, 0] = exponent
    with pytest.raises(ValueError, match=f"exponent {exponent} of 3"):
        log_probabilities(as_log_tables(tables, 3), exponents, positions, Y)


def test_ranges_are_those_of_python_one_after_the_other():
    rng = np.random.default_rng(6)
    first = rng.integers(0, 50, 30)
    last = first + rng.integers(0, 4, 30)
    assert np.any(first == last)  # an empty one among them
    assert ranges(first, last).tolist() == [i for a, b in zip(first, last, strict=True) for i in range(a, b)]


def test_no_ranges_are_an_empty_one():
    none = np.zeros(0, np.int64)
    assert ranges(none, none).tolist() == []


def test_the_size_of_sparse_rows_is_that_of_their_arrays():
    rows = sparse_rows(np.eye(3, dtype=np.float32))
    assert rows.nbytes == 4 * 8 + 3 * 4 + 3 * 4


@pytest.mark.parametrize("split", [False, True])
def test_tables_of_only_the_rows_that_are_read_are_read_alike(split, monkeypatch):
    monkeypatch.setattr(log_tables_module, "_long_row", 3)
    tables, exponents, positions, Y = random_model(positions=12)
    whole = as_log_tables(tables, 3)._replace(bases=jnp.asarray(np.random.default_rng(7).normal(size=(2, N))))
    columns = jnp.asarray([0, 1, 1, 0, 2, 2, 0])
    whole = whole._replace(dense=(whole.dense[0], Gathered(whole.dense[1][:, :3], columns), whole.dense[2]))
    if split:
        whole = whole._replace(sparse=tuple(split_rows(table, N) for table in whole.sparse if isinstance(table, SparseRows)))
    few, read = only_read(whole, positions)
    for g, table in enumerate((*few.dense, *(t.entries if isinstance(t, SplitRows) else t for t in few.sparse))):
        rows = len(table.start) - 1 if isinstance(table, SparseRows) else len(table)
        assert rows == len(set(positions.rows[:, g].tolist()) - {-1}) <= len(tables[g])
    expected = log_probabilities(whole, exponents, positions, Y)
    np.testing.assert_allclose(log_probabilities(few, exponents, read, Y), expected, rtol=0, atol=1e-13)
    assert np.any(positions.rows != read.rows)  # they are numbered anew
    some_full = dense_where_full(few, read)
    np.testing.assert_allclose(log_probabilities(some_full[0], exponents, some_full[1], Y), expected, rtol=0, atol=1e-13)
    monkeypatch.setattr(log_tables_module, "_long_row", N)  # a single entry makes a table full
    all_full = dense_where_full(few, read)
    assert not all_full[0].sparse
    np.testing.assert_allclose(log_probabilities(all_full[0], exponents, all_full[1], Y), expected, rtol=0, atol=1e-13)
