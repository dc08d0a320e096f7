"""The experiment of launch.icl on Markov chains: two layers that count in context, trained and constructed."""

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
from launch.icl.config import effort
from launch.icl.job import CHAINS, TEST, VALIDATION, Job, add_rows, has_rows, random_key
from launch.icl.recipes import make_chains
from launch.icl.training import Measure, split_seeds, train_or_load, training_rows

_batch = 64  # sequences per step
_sequences, _test_blocks = 1000, 5  # at most: of the validation, and as many again for the test
_exact_sequences = 100  # on which constructions are compared in float64

Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


def markov(job: Job) -> None:
    """Models with and without a symbol at the start, weights that are the posterior mean, and a language model's cache row."""
    if has_rows(job, "markov"):
        return
    config, chains = job.config, make_chains(job.config)
    size = _block(job)
    tests = [
        chains.sample(jax.random.fold_in(random_key(config, TEST), block), size)
        for block in range(max(1, min(config.test_tasks // size, _test_blocks)))
    ]
    models = {start: _train(job, chains, start) for start in (False, True)}
    constructed = jax.jit(induction_model, static_argnums=(0, 1))(chains.states, chains.length, chains.alpha)

    def test(predict: Predict, *weights: Any) -> dict[str, float]:
        found = [_measures(predict, chains, batch, *weights) for batch in tests]
        if weights:
            found = [measures | _roles(*weights, batch) for measures, batch in zip(found, tests, strict=True)]
        return {what: float(np.mean([measures[what] for measures in found])) for what in found[0]}

    with stage("testing Markov chains"):
        rows = [
            {"predictor": name, "layers": 0, **test(predict)}
            for name, predict in {**_strategies(chains), "cache row": functools.partial(_of_cache_row, chains.states)}.items()
        ]
        exact = exact_differences(chains, random_key(config, TEST))
        rows[-1] |= {"seconds": 0.0, "max_difference": exact["cache row"], "count_difference": exact["counts"]}
        about = {"layers": 2, "symbols_before": chains.states, "seconds": 0.0, "max_difference": exact["constructed"]}
        rows.append({"predictor": "constructed", **about, **test(_of_construction, constructed)})
        for start, params in models.items():
            entries = training_rows(job, _name(start))
            for entry, model in zip(entries, split_seeds(params), strict=True):
                task = "markov chains" + ", marked start" * start
                about = {"layers": 2, "start": "cold", "symbols_before": int(start), "task": task}
                rows.append({"predictor": "trained", **about, **entry, **test(_of_logits, model)})
    x, of_layers = tests[0].x[:, 0], jax.jit(attention_maps)
    shown = {"trained": split_seeds(models[True])[0], "constructed": constructed}
    maps: dict[str, Any] = {name: np.asarray(of_layers(model, x))[:, 0] for name, model in shown.items()}
    np.savez_compressed(job.folder.path / CHAINS, x=np.asarray(x), **maps)
    about = {"experiment": "markov", "task": "markov chains", "recurrent": False, "alpha": chains.alpha}
    add_rows(job, rows, **about, dim=chains.states, context=chains.length, test_tasks=len(tests) * size)


def exact_differences(chains: Chains, key: jax.Array) -> dict[str, float]:
    """The largest differences in float64 over a few sequences.

    constructed: between the outputs of the constructed layers and the posterior mean.
    counts: between the counts of a constructed induction head and those in the row of a language model's cache.
    cache row: between that row's prediction and the outputs of the constructed layers with α = n₊/k, place by place.
    """
    k, T = chains.states, chains.length

    @jax.jit
    def of_sequence(x: jax.Array) -> dict[str, jax.Array]:
        row, posterior = cache_row(x, k), bigram_posterior(x, chains.alpha, k)
        counts = next_outputs(counting_model(k, T), x, softmax=False)

        def at(t: jax.Array, alpha: jax.Array) -> jax.Array:
            return next_outputs(induction_model(k, T, alpha), x)[t]

        p = jax.lax.map(lambda pair: at(*pair), (jnp.arange(T), row.different / k))
        return {
            "constructed": jnp.max(jnp.abs(next_outputs(induction_model(k, T, chains.alpha), x) - posterior)),
            "counts": jnp.max(jnp.abs(counts - row.counts)),
            "cache row": jnp.max(jnp.abs(p - row.p)),
        }

    with jax.enable_x64(True):
        x = chains.sample(key, _exact_sequences).x.T
        found = jax.lax.map(of_sequence, x)
        return {what: float(jnp.max(values)) for what, values in found.items()}


def _block(job: Job) -> int:
    """Sequences of the validation, and of each block of the test."""
    return min(job.config.validation_tasks, job.config.test_tasks, _sequences)


def _name(start: bool) -> str:
    return "markov_start" if start else "markov"


def _train(job: Job, chains: Chains, start: bool) -> Any:
    """Models of two layers, one per seed."""
    config, name, runs = job.config, _name(start), effort(job.config, "markov")

    def evaluation() -> Measure:
        validation = chains.sample(random_key(config, VALIDATION), _block(job))
        for strategy, predict in _strategies(chains).items():
            loss = float(_measures(predict, chains, validation)["loss"])
            job.folder.log(event="reference", model=name, predictor=strategy, loss=loss)
        return lambda model: _measures(_of_logits, chains, validation, model) | _roles(model, validation)

    init = functools.partial(_init, chains, start)
    recipe = Recipe(min(_batch, config.batch_size), config.learning_rate, b2=0.999, gradient_clip=1.0)
    every = max(1, min(50, runs.steps // 20))
    return train_or_load(job, name, init, chains, recipe, evaluation, effort=runs, every=every)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _init(chains: Chains, start: bool, key: jax.Array) -> CausalModel:
    return init_model(key, chains.states, chains.length, start=start)


@functools.cache
def _strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.log(uniform_prediction(x, k)),
        "unigram": lambda x: jnp.log(unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def _of_cache_row(states: int, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(cache_row(x, states).row)


def _of_logits(model: CausalModel, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(next_outputs(model, x))


def _of_construction(model: CausalModel, x: jax.Array) -> jax.Array:
    return jnp.log(next_outputs(model, x))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, and the divergence to them from the true rows of P and from each closed form, in nats."""

    def of_sequence(P: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        found = {"loss": cross_entropy(log_p, x), "kl_truth": divergence(P[x], log_p)}
        for name, closed_form in _strategies(chains).items():
            found[f"kl_{name}"] = divergence(jnp.exp(closed_form(x)), log_p)
        return found

    means = jax.tree.map(jnp.mean, jax.vmap(of_sequence, in_axes=-1)(batch.P, batch.x))
    return {what: jnp.maximum(mean, 0) for what, mean in means.items()}  # a divergence of 0 is rounded to either side


@jax.jit
def _roles(model: CausalModel, batch: Chain) -> dict[str, jax.Array]:
    """How far the layers are a previous-token head and an induction head."""
    return jax.tree.map(jnp.mean, jax.vmap(lambda x: head_roles(model, x), in_axes=-1)(batch.x))._asdict()
