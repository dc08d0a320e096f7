"""launch.networks compare: variants against a plain training loop, what the variants are, and whole runs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_folders import interrupted, made, main, rows, without_costs

from jexplicit.data.images import read_images
from jexplicit.nn.networks import FullyConnected, init_variables, initial_state, network_outputs, network_step, variables_of
from jexplicit.nn.training import epoch_order, objective
from jexplicit.runs.files import read_events
from launch.networks import compare
from launch.networks.compare import Variant, saturate, train_variant, variants_of
from launch.networks.config import CompareConfig, ComparisonName
from launch.networks.training import centred_data

pytestmark = pytest.mark.slow

TINY = "--limit 60 --seeds 2 --width 4 --epochs 2 --depths 1 --rates 0.1"


@pytest.fixture(scope="module")
def data():
    return centred_data(read_images("digits", limit=60))


def test_a_variant_is_a_plain_loop_of_steps(data):
    """Under vmap and scan in float32; 1e-4 after 15 steps."""
    network, rates, seeds = (
        FullyConnected((4,), data.outputs, activation="tanh", norm="layer", dropout=0.2),
        (0.01, 0.3),
        (5, 6),
    )
    variant = Variant("a", network, optimizer="momentum", rates=rates, batch_size=10, epochs=3)
    found = train_variant(variant, data, seeds)
    steps, loss = len(data.train.X) // 10, objective("softmax_cross_entropy")
    losses = np.empty((2, 2))
    X, Y = data.dev
    for n, rate in enumerate(rates):
        for s, seed in enumerate(seeds):
            optimizer = optax.sgd(rate, momentum=0.9)
            variables = init_variables(network, jax.random.key(jnp.uint32(seed)), data.train.X[:2])
            state = initial_state(variables, optimizer)
            step = jax.jit(network_step(network, loss, optimizer, seed=jnp.uint32(seed)))
            for epoch in (1, 2, 3):
                for m in epoch_order(seed, epoch, len(data.train.X))[: steps * 10].reshape(steps, 10):
                    state, _ = step(state, (data.train.X[m], data.train.Y[m]))
            losses[n, s] = loss(network_outputs(network, variables_of(state), jnp.asarray(X)), jnp.asarray(Y)).mean()
    np.testing.assert_allclose(found.rate_losses, losses.mean(axis=1), rtol=1e-4)
    best = int(losses.mean(axis=1).argmin())
    assert found.rate == rates[best] and found.steps == 3 * steps
    np.testing.assert_allclose(found.scores["dev_loss"], losses[best], rtol=1e-4)
    np.testing.assert_allclose(found.curves["dev_loss"][:, -1], losses[best], rtol=1e-4)
    assert found.curves["dev_loss"].shape == (2, 4)


def test_a_rate_that_diverges_is_never_the_best(data):
    network = FullyConnected((4,), data.outputs, activation="linear")
    variant = Variant("a", network, objective="squared_error", rates=(1e6, 0.01), epochs=2)
    found = train_variant(variant, data, (0,))
    assert found.rate == 0.01 and np.isinf(found.rate_losses[0]) and np.isfinite(found.scores["test_loss"]).all()


VARIED = {  # by comparison: what its variants differ in, and what its report has
    "normalisation": (lambda v: (v.network.norm, v.network.residual, len(v.network.hidden)), "| group norm, residual |"),
    "objectives": (lambda v: (v.objective, v.optimizer, v.start), "| softmax cross entropy, "),
    "initializers": (lambda v: (v.network.weights, v.network.weight_scale, v.start), "| scales |"),
}


def test_every_variant_has_a_name_of_its_own_and_a_true_setting(data):
    for what in ComparisonName.__args__:
        varied, _ = VARIED[what]
        variants = [*variants_of(CompareConfig("out", what=what), data.outputs)]
        assert len({variant.name for variant in variants}) == len(variants) >= 3
        assert all(variant.rates and variant.epochs > 0 for variant in variants)
        settings = {varied(variant) for variant in variants}
        assert len(settings) >= len(variants) - (what == "initializers")  # whose factor 1 is the default


def test_saturated_outputs_are_sure_and_wrong(data):
    network = FullyConnected((4,), data.outputs, output_scale=0.1)
    variables = saturate(init_variables(network, jax.random.key(0), data.train.X[:2]))
    a = np.asarray(jax.nn.sigmoid(network_outputs(network, variables, jnp.asarray(data.dev.X))))
    assert (np.minimum(a, 1 - a) < 0.02).mean() > 0.9
    np.testing.assert_array_equal(a.mean(axis=0) > 0.5, np.arange(10) % 2 == 0)


def test_a_comparison_writes_rows_report_and_figures_and_resumes(tmp_path, monkeypatch):
    whole = made(f"networks compare normalisation {TINY}")
    found = rows(whole)
    assert [row["seed"] for row in found] == [0, 1] * 8 and len({row["variant"] for row in found}) == 8
    for row in found:
        assert row["comparison"] == "normalisation" and row["steps"] > 0
        assert all(0 <= row[f"{part}_accuracy"] <= 1 and row[f"{part}_loss"] > 0 for part in ("train", "dev", "test"))
    report = (whole / "report.md").read_text()
    assert "| group norm |" in report
    assert {path.stem for path in (whole / "figures").iterdir()} == {"comparison"}

    with monkeypatch.context() as patch:
        patch.setattr(compare, "train_variant", interrupted(train_variant, 2))
        assert main(f"networks compare normalisation {TINY}", tmp_path) == 130
    assert len(rows(tmp_path)) == 2
    assert main("networks compare normalisation --resume", tmp_path) == 0
    assert without_costs(tmp_path) == without_costs(whole)


@pytest.mark.parametrize("what", VARIED)
def test_every_comparison_runs(what, monkeypatch):
    """Of its variants, the first and the last."""
    monkeypatch.setattr(compare, "variants_of", lambda *given: [(every := [*variants_of(*given)])[0], every[-1]])
    out = made(f"networks compare {what} {TINY}")
    assert VARIED[what][1] in (out / "report.md").read_text()
    assert {event["variant"] for event in read_events(out, "curves")} == {row["variant"] for row in rows(out)}
