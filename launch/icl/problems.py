"""Copying, sine waves and Markov chains."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import problems
from icl.attention import AttentionLayer, difference, init_layers, predictions
from icl.problems import (
    Chain,
    Chains,
    Network,
    NonlinearRegression,
    Waves,
    bigram_posterior,
    cross_entropy,
    divergence,
    init_network,
    predict_waves,
)
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl import training
from launch.icl.config import CopyConfig, MarkovConfig, NonlinearConfig
from launch.icl.rates import TEST, VALIDATION, Job, experiment, make_model, random_key
from launch.icl.training import BY_STEP, STYLES, curve, curves, loss_by_step, measures
from launch.kit.views import Column, Lines, Results, Row, Table, means

# Copying: a first layer joins x and y, a second descends.

COPY_MODELS = {"softmax": "copy", "linear": "copy_linear"}  # names in files and events, by the first layer


def copy(job: Job[CopyConfig], attention: str | None) -> Iterator[Row]:
    """What needs no training, or layers trained by their first one."""
    return _train_copying(job, attention) if attention else _copy_references(job.config)


def _about(config: CopyConfig) -> Row:
    sizes = {"recurrent": False, "dim": config.dim, "context": config.context}
    return {"task": "tokens apart", **sizes, "test_tasks": config.test_tasks}


def _copy_references(config: CopyConfig) -> Iterator[Row]:
    """Predicting zero, one step of descent, and weights that copy and descend exactly."""
    batch = make_model(config).tasks.sample(random_key(config, TEST), config.test_tasks)
    about, (eta, losses) = _about(config), _levels(config, batch)

    @jax.jit
    def constructed(batch: Sequence) -> jax.Array:
        tokens = problems.add_codes(problems.separate_tokens(batch), problems.unit_codes(config.context))
        return half_mse(problems.read_out(problems.copying_layers(config.dim, config.context, eta), tokens), batch.y_q)

    yield {**about, "layers": 0, "predictor": "zero", "loss": losses["zero"]}
    yield {**about, "layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta}
    yield {**about, "layers": 2, "heads": 2, "predictor": "constructed", "loss": float(constructed(batch)), "eta": eta}


def _levels(config: CopyConfig, batch: Sequence) -> tuple[float, dict[str, float]]:
    """The rate of one descent step, and losses of zero and of it."""
    gd = training.descent_family(config, make_model(config), "gd")
    weights, entry = gd.members[0]
    loss = float(half_mse(jax.jit(gd.predict)(weights, batch), batch.y_q))
    return entry["eta"], {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": loss}


def _train_copying(job: Job[CopyConfig], first: str) -> Iterator[Row]:
    """Two trained layers for each seed, or for one if linear."""
    config, name, softmax = job.config, COPY_MODELS[first], first == "softmax"
    problem = problems.Copying(make_model(config).tasks, softmax=(softmax, False))
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    @jax.jit
    def measured(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
        found = problems.copy_sensitivity(layers, problem.tokens(few), softmax=softmax)._asdict()
        return {"loss": problem.loss(layers, batch)} | {f"sensitivity_{what}": x for what, x in found.items()}

    def evaluation() -> training.Measure:
        for predictor, loss in _levels(config, validation)[1].items():
            job.folder.log(event="reference", model=name, predictor=predictor, loss=loss)
        return lambda layers: measured(layers, validation)

    init = partial(init_layers, width=problem.width, layers=2, scale=0.02 / 2)
    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, config.steps // 20))
    batch = problem.sample(random_key(config, TEST), config.test_tasks)
    seeds = config.seeds if softmax else 1
    for layers, entry in training.train(job, name, init, problem, recipe, evaluation, seeds=seeds, every=every):
        yield {**_about(config), "layers": 2, "predictor": "trained", **jax.tree.map(float, measured(layers, batch)), **entry}


def _copy_curves(results: Results) -> list[Row]:
    """Losses of both, and sensitivities of the first layer with softmax."""
    names = {"own": "same token", "next": "next token", "other": "other tokens"}
    return curves(results, {f"{first} first layer": model for first, model in COPY_MODELS.items()}) + [
        {"step": entry["step"], "loss": entry[f"sensitivity_{what}"], "series": name, "label": "sensitivity"}
        for what, name in names.items()
        for entry in curve(results, COPY_MODELS["softmax"])
    ]


_copy_axes = {**BY_STEP, "yscale": "linear"}
_sensitivity_axes = {"sensitivity": {"ylabel": "sensitivity of the first layer", "yscale": "log"}}
_copy_note = (
    "von Oswald et al. 2023, Fig. 5 (10,000 steps): the loss drops just after the first layer attends to the next token."
)
COPY_FIGURE = Lines("copy", "step", "loss", "series", "label", _copy_curves, STYLES, _copy_axes, _sensitivity_axes)
COPY = experiment(
    "copy",
    copy,
    [measures(Column("first layer", "attention"), note=_copy_note), COPY_FIGURE],
    title="Copying",
    keys=lambda _: [{"attention": first} for first in (None, *COPY_MODELS)],
)


# Sine waves: attention on learned features, and a control.

# as in the paper's code, whose rate of attention, which starts close to zero, is larger
RECIPES = {
    "trained": Recipe(learning_rate=1e-3, gradient_clip=100.0),
    "control": Recipe(learning_rate=3e-4, b2=0.999, gradient_clip=100.0),
}


WAVES = {name: f"nonlinear_{name}_K1" for name in RECIPES}  # names in files and events


def nonlinear(job: Job[NonlinearConfig]) -> Iterator[Row]:
    """Attention and control of every seed."""
    config = job.config
    problem, every = NonlinearRegression(Waves(context=config.context)), max(1, min(500, config.steps // 20))
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    batch = problem.sample(random_key(config, TEST), config.test_tasks)
    trained = {}
    for name, recipe in RECIPES.items():
        init = partial(init_network, layers=1 if name == "trained" else 0)
        options = recipe._replace(batch_size=config.batch_size)
        evaluation = lambda: partial(_wave_losses, problem, batch=validation)  # noqa: E731
        trained[name] = training.train(job, WAVES[name], init, problem, options, evaluation, every=every)
    about = {
        "task": "sine",
        "layers": 1,
        "recurrent": True,
        "dim": 1,
        "context": config.context,
        "test_tasks": config.test_tasks,
    }
    yield {**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}
    predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
    for n, (control, _) in enumerate(trained["control"]):
        for name, members in trained.items():
            network, entry = members[n]
            found = _wave_losses(problem, network, batch)
            if name == "trained":
                found |= difference(predicted(network, batch), predicted(control, batch))._asdict()
            yield {**about, "predictor": name, **jax.tree.map(float, found), **entry}


@partial(jax.jit, static_argnums=0)
def _wave_losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> dict[str, jax.Array]:
    """The losses after and before the layers."""
    y = predict_waves(network, batch, eta=problem.eta)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


_wave_note = "von Oswald et al. 2023, Fig. 4 (20,000 steps, five seeds): attention and the control predict the same."
NONLINEAR_VIEWS = [measures(note=_wave_note), loss_by_step("nonlinear", WAVES)]
NONLINEAR = experiment("nonlinear", nonlinear, NONLINEAR_VIEWS, title="Nonlinear regression")


# Markov chains: two layers that count transitions (Edelman et al. 2024).

MARKOV_MODELS = {"no symbol at the start": "markov", "a symbol at the start": "markov_start"}  # names in files, by label
_exact_sequences = 100  # on which constructions are compared in float64

Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


def markov(job: Job[MarkovConfig]) -> Iterator[Row]:
    """Losses of closed forms, constructed and trained models."""
    config, chains = job.config, Chains(job.config.states, job.config.length, job.config.alpha)
    k, size = chains.states, min(job.config.validation_tasks, job.config.test_tasks)
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(config.test_tasks // size)]
    tests = [chains.sample(key, size) for key in keys]
    constructed = jax.jit(problems.induction_model, static_argnums=(0, 1))(k, chains.length, chains.alpha)
    about = {"task": "markov chains", "recurrent": False, "alpha": chains.alpha, "dim": k, "context": chains.length}

    def test(name: str, predict: Predict, *weights: Any, **fields: Any) -> Row:
        found = [_chain_measures(predict, chains, batch, *weights) for batch in tests]
        if weights:
            found = [of_batch | roles(*weights, batch) for of_batch, batch in zip(found, tests, strict=True)]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if weights else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    yield from (test(name, predict) for name, predict in strategies(chains).items())
    exact = _largest_difference(chains, random_key(config, TEST))
    of_construction = lambda model, x: jnp.log(problems.next_outputs(model, x))  # noqa: E731  (whose outputs are probabilities)
    yield test("constructed", of_construction, constructed, symbols_before=k, max_difference=exact)
    for before, name in enumerate(MARKOV_MODELS.values()):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        yield from (test("trained", of_logits, model, **fields, **entry) for model, entry in _train_chains(job, chains, name))


def _largest_difference(chains: Chains, key: jax.Array) -> float:
    """The largest difference of the constructed layers from the posterior mean."""
    k, T = chains.states, chains.length

    def of_sequence(x: jax.Array) -> jax.Array:
        outputs = problems.next_outputs(problems.induction_model(k, T, chains.alpha), x)
        return jnp.max(jnp.abs(outputs - bigram_posterior(x, chains.alpha, k)))

    with jax.enable_x64(True):
        return float(jnp.max(jax.jit(jax.vmap(of_sequence))(chains.sample(key, _exact_sequences).x.T)))


def _train_chains(job: Job[MarkovConfig], chains: Chains, name: str) -> list[training.Member]:
    """Two-layer models, one per seed, with or without a start symbol."""
    config = job.config

    def evaluation() -> training.Measure:
        validation = chains.sample(random_key(config, VALIDATION), config.validation_tasks)
        for strategy, predict in strategies(chains).items():
            loss = float(_chain_measures(predict, chains, validation)["loss"])
            job.folder.log(event="reference", model=name, predictor=strategy, loss=loss)
        return lambda model: _chain_measures(of_logits, chains, validation, model) | roles(model, validation)

    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    init = jax.jit(partial(problems.init_model, states=chains.states, length=chains.length, start=name == "markov_start"))
    every = max(1, min(50, config.steps // 20))
    return training.train(job, name, init, chains, recipe, evaluation, every=every)


@cache
def strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.full((len(x), k), -np.log(k)),
        "unigram": lambda x: jnp.log(problems.unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def of_logits(model: problems.CausalModel, x: jax.Array) -> jax.Array:
    """Predictions of a trained model."""
    return jax.nn.log_softmax(problems.next_outputs(model, x))


@partial(jax.jit, static_argnums=(0, 1))
def _chain_measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, and their divergences in nats."""

    def of_sequence(x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        divergences = {f"kl_{name}": divergence(jnp.exp(form(x)), log_p) for name, form in strategies(chains).items()}
        return {"loss": cross_entropy(log_p, x), **divergences}

    found = jax.tree.map(jnp.mean, jax.vmap(of_sequence, in_axes=-1)(batch.x))
    return {what: jnp.maximum(mean, 0) for what, mean in found.items()}  # a divergence of 0 is rounded to either side


@jax.jit
def roles(model: problems.CausalModel, batch: Chain) -> dict[str, jax.Array]:
    """How far the layers are a previous-token head and an induction head."""
    return jax.tree.map(jnp.mean, jax.vmap(lambda x: problems.head_roles(model, x), in_axes=-1)(batch.x))._asdict()


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
_markov_note = """Edelman et al. 2024: predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by
a head that attends to what followed the same state."""
_markov_axes = {"xlabel": "training step", "ylabel": "nats"}
MARKOV_FIGURE = Lines(
    "markov", "step", "loss", "series", "label", partial(curves, models=MARKOV_MODELS), axes=_markov_axes, sharey=True
)
MARKOV_VIEWS = [CHAINS._replace(note=_markov_note), MARKOV_FIGURE]
MARKOV = experiment("markov", markov, MARKOV_VIEWS, title="Markov chains")
