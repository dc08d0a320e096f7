"""Markov chains: two layers that count transitions (Edelman et al. 2024)."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import problems
from icl.blocks import CausalModel, cache_row, counting_model, head_roles, induction_model, init_model, next_outputs
from icl.problems import Chain, Chains, bigram_posterior, cross_entropy, divergence
from icl.training import Recipe
from launch.icl import base
from launch.icl.config import MarkovConfig
from launch.icl.tables import curve, curves
from launch.kit.views import Column, Lines, Results, Row, Table, means

MODELS = {"no symbol at the start": "markov", "a symbol at the start": "markov_start"}  # names in files and events, by label
_exact_sequences = 100  # on which constructions are compared in float64

Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


def measure(job: base.Job[MarkovConfig]) -> Iterator[base.Part]:
    """Closed forms, constructions and models of every seed, in one part."""
    yield {}, partial(losses, job, Chains(job.config.states, job.config.length, job.config.alpha))


def losses(job: base.Job[MarkovConfig], chains: Chains) -> Iterator[Row]:
    """Losses of trained and constructed models, and of a cache row."""
    config, k, size = job.config, chains.states, min(job.config.validation_tasks, job.config.test_tasks)
    keys = [jax.random.fold_in(base.random_key(config, base.TEST), block) for block in range(config.test_tasks // size)]
    tests = [chains.sample(key, size) for key in keys]
    constructed = jax.jit(induction_model, static_argnums=(0, 1))(k, chains.length, chains.alpha)
    about = {"task": "markov chains", "recurrent": False, "alpha": chains.alpha, "dim": k, "context": chains.length}

    def test(name: str, predict: Predict, *weights: Any, **fields: Any) -> Row:
        found = [measures(predict, chains, batch, *weights) for batch in tests]
        if weights:
            found = [of_batch | roles(*weights, batch) for of_batch, batch in zip(found, tests, strict=True)]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if weights else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    yield from (test(name, predict) for name, predict in strategies(chains).items())
    row, layers, counts = exact_differences(chains, base.random_key(config, base.TEST))
    of_cache = lambda x: jax.nn.log_softmax(cache_row(x, k).row)  # noqa: E731
    yield test("cache row", of_cache, max_difference=row, count_difference=counts)
    of_construction = lambda model, x: jnp.log(next_outputs(model, x))  # noqa: E731  (whose outputs are probabilities)
    yield test("constructed", of_construction, constructed, symbols_before=k, max_difference=layers)
    for before, name in enumerate(MODELS.values()):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        yield from (test("trained", of_logits, model, **fields, **entry) for model, entry in train(job, chains, name))


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


def train(job: base.Job[MarkovConfig], chains: Chains, name: str) -> list[base.Member]:
    """Two-layer models, one per seed, with or without a start symbol."""
    config = job.config

    def evaluation() -> base.Measure:
        validation = chains.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
        for strategy, predict in strategies(chains).items():
            loss = float(measures(predict, chains, validation)["loss"])
            job.folder.log(event="reference", model=name, predictor=strategy, loss=loss)
        return lambda model: measures(of_logits, chains, validation, model) | roles(model, validation)

    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    init, every = partial(init_causal, chains, name == "markov_start"), max(1, min(50, config.steps // 20))
    return base.train_or_load(job, name, init, chains, recipe, evaluation, every=every)


@partial(jax.jit, static_argnums=(0, 1))
def init_causal(chains: Chains, start: bool, key: jax.Array) -> CausalModel:
    """Random weights."""
    return init_model(key, chains.states, chains.length, start=start)


@cache
def strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.log(problems.uniform_prediction(x, k)),
        "unigram": lambda x: jnp.log(problems.unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def of_logits(model: CausalModel, x: jax.Array) -> jax.Array:
    """Predictions of a trained model."""
    return jax.nn.log_softmax(next_outputs(model, x))


@partial(jax.jit, static_argnums=(0, 1))
def measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, and their divergences in nats."""

    def of_sequence(P: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        found = {"loss": cross_entropy(log_p, x), "kl_truth": divergence(P[x], log_p)}
        return found | {f"kl_{name}": divergence(jnp.exp(form(x)), log_p) for name, form in strategies(chains).items()}

    found = jax.tree.map(jnp.mean, jax.vmap(of_sequence, in_axes=-1)(batch.P, batch.x))
    return {what: jnp.maximum(mean, 0) for what, mean in found.items()}  # a divergence of 0 is rounded to either side


@jax.jit
def roles(model: CausalModel, batch: Chain) -> dict[str, jax.Array]:
    """How far the layers are a previous-token head and an induction head."""
    return jax.tree.map(jnp.mean, jax.vmap(lambda x: head_roles(model, x), in_axes=-1)(batch.x))._asdict()


def phases(results: Results) -> list[Row]:
    """Steps of the unigram and bigram phases of training, by seed."""
    found = []
    for label, model in MODELS.items():
        evaluations = curve(results, model)
        for n in range(len(evaluations[0]["loss"])):
            nearest = min(evaluations, key=lambda entry, n=n: entry["kl_unigram"][n])
            step, kl = nearest["step"], f"{nearest['kl_unigram'][n]:.4f}"
            nearer = next((e["step"] for e in evaluations if e["kl_bigram"][n] < e["kl_unigram"][n]), None)
            found.append({"trained with": label, "nearest to unigrams": f"step {step}", "with a KL of": kl})
            found[-1]["nearer to bigrams"] = "never" if nearer is None else f"from step {nearer} on"
    return found


CHAINS = Table(
    [
        Column("prediction", "predictor"),
        Column("symbols before the sequence", "symbols_before"),
        Column("loss, nats", "loss", ".4f"),
        Column("KL from the posterior mean", "kl_bigram", ".4f"),
        Column("attention of layer 2 to what followed the same state", "matches", ".2f"),
        Column("largest difference in float64", "max_difference", ".1e"),
    ],
    lambda results: means(results.rows, ["predictor", "symbols_before"]),
)
NOTE = """Edelman et al. 2024: predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by a head
that attends to what followed the same state. Phases of training, by seed:"""
AXES = {"xlabel": "training step", "ylabel": "nats"}
FIGURE = Lines("markov", "step", "loss", "series", "label", partial(curves, models=MODELS), axes=AXES, sharey=True)
VIEWS = [CHAINS._replace(note=NOTE), Table(rows=phases), FIGURE]
EXPERIMENT = base.experiment("markov", measure, VIEWS, title="Markov chains")
