"""Positions spread over 1, 2 and 8 devices: moments, fits and log-probabilities are those of one CPU.

Tolerances: sums of the same numbers in another order, in float64 right to 1e-12. In float32 a log-probability is right to 1e-5,
as the logits of order 10 are; means over positions round less, but the reduction over 8 devices adds float32 sums: 1e-6 of a
loss of order 1, and of second moments of order 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_linear as log_linear_loop

from jexplicit.lm.fits import moments as moments_module
from jexplicit.lm.fits.calibration import fit_exponents
from jexplicit.lm.fits.moments import moments_of
from jexplicit.lm.rows import device_tables
from jexplicit.lm.rows.device_tables import log_probabilities, place_positions
from jexplicit.lm.rows.log_tables import Gathered, LogTables, Positions, SparseRows, split_rows
from jexplicit.lm.rows.log_tables import log_probabilities as one_cpu
from jexplicit.runs.devices import data_mesh, spreads

N, M = 70, 150
DEVICES = pytest.mark.parametrize("devices", [1, 2, 8])
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}
MEANS = {np.float64: 1e-12, np.float32: 1e-6}


@pytest.fixture(autouse=True)
def on_one_device_too(monkeypatch):
    """A mesh of one CPU device is read as those of accelerators are."""
    monkeypatch.setattr(moments_module, "spreads", lambda mesh: mesh is not None)


def sparse(table, ids=np.int32):
    r, i = np.nonzero(table)
    return SparseRows(np.searchsorted(r, np.arange(len(table) + 1)), i.astype(ids), table[r, i])


def problem(dtype=np.float64, positions=M, features=("dense", "few columns", "short", "long", "none")):
    """Dense tables, one of them read by classes of outputs; sparse ones with rows of a few entries, of more than two segments,
    and of none; bases; exponents that positions choose. And the tables as plain arrays."""
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 4, N)
    made = {
        "dense": rng.normal(size=(5, N)),
        "few columns": rng.normal(size=(6, 4))[:, columns],
        "short": rng.normal(size=(9, N)) * (rng.random((9, N)) < 0.05),
        "long": rng.normal(size=(4, N)) * (np.arange(N) < [[N], [33], [0], [64]]),
        "none": np.zeros((3, N)),
    }
    tables = [made[name].astype(dtype) for name in features]
    kinds = {
        "dense": jnp.asarray,
        "few columns": lambda t: Gathered(*map(jnp.asarray, (t[:, np.unique(columns, return_index=True)[1]], columns))),
    }
    dense = tuple(kinds[name](table) for name, table in zip(features, tables, strict=True) if name in kinds)
    ids = {"short": np.uint8, "long": np.uint16}
    entries = [
        sparse(table, ids.get(name, np.int32)) for name, table in zip(features, tables, strict=True) if name not in kinds
    ]
    T, S = len(dense), len(entries)
    bases = rng.normal(size=(S, N)).astype(dtype) if S else None
    rows = np.stack([rng.integers(0 if g < T else -1, len(table), positions) for g, table in enumerate(tables)], axis=1)
    which, Y = rng.integers(0, 3, rows.shape), rng.integers(0, N, positions)
    log_tables = LogTables(dense, tuple(entries), None if bases is None else jnp.asarray(bases))
    over = [
        *tables[:T],
        *(
            np.concatenate([t, np.zeros((1, N), dtype)]) + b
            for t, b in zip(tables[T:], [] if bases is None else bases, strict=True)
        ),
    ]
    return log_tables, Positions(rows, which), Y, np.array([0.7, -0.3, 1.1]), over


def agree(found, expected, atol):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@DEVICES
@DTYPES
def test_moments_are_those_of_one_cpu(devices, dtype):
    tables, positions, Y, a, _ = problem(dtype)
    spread = moments_of(tables, positions, Y, 3, data_mesh(devices))(a)
    agree(spread, moments_of(tables, positions, Y, 3)(a), MEANS[dtype])


@DEVICES
def test_moments_are_the_derivatives_of_the_loss(devices):
    tables, positions, Y, a, over = problem()
    W = np.stack([table[positions.rows[:, g]] for g, table in enumerate(over)], axis=1)  # the last row of a sparse one is base

    def loss(a):
        log_p = jax.nn.log_softmax(jnp.einsum("mg,mgn->mn", a[positions.exponents], W), axis=1)
        return -jnp.mean(log_p[np.arange(M), Y])

    expected = jax.jit(lambda a: (loss(a), jax.grad(loss)(a), jax.hessian(loss)(a)))(a)
    agree(moments_of(tables, positions, Y, 3, data_mesh(devices))(a), expected, 1e-12)


@DEVICES
@DTYPES
def test_log_probabilities_are_those_of_the_loop(devices, dtype):
    tables, positions, Y, a, over = problem(dtype)
    rows = np.where(positions.rows < 0, [len(table) - 1 for table in over], positions.rows)
    found = log_probabilities(tables, a, positions, Y, data_mesh(devices))
    assert found.dtype == dtype
    expected = log_linear_loop(over, a, rows, positions.exponents)
    np.testing.assert_allclose(found, np.asarray(expected)[np.arange(M), Y], rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("positions", [1, 3, 9, 100])
@pytest.mark.parametrize("features", [("dense",), ("dense", "short"), ("dense", "none")])
def test_few_positions_few_tables_and_devices_without_any(positions, features):
    tables, read, Y, a, _ = problem(positions=positions, features=features)
    mesh = data_mesh(8)
    expected = one_cpu(tables, a, read, Y)
    np.testing.assert_allclose(log_probabilities(tables, a, read, Y, mesh), expected, rtol=0, atol=1e-12)
    agree(moments_of(tables, read, Y, 3, mesh)(a), moments_of(tables, read, Y, 3)(a), 1e-12)


@pytest.mark.parametrize("cells, width", [(N, 1), (4 * N, 3), (64 * N, 128)])
def test_neither_blocks_nor_segments_change_the_result(cells, width, monkeypatch):
    tables, positions, Y, a, _ = problem()
    whole = log_probabilities(tables, a, positions, Y, data_mesh(2))
    monkeypatch.setattr(device_tables, "_cells", cells)
    monkeypatch.setattr(device_tables, "_width", width)
    device_tables.compiled_log_probabilities.cache_clear()
    np.testing.assert_allclose(log_probabilities(tables, a, positions, Y, data_mesh(2)), whole, rtol=0, atol=1e-12)
    device_tables.compiled_log_probabilities.cache_clear()


def test_rows_that_are_kept_dense_on_one_cpu_are_read_from_their_entries():
    tables, positions, Y, a, _ = problem()
    split = tables._replace(sparse=tuple(split_rows(rows, N) for rows in tables.sparse if isinstance(rows, SparseRows)))
    assert any(type(one) is not type(other) for one, other in zip(split.sparse, tables.sparse, strict=True))
    expected = log_probabilities(tables, a, positions, Y, data_mesh(2))
    np.testing.assert_array_equal(log_probabilities(split, a, positions, Y, data_mesh(2)), expected)


def test_every_position_has_a_place_of_its_own_and_blocks_hold_what_they_may(monkeypatch):
    monkeypatch.setattr(device_tables, "_cells", 16 * N)
    tables, positions, Y, _, _ = problem()
    placed, slots = place_positions(tables, positions, Y, data_mesh(8), cells=N)
    blocks = placed.blocks
    assert len(set(slots.tolist())) == M and blocks.y.shape[1] == 16
    np.testing.assert_array_equal(np.asarray(blocks.y).ravel()[slots], Y)
    weight = np.asarray(blocks.weight).ravel()
    assert weight.sum() == M and np.all(weight[slots] == 1)
    sparse_rows: Any = zip(tables.sparse, positions.rows.T[2:], strict=True)
    entries = sum(int(np.diff(rows.start)[r[r >= 0]].sum()) for rows, r in sparse_rows)
    assert int(blocks.entries.sum()) == entries


@DEVICES
@DTYPES
def test_exponents_are_those_fitted_on_one_cpu(devices, dtype):
    tables, positions, Y, a, _ = problem(dtype)
    tight: Any = {"ridge": 0.01, "tolerance": 1e-5}
    spread = fit_exponents(tables, positions, Y, a, mesh=data_mesh(devices), **tight)
    alone = fit_exponents(tables, positions, Y, a, **tight)
    assert spread.passes == alone.passes
    # the difference of two gradients over the smallest curvature, at least the penalty
    np.testing.assert_allclose(spread.exponents, alone.exponents, rtol=0, atol=2 * MEANS[dtype] / 0.01)
    assert spread.loss == pytest.approx(alone.loss, abs=MEANS[dtype])


def test_a_long_sum_in_float32_does_not_lose_what_it_adds():
    """4096 blocks of a loss near 1: added up plainly in float32 they would be off by 1e-5 or more."""
    rng = np.random.default_rng(0)
    more = (1 + rng.random((4096, 3))).astype(np.float32)
    total = rest = jnp.zeros(3, jnp.float32)
    (total, rest), _ = jax.lax.scan(lambda sums, x: (moments_module._add(*sums, x), None), (total, rest), jnp.asarray(more))
    exact = more.astype(np.float64).sum(axis=0)
    assert np.all(np.asarray(total) != exact)
    np.testing.assert_allclose(np.asarray(total, np.float64) + np.asarray(rest, np.float64), exact, rtol=1e-12)


def test_what_does_not_fit_the_tables_is_refused():
    tables, positions, Y, a, _ = problem()
    mesh = data_mesh(2)
    with pytest.raises(ValueError, match="exponent 2 of 2"):
        log_probabilities(tables, a[:2], positions, Y, mesh)
    with pytest.raises(ValueError, match="positions of 4 features"):
        log_probabilities(tables, a, Positions(positions.rows[:, :4], positions.exponents[:, :4]), Y, mesh)
    positions.rows[7, 0] = 5
    with pytest.raises(ValueError, match="row 5 of a dense table of 5 rows"):
        log_probabilities(tables, a, positions, Y, mesh)


def test_one_cpu_device_shares_its_cores_in_threads():
    assert [spreads(mesh) for mesh in (None, data_mesh(1), data_mesh(2))] == [False, False, True]
