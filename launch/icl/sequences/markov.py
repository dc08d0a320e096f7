"""Markov chains: two layers of attention that count transitions in context, trained and constructed (Edelman et al. 2024)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.causal import CausalModel, attention_maps, init_model, next_outputs
from icl.models.induction import cache_row, counting_model, head_roles, induction_model
from icl.problems.markov import (
    Chain,
    Chains,
    bigram_posterior,
    cross_entropy,
    divergence,
    uniform_prediction,
    unigram_posterior,
)
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    TEST,
    VALIDATION,
    Job,
    Measure,
    Member,
    effort,
    parts,
    random_key,
    train_or_load,
)
from launch.icl.shared.config import Config
from launch.icl.shared.tables import curve, curves, first_step
from launch.kit.experiment import Experiment
from launch.kit.figures import figure
from launch.kit.rows import Results, Row, means
from launch.kit.tables import Column
from launch.kit.views import Lines, Table, draw_matrix, picture

MODELS = {"no symbol at the start": "markov", "a symbol at the start": "markov_start"}  # names in files and events, by label
_batch = 64  # sequences per step
_sequences, _test_blocks = 1000, 5  # at most: of the validation, and as many again for the test
_exact_sequences = 100  # on which constructions are compared in float64
_shown = 24  # tokens in the figure of attention

Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


@parts()
def measure(job: Job) -> list[Row]:
    """Markov chains, whose transitions two layers count in context.

    Models with and without a symbol at the start, weights that are the posterior mean, and a language model's cache row.
    """
    config = job.config
    chains, size = Chains(config.chain_states, config.chain_length, config.chain_alpha), block_size(config)
    blocks = max(1, min(config.test_tasks // size, _test_blocks))
    tests = [chains.sample(jax.random.fold_in(random_key(config, TEST), block), size) for block in range(blocks)]
    models = {name: train(job, chains, name) for name in MODELS.values()}
    constructed = jax.jit(induction_model, static_argnums=(0, 1))(chains.states, chains.length, chains.alpha)
    about = {"task": "markov chains", "recurrent": False, "alpha": chains.alpha, "dim": chains.states, "context": chains.length}
    rows = []

    def test(name: str, predict: Predict, *weights: Any, **fields: Any) -> None:
        found = [measures(predict, chains, batch, *weights) for batch in tests]
        if weights:
            found = [of_batch | roles(*weights, batch) for of_batch, batch in zip(found, tests, strict=True)]
        means = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        layers = 2 if weights else 0
        rows.append({**about, "predictor": name, "layers": layers, "test_tasks": blocks * size, **means, **fields})

    with stage("testing Markov chains"):
        for name, predict in strategies(chains).items():
            test(name, predict)
        row, layers, counts = exact_differences(chains, random_key(config, TEST))
        of_row = functools.partial(of_cache_row, chains.states)
        test("cache row", of_row, max_difference=row, count_difference=counts, seconds=0.0)
        made = {"symbols_before": chains.states, "max_difference": layers, "seconds": 0.0}
        test("constructed", of_construction, constructed, **made)
        for before, name in enumerate(MODELS.values()):
            fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
            for model, entry in models[name]:
                test("trained", of_logits, model, **fields, **entry)
    x, shown = tests[0].x[:, 0], {"trained": models["markov_start"][0][0], "constructed": constructed}
    maps: dict[str, Any] = {name: np.asarray(jax.jit(attention_maps)(model, x))[:, 0] for name, model in shown.items()}
    np.savez_compressed(job.folder.path / "chains.npz", x=np.asarray(x), **maps)
    return rows


def exact_differences(chains: Chains, key: jax.Array) -> list[float]:
    """The largest differences in float64 over a few sequences.

    Between a language model's cache row and the constructed layers with α = n₊/k, place by place; between the outputs of the
    constructed layers and the posterior mean; between the counts of a constructed induction head and those in the cache row.
    """
    k, T = chains.states, chains.length

    @jax.jit
    def of_sequence(x: jax.Array) -> jax.Array:
        row, posterior = cache_row(x, k), bigram_posterior(x, chains.alpha, k)
        outputs = next_outputs(induction_model(k, T, chains.alpha), x)
        counts = next_outputs(counting_model(k, T), x, softmax=False)
        p = jax.lax.map(lambda at: next_outputs(induction_model(k, T, at[1]), x)[at[0]], (jnp.arange(T), row.different / k))
        return jnp.stack([jnp.max(jnp.abs(d)) for d in (p - row.p, outputs - posterior, counts - row.counts)])

    with jax.enable_x64(True):
        return jnp.max(jax.lax.map(of_sequence, chains.sample(key, _exact_sequences).x.T), axis=0).tolist()


def block_size(config: Config) -> int:
    """Sequences of the validation, and of each block of the test."""
    return min(config.validation_tasks, config.test_tasks, _sequences)


def train(job: Job, chains: Chains, name: str) -> list[Member]:
    """Models of two layers, one per seed, with or without a symbol at the start."""
    config, runs = job.config, effort(job.config, 4000, 2)

    def evaluation() -> Measure:
        validation = chains.sample(random_key(config, VALIDATION), block_size(config))
        for strategy, predict in strategies(chains).items():
            loss = float(measures(predict, chains, validation)["loss"])
            job.folder.log(event="reference", model=name, predictor=strategy, loss=loss)
        return lambda model: measures(of_logits, chains, validation, model) | roles(model, validation)

    recipe = Recipe(min(_batch, config.batch_size), config.learning_rate, b2=0.999, gradient_clip=1.0)
    init, every = functools.partial(init_causal, chains, name == "markov_start"), max(1, min(50, runs.steps // 20))
    return train_or_load(job, name, init, chains, recipe, evaluation, runs, every)


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_causal(chains: Chains, start: bool, key: jax.Array) -> CausalModel:
    """Random weights."""
    return init_model(key, chains.states, chains.length, start=start)


@functools.cache
def strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.log(uniform_prediction(x, k)),
        "unigram": lambda x: jnp.log(unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def of_cache_row(states: int, x: jax.Array) -> jax.Array:
    """Predictions of the row of a language model's cache."""
    return jax.nn.log_softmax(cache_row(x, states).row)


def of_logits(model: CausalModel, x: jax.Array) -> jax.Array:
    """Predictions of a trained model."""
    return jax.nn.log_softmax(next_outputs(model, x))


def of_construction(model: CausalModel, x: jax.Array) -> jax.Array:
    """Predictions of the constructed model, whose outputs are probabilities."""
    return jnp.log(next_outputs(model, x))


@functools.partial(jax.jit, static_argnums=(0, 1))
def measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, and the divergence to them from the true rows of P and from each closed form, in nats."""

    def of_sequence(P: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        found = {"loss": cross_entropy(log_p, x), "kl_truth": divergence(P[x], log_p)}
        for name, closed_form in strategies(chains).items():
            found[f"kl_{name}"] = divergence(jnp.exp(closed_form(x)), log_p)
        return found

    found = jax.tree.map(jnp.mean, jax.vmap(of_sequence, in_axes=-1)(batch.P, batch.x))
    return {what: jnp.maximum(mean, 0) for what, mean in found.items()}  # a divergence of 0 is rounded to either side


@jax.jit
def roles(model: CausalModel, batch: Chain) -> dict[str, jax.Array]:
    """How far the layers are a previous-token head and an induction head."""
    return jax.tree.map(jnp.mean, jax.vmap(lambda x: head_roles(model, x), in_axes=-1)(batch.x))._asdict()


def by_predictor(results: Results) -> list[Row]:
    """The mean over seeds of each predictor."""
    return means(results.rows, ["predictor", "symbols_before"])


def phases(results: Results) -> list[Row]:
    """When predictions were nearest to unigrams, with that divergence, and from when on nearer to bigrams, by seed."""
    found = []
    for label, model in MODELS.items():
        evaluations = curve(results, model)
        for n in range(len(evaluations[0]["loss"])):
            nearest = min(evaluations, key=lambda entry, n=n: entry["kl_unigram"][n])
            step, kl = nearest["step"], f"{nearest['kl_unigram'][n]:.4f}"
            nearer = first_step(evaluations, lambda entry, n=n: entry["kl_bigram"][n] < entry["kl_unigram"][n])
            found.append({"trained with": label, "nearest to unigrams": f"step {step}", "with a KL of": kl})
            found[-1]["nearer to bigrams"] = "never" if nearer is None else f"from step {nearer} on"
    return found


def figure_rows(results: Results) -> list[Row]:
    """Losses by step with those of the closed forms, then the divergence of each model from the closed forms."""
    losses: list[Row] = [{**row, "row": "loss"} for row in curves(results, MODELS)]
    return losses + [
        {"row": "KL", "label": f"{label}: KL", "step": e["step"], "loss": e[f"kl_{name}"], "series": name}
        for label, model in MODELS.items()
        for e in curve(results, model)
        for name in ("uniform", "unigram", "bigram")
    ]


def attention(results: Results) -> list[str]:
    """The attention of both layers, trained and constructed, on the same sequence."""
    maps, path = results.arrays("chains.npz"), results.path / "figures" / "markov_attention.png"
    with figure(path, 2, 2, size=(9.5, 9)) as axes:
        for row, name in zip(axes, ("trained", "constructed"), strict=True):
            before = maps[name].shape[-1] - len(maps["x"])
            labels = [*["·"] * before, *map(str, maps["x"][:_shown])]
            for n, ax in enumerate(row):
                draw_matrix(ax, maps[name][n, before : before + _shown, : before + _shown], cmap="Blues")
                ax.set_xticks(range(len(labels)), labels, fontsize=7)
                ax.set_yticks(range(len(labels) - before), labels[before:], fontsize=7)
                ax.set(title=f"{name}, layer {n + 1}", xlabel="attends to", ylabel="token")
    return picture(results, "markov_attention")


CHAINS = Table(
    [
        Column("prediction", "predictor"),
        Column("symbols before the sequence", "symbols_before"),
        Column("loss, nats", "loss", ".4f"),
        Column("KL from the posterior mean", "kl_bigram", ".4f"),
        Column("attention of layer 2 to what followed the same state", "matches", ".2f"),
        Column("largest difference in float64", "max_difference", ".1e"),
    ],
    by_predictor,
)
AXES = {"xlabel": "training step", "ylabel": "nats"}
NOTE = """Edelman et al. 2024: predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by a head
that attends to what followed the same state. Phases of training, by seed:"""
PHASES = Table(rows=phases)
FIGURE = Lines("markov", "step", "loss", "series", "label", figure_rows, axes=AXES, row="row", sharey=True)
VIEWS = [CHAINS._replace(note=NOTE), PHASES, FIGURE, attention]
EXPERIMENT = Experiment("markov", Config, measure, VIEWS, title="Markov chains")
