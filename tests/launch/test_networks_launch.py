"""launch.networks on small data: a run of each subcommand, exact continuations, and variants beside a plain training loop."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_folders import folder, interrupt_training, made, main, rows, without_costs

from jexplicit.data.images import read_images
from jexplicit.lm.generation import next_token
from jexplicit.lm.text_model import load_model
from jexplicit.nn.networks import FullyConnected, init_variables, initial_state, network_outputs, network_step
from jexplicit.nn.training import epoch_order, objective
from jexplicit.runs.files import read_events
from launch.networks import CompareConfig
from launch.networks import training as comparisons
from launch.networks.training import Variant, centred_data, saturate, train_variant, variants_of

pytestmark = pytest.mark.slow

SEQUENCES = "--tokenizer char --window 32 --width 8 --layers 1 --steps 6 --warmup 2 --evaluations 3 --batch-size 4"
TRANSFORMER = f"{SEQUENCES} --heads 2 --dropout 0.1 --samples 1 --eos"


@functools.cache
def text() -> str:
    rng = np.random.default_rng(0)
    return "\n".join("".join(rng.choice(list("abc"), rng.integers(2, 7))) for _ in range(400))


def line(name: str, flags: str) -> str:
    (folder() / "letters").write_text(text())
    (folder() / "unseen").write_text(text()[::-1])
    return f"networks {name} --train {folder()}/letters {flags}".replace("--eos", f"--eos --test {folder()}/unseen")


def pictures(out) -> set[str]:
    return {path.stem for path in (out / "figures").glob("*.png")}


def test_a_transformer_has_its_costs_and_serves_as_a_language_model():
    """Its row by hand: 3 evaluations of 2 updates of 4 windows of 32 tokens."""
    out = made(line("transformer-lm", TRANSFORMER))
    (row,) = rows(out)
    assert row["trained_tokens"] == 6 * 4 * 32 and row["vocab_size"] == 5 and "curves" in pictures(out)
    assert row["flops"] == 6 * 4 * 32 * (6 * (12 * 8**2 + 5 * 8) + 12 * 8 * 32)
    assert row["parameters"] == 5 * 8 + 12 * 8**2 + 3 * 8
    events = read_events(out, "epoch")
    assert [event["step"] for event in events] == [0, 2, 4, 6] and events[-1]["flops"] == row["flops"]
    assert row["window_loss"] == min(event["dev_loss"] for event in events)
    assert row["dev_perplexity"] == np.exp(row["dev_loss"]) and 0 < row["test_loss_se"] < row["dev_loss_se"] < 1
    assert row["test_positions"] > 9 * row["dev_positions"] > 0  # all lines, and a tenth of them
    model = load_model(out)
    stream, (log_p,) = model.tokenizer.encode("abc"), model.score(["abc"])
    np.testing.assert_allclose(log_p[1], next_token(model.model, stream[:1])[stream[1]], rtol=1e-4)


def test_a_transformer_resumes_to_the_same_bits_and_on_no_other_text(tmp_path, monkeypatch, capsys):
    whole, out = made(line("transformer-lm", TRANSFORMER)), tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_training(patch, 4)
        assert main(line("transformer-lm", TRANSFORMER), out) == 130
    other = shutil.copytree(out, tmp_path / "other")
    assert main("networks transformer-lm --resume", out) == 0
    assert without_costs(out) == without_costs(whole)
    (folder() / "letters").write_text(text().replace("a", "b"))
    assert main("networks transformer-lm --resume", other) == 2
    assert "was started on another text, corpus_sha256" in " ".join(capsys.readouterr().err.split())


def test_networks_of_several_starts_and_seeds():
    flags = "--no-tied --positions learned --width 32 --layers 2 --heads 2 --samples 1 --seeds 2 --seed 3"
    out = made(line("transformer-lm", f"{SEQUENCES} {flags} --start none induction"))
    found = rows(out)
    starts = [(start, seed) for seed in (3, 4) for start in ("none", "induction")]
    assert [(row["start"], row["seed"]) for row in found] == starts and len({row["parameters"] for row in found}) == 1
    first = {(e["start"], e["seed"]): e["dev_loss"] for e in read_events(out, "epoch") if e["step"] == 0}
    assert len(first) == len(set(first.values())) == len(json.loads((out / "samples.json").read_text())) == 4
    assert load_model(out, method="transformer-induction-4").generate("ab", 5, seed=1)


def test_autoencoders():
    sizes = "--limit 120 --epochs 2 --memory-steps 20 --memory-scales 0.4"
    out = made(f"networks autoencoder {sizes}")
    found = {row["name"]: row for row in rows(out)}
    assert found["linear, solved"]["train_loss"] < found["linear, trained"]["train_loss"]  # nothing of that rank is better
    assert all(0 <= row["anomaly_auc"] <= 1 for row in found.values()) and pictures(out) == {"curves"}
    memory = found["over-parameterised, relu, weights x 0.4"]
    assert memory["largest_singular_value"] >= memory["largest_spectral_radius"] > 0
    assert [row["name"] for row in found.values() if "attractors" in row] == [memory["name"]]
    images = read_images("digits")  # and of pixels that never change
    assert np.isfinite(centred_data(images._replace(train_images=np.full_like(images.train_images, 3))).train.X).all()


# launch.networks compare


@pytest.fixture(scope="module")
def data():
    return centred_data(read_images("digits", limit=60))


def test_a_variant_is_a_plain_loop_of_steps(data):
    """Under vmap and scan in float32; 1e-4 after 15 steps."""
    network, rates = FullyConnected((4,), data.outputs, activation="tanh", norm="layer", dropout=0.2), (0.01, 0.3)
    variant = Variant("a", network, optimizer="momentum", rates=rates, batch_size=10, epochs=3)
    found = train_variant(variant, data, (5, 6))
    M, loss, losses = len(data.train.X), objective("softmax_cross_entropy"), np.empty((2, 2))
    X, Y = map(jnp.asarray, data.dev)
    for n, rate in enumerate(rates):
        for s, seed in enumerate((5, 6)):
            optimizer = optax.sgd(rate, momentum=0.9)
            state = initial_state(init_variables(network, jax.random.key(jnp.uint32(seed)), data.train.X[:2]), optimizer)
            step = jax.jit(network_step(network, loss, optimizer, seed=jnp.uint32(seed)))
            for epoch in (1, 2, 3):
                for m in epoch_order(seed, epoch, M)[: M // 10 * 10].reshape(-1, 10):
                    state, _ = step(state, (data.train.X[m], data.train.Y[m]))
            losses[n, s] = loss(network_outputs(network, state.variables, X), Y).mean()
    np.testing.assert_allclose(found.rate_losses, losses.mean(axis=1), rtol=1e-4)
    best = int(losses.mean(axis=1).argmin())
    assert found.rate == rates[best] and found.steps == 3 * (M // 10) and found.curves["dev_loss"].shape == (2, 4)
    np.testing.assert_allclose(found.scores["dev_loss"], losses[best], rtol=1e-4)
    np.testing.assert_allclose(found.curves["dev_loss"][:, -1], losses[best], rtol=1e-4)


def test_a_rate_that_diverges_is_never_the_best_and_saturated_outputs_are_sure_and_wrong(data):
    network = FullyConnected((4,), data.outputs, activation="linear")
    found = train_variant(Variant("a", network, objective="squared_error", rates=(1e6, 0.01), epochs=2), data, (0,))
    assert found.rate == 0.01 and np.isinf(found.rate_losses[0]) and np.isfinite(found.scores["test_loss"]).all()
    network = FullyConnected((4,), data.outputs, output_scale=0.1)
    variables = saturate(init_variables(network, jax.random.key(0), data.train.X[:2]))
    a = np.asarray(jax.nn.sigmoid(network_outputs(network, variables, jnp.asarray(data.dev.X))))
    assert (np.minimum(a, 1 - a) < 0.02).mean() > 0.9
    np.testing.assert_array_equal(a.mean(axis=0) > 0.5, np.arange(10) % 2 == 0)


def test_a_comparison_has_variants_with_names_and_settings_of_their_own(data, monkeypatch):
    """A run of the first and the last one."""
    for what in ("normalisation", "objectives", "initializers"):
        variants = [*variants_of(CompareConfig("out", what=what), data.outputs)]
        assert len({variant.name for variant in variants}) == len(variants) >= 3
        settings = {str(variant._replace(name="", group="", value=None)) for variant in variants}
        assert len(settings) >= len(variants) - (what == "initializers")  # factor 1 is the default
    monkeypatch.setattr(comparisons, "variants_of", lambda *given: [(every := [*variants_of(*given)])[0], every[-1]])
    command = "networks compare normalisation --limit 60 --seeds 2 --width 4 --epochs 2 --depths 1 --rates 0.1"
    found = rows(out := made(command))
    assert [row["seed"] for row in found] == [0, 1] * 2 and "| group norm, residual |" in (out / "report.md").read_text()
    for row in found:
        assert all(0 <= row[f"{part}_accuracy"] <= 1 and row[f"{part}_loss"] > 0 for part in ("train", "dev", "test"))
    assert {event["variant"] for event in read_events(out, "curves")} == {row["variant"] for row in found}
    assert pictures(out) == {"comparison"}
