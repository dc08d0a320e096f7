"""Models split by output column: one device, several, and more than there are outputs, against one dense model.

Tolerances: the split changes the order in which the exponentials of a softmax and the rows of a table are
added up; 1e-12 of a loss, 1e-11 nats of a logit are 1000 times what float64 rounds.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from reference import (
    PAD,
    cooccurrences,
    features,
    language_model,
    negative_log_likelihood,
    random_documents,
    stream_of,
    windows,
)
from scipy.sparse import csr_array

from jexplicit.counts.sharded import count_sharded
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.rows import sharded
from jexplicit.lm.rows.explicit import explicit_language_model
from jexplicit.lm.rows.sharded import sharded_language_model
from jexplicit.lm.rows.sparse import sparse_language_model
from jexplicit.runs.devices import AXIS, data_mesh

N, K = 7, 3  # divided by none of the numbers of devices but 1, and fewer than the largest
DOCUMENTS = [[token for token in document if token != 5] or [1] for document in random_documents(2, 40, N, 6)]  # 5: never seen
DEV = random_documents(4, 25, N, 8)
STREAM = stream_of(DOCUMENTS)
EXPECTED = cooccurrences(DOCUMENTS, K, N)


@pytest.fixture(scope="module", params=[1, 3, 8])
def counts(request):
    return count_sharded(STREAM, radius=K, vocab_size=N, mesh=data_mesh(request.param), chunk=64)


def columns(tables, places):
    return [np.asarray(table)[:, places] for table in tables]


def fit(counts, *, dtype: Any = np.float64, **options):
    return sharded_language_model(counts, dtype=dtype, **options)


# Models


@pytest.mark.parametrize("kind, R, eos", [("cat", 1, False), ("sum", 3, True), ("cat", 3, False)])
def test_the_perplexity_of_a_text_equals_the_dense_loop(counts, kind, R, eos):
    E, _, U = language_model(DOCUMENTS, R, N, kind, eos=eos)
    X, Y = windows(DEV, R, eos=eos)
    evaluation = evaluate(fit(counts, features=kind, radius=R, eos=eos), stream_of(DEV))
    assert evaluation.positions == len(Y)
    np.testing.assert_allclose(evaluation.nll, negative_log_likelihood(features(X, E, kind), U, Y), rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_dense_sparse_and_sharded_models_have_one_perplexity(counts, kind):
    stream = stream_of(DEV)
    dense = evaluate(explicit_language_model(tuple(EXPECTED), features=kind, dtype=np.float64), stream)
    sparse = evaluate(sparse_language_model(tuple(csr_array(C) for C in EXPECTED), features=kind, dtype=np.float64), stream)
    split = evaluate(fit(counts, features=kind), stream)
    np.testing.assert_allclose([sparse.perplexity, split.perplexity], dense.perplexity, rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_tables_are_the_columns_of_the_dense_ones(counts, kind):
    model = fit(counts, features=kind)
    dense = explicit_language_model(tuple(EXPECTED), features=kind, dtype=np.float64)
    for table, other in zip(columns(model.rows[0].by_offset, model.rows[0].places), dense.tables, strict=True):
        np.testing.assert_allclose(table, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["sum", "cat"])
def test_gathered_tables_and_single_logits_are_those_of_the_dense_model(counts, kind):
    model = fit(counts, features=kind)
    dense = explicit_language_model(tuple(EXPECTED), features=kind, dtype=np.float64)
    gathered = model.rows[0].gathered()
    assert gathered.table_of_offset == dense.rows[0].table_of_offset
    for table, other in zip(gathered.by_offset, dense.tables, strict=True):
        np.testing.assert_allclose(table, other, rtol=0, atol=1e-11)
    for x in ([0, 0, 0], [5, 1, 0], [1, 2, 3]):
        context = jnp.array(x)
        np.testing.assert_allclose(model.logits(context), dense.logits(context), rtol=0, atol=1e-11)


def test_an_accelerator_s_larger_blocks_change_no_log_partition(counts, elsewhere):
    """Rows are apart from each other, so that blocks change nothing but the rounding of a vectorised exponential."""
    rows, X = fit(counts, features="cat").rows[0], windows(DEV, K)[0]
    np.testing.assert_allclose(elsewhere(rows.log_partition, X), rows.log_partition(X), rtol=1e-12)


def test_a_model_stays_where_its_counts_are(counts):
    model = fit(counts, features="cat")
    share = counts.tables[0].shape[1] // counts.mesh.size
    for table in model.rows[0].by_offset:
        assert [shard.data.shape for shard in table.addressable_shards] == [(N, share)] * counts.mesh.size


def test_a_softmax_exchanges_two_scalars_per_context_and_no_logits():
    mesh, contexts = data_mesh(8), 16
    table = jax.ShapeDtypeStruct((N, 8), np.float64, sharding=jax.NamedSharding(mesh, PartitionSpec(None, AXIS)))
    X = jax.ShapeDtypeStruct((contexts, 2), np.int32)
    program = sharded.compiled_log_partition(mesh).lower((table, table), X).as_text()
    exchanged = [line for line in program.splitlines() if "stablehlo.all_" in line]
    assert len(exchanged) == 2  # the maximum and the sum
    assert "all_gather" not in program


def test_the_size_of_a_call_changes_the_loss_by_rounding_alone(monkeypatch):
    counts = count_sharded(STREAM, radius=2, vocab_size=N, mesh=data_mesh(3), chunk=64)
    model = fit(counts, features="cat")
    expected = evaluate(model, stream_of(DEV)).nll
    monkeypatch.setattr(sharded, "_contexts_per_call", 10)
    monkeypatch.setattr(sharded, "_positions_per_call", 40)
    reports = []
    found = evaluate(model, stream_of(DEV), progress=lambda done, total: reports.append((done, total)))
    assert found.nll == pytest.approx(expected, rel=1e-13)
    assert reports[-1][0] == reports[-1][1]


def test_a_sample_is_that_of_the_dense_evaluation():
    counts = count_sharded(STREAM, radius=2, vocab_size=N, mesh=data_mesh(3), chunk=64)
    dense = explicit_language_model(tuple(EXPECTED), features="cat", radius=2, dtype=np.float64)
    expected = evaluate(dense, stream_of(DEV), sample=20, seed=3)
    found = evaluate(fit(counts, features="cat"), stream_of(DEV), sample=20, seed=3)
    assert found.nll == pytest.approx(expected.nll, rel=1e-12)


def test_float32_models_agree_with_float64_ones():
    counts = count_sharded(STREAM, radius=2, vocab_size=N, mesh=data_mesh(3), chunk=64)
    exact = evaluate(fit(counts, features="cat"), stream_of(DEV))
    model = fit(counts, features="cat", dtype=np.float32)
    assert model.rows[0].tables[0].dtype == np.float32
    np.testing.assert_allclose(evaluate(model, stream_of(DEV)).nll, exact.nll, rtol=1e-5)  # some eps of the logits


def test_a_sum_model_holds_one_table():
    counts = count_sharded(STREAM, radius=2, vocab_size=N, mesh=data_mesh(3), chunk=64)
    sum_model, cat_model = fit(counts, features="sum"), fit(counts, features="cat")
    assert [len(model.rows[0].tables) for model in (sum_model, cat_model)] == [1, 2]
    assert (sum_model.radius, sum_model.vocab_size, sum_model.ordered) == (2, N, False)
    assert (cat_model.radius, cat_model.vocab_size, cat_model.ordered) == (2, N, True)


# Refusals


@pytest.mark.parametrize("radius", [0, 4])
def test_a_radius_that_was_not_counted_is_refused(counts, radius):
    with pytest.raises(ValueError, match=f"radius {radius} with counts of offsets 1..3"):
        fit(counts, features="cat", radius=radius)


def test_unknown_features_are_refused(counts, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    with pytest.raises(ValueError, match="features 'mean': choose sum .* or cat"):
        fit(counts, features="mean")


def test_a_text_without_tokens_is_refused(counts):
    with pytest.raises(ValueError, match="no position to predict"):
        evaluate(fit(counts, features="cat"), np.array([PAD, PAD, PAD]))
