"""Copying, sine waves, classes of functions and Markov chains."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import problems
from icl.attention import AttentionLayer, init_layers
from icl.blocks import (
    CausalModel,
    CausalTransformer,
    cache_row,
    counting_model,
    head_roles,
    induction_model,
    init_model,
    next_outputs,
)
from icl.descent import difference, predictions
from icl.problems import (
    SHIFTS,
    Chain,
    Chains,
    FunctionClass,
    Network,
    NonlinearRegression,
    Prompt,
    Shift,
    Waves,
    bigram_posterior,
    cross_entropy,
    divergence,
    init_network,
    predict_waves,
    ridge_on_features,
)
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl import base, training
from launch.icl.base import BY_STEP, STYLES, curve, curves, loss_by_step, measures
from launch.icl.config import ClassesConfig, CopyConfig, MarkovConfig, NonlinearConfig
from launch.kit.views import Column, Lines, Results, Row, Table, means, pivot_table

# Copying: a first layer joins x and y, a second descends.

COPY_MODELS = {"softmax": "copy", "linear": "copy_linear"}  # names in files and events, by the first layer


def copy(job: base.Job[CopyConfig]) -> Iterator[base.Part]:
    """What needs no training, then a part for each first layer."""
    yield {"attention": None}, partial(_copy_references, job.config)
    yield from (({"attention": first}, partial(_train_copying, job, first)) for first in COPY_MODELS)


def _copy_references(config: CopyConfig) -> Iterator[Row]:
    """Predicting zero, one step of descent, and weights that copy and descend exactly."""
    about, batch = test_set(config)
    eta, losses = levels(config, batch)
    layers = jax.jit(problems.copying_layers, static_argnums=(0, 1))(config.dim, config.context, eta)
    constructed = float(half_mse(_predict_with_codes(layers, batch), batch.y_q))
    yield {**about, "layers": 0, "predictor": "zero", "loss": losses["zero"]}
    yield {**about, "layers": 1, "predictor": "gd", "loss": losses["gd"], "eta": eta}
    yield {**about, "layers": 2, "heads": 2, "predictor": "constructed", "loss": constructed, "eta": eta}


def test_set(config: CopyConfig) -> tuple[Row, Sequence]:
    """Fields of all rows, and the tasks that they are about."""
    about = {"task": "tokens apart", "recurrent": False, "dim": config.dim, "context": config.context}
    batch = base.make_model(config).tasks.sample(base.random_key(config, base.TEST), config.test_tasks)
    return about | {"test_tasks": config.test_tasks}, batch


def _train_copying(job: base.Job[CopyConfig], first: str) -> Iterator[Row]:
    """Two trained layers for each seed, or for one if linear."""
    config, name = job.config, COPY_MODELS[first]
    problem = problems.Copying(base.make_model(config).tasks, softmax=(first == "softmax", False))
    validation = problem.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    def measured(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
        found = sensitivity(problem, first == "softmax", layers, few)._asdict()
        return {"loss": training.batch_loss(problem, layers, batch)} | {f"sensitivity_{what}": x for what, x in found.items()}

    def evaluation() -> training.Measure:
        for predictor, loss in levels(config, validation)[1].items():
            job.folder.log(event="reference", model=name, predictor=predictor, loss=loss)
        return lambda layers: measured(layers, validation)

    init = partial(init_layers, width=problem.width, layers=2, scale=0.02 / 2)
    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, config.steps // 20))
    seeds, (about, batch) = config.seeds if first == "softmax" else 1, test_set(config)
    for layers, entry in training.train_or_load(job, name, init, problem, recipe, evaluation, seeds=seeds, every=every):
        yield {**about, "layers": 2, "predictor": "trained", **jax.tree.map(float, measured(layers, batch)), **entry}


def levels(config: CopyConfig, batch: Sequence) -> tuple[float, dict[str, float]]:
    """The rate of one descent step, and losses of zero and of it."""
    gd = training.descent_family(config, base.make_model(config), "gd")
    weights, entry = gd.members[0]
    loss = float(half_mse(jax.jit(gd.predict)(weights, batch), batch.y_q))
    return entry["eta"], {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": loss}


@partial(jax.jit, static_argnums=(0, 1))
def sensitivity(problem: problems.Copying, softmax: bool, layers: AttentionLayer, batch: Sequence) -> problems.CopySensitivity:
    """How the outputs of the first layer depend on each token."""
    return problems.copy_sensitivity(layers, problem.tokens(batch), softmax=softmax)


@jax.jit
def _predict_with_codes(layers: AttentionLayer, batch: Sequence) -> jax.Array:
    """The predictions of constructed layers, whose positions have unit codes."""
    tokens = problems.add_codes(problems.separate_tokens(batch), problems.unit_codes(len(batch.X)))
    return problems.read_out(layers, tokens)


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
COPY = base.experiment("copy", copy, [measures({"attention": "first layer"}, _copy_note), COPY_FIGURE], title="Copying")


# Sine waves: attention on learned features, a control, and ridge regression.

_penalties = 10.0 ** np.arange(-8, 3)
# as in the paper's code, whose rate of attention, which starts close to zero, is larger
RECIPES = {
    "trained": Recipe(learning_rate=1e-3, gradient_clip=100.0),
    "control": Recipe(learning_rate=3e-4, b2=0.999, gradient_clip=100.0),
}


def nonlinear(job: base.Job[NonlinearConfig]) -> Iterator[base.Part]:
    """A part for each number of layers."""
    yield from (({"layers": layers}, partial(_fit_waves, job, layers)) for layers in job.config.wave_layers)


def _fit_waves(job: base.Job[NonlinearConfig], layers: int) -> Iterator[Row]:
    """Attention and control of every seed, and ridge on their features."""
    config = job.config
    problem, every = NonlinearRegression(Waves(context=config.context), depth=layers), max(1, min(500, config.steps // 20))
    validation = problem.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
    batch = problem.sample(base.random_key(config, base.TEST), config.test_tasks)

    def evaluation() -> training.Measure:
        return lambda network: _wave_losses(problem, network, validation)

    trained = {}
    for name, recipe in RECIPES.items():
        init = partial(init_network, layers=layers if name == "trained" else 0)
        options = recipe._replace(batch_size=config.batch_size)
        trained[name] = training.train_or_load(
            job, f"nonlinear_{name}_K{layers}", init, problem, options, evaluation, every=every
        )
    about = {"task": "sine", "recurrent": layers == 1, "dim": 1, "context": config.context, "test_tasks": config.test_tasks}
    yield {**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}
    predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
    for n, (control, _) in enumerate(trained["control"]):
        for name, members in trained.items():
            network, entry = members[n]
            found = _wave_losses(problem, network, batch)
            if name == "trained":
                found |= difference(predicted(network, batch), predicted(control, batch))._asdict()
            yield {**about, "predictor": name, **jax.tree.map(float, found), **entry}
            # in float32 the smallest penalties may give NaN
            tried = [float(_ridge_loss(network, validation, jnp.asarray(penalty))) for penalty in _penalties]
            penalty = float(_penalties[int(np.nanargmin(tried))])
            loss = float(_ridge_loss(network, batch, jnp.asarray(penalty)))
            yield {**about, "predictor": "ridge", "start": name, "loss": loss, "penalty": penalty, **entry}


@partial(jax.jit, static_argnums=0)
def _wave_losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> dict[str, jax.Array]:
    """The losses after and before the layers."""
    y = predict_waves(network, batch, eta=problem.eta, depth=problem.depth)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


@jax.jit
def _ridge_loss(network: Network, batch: Sequence, penalty: jax.Array) -> jax.Array:
    """The loss of ridge regression on the features of a network."""
    return half_mse(ridge_on_features(network.encoder, batch, penalty), batch.y_q)


def _wave_models(results: Results) -> dict[str, str]:
    """The names of models in files and events, by label."""
    depths = sorted({row["layers"] for row in results.rows})
    return {f"{name}, K = {K}": f"nonlinear_{name}_K{K}" for K in depths for name in RECIPES}


_wave_note = "von Oswald et al. 2023, Fig. 4 (20,000 steps, five seeds): attention and the control predict the same."
NONLINEAR_VIEWS = [measures(note=_wave_note), loss_by_step("nonlinear", _wave_models)]
NONLINEAR = base.experiment("nonlinear", nonlinear, NONLINEAR_VIEWS, title="Nonlinear regression")


# Classes of functions (Garg et al. 2022): a transformer and statistical baselines.

_two_dimensional = ("orthogonal query", "half subspace")  # shifts that need at least two dimensions

Predictors = list[tuple[Row, Callable[[Prompt], jax.Array]]]  # row fields, predictions [prompts, T]


def _check_transformer(config: ClassesConfig) -> None:
    """Refuse a width that heads do not divide."""
    width, layers, heads = config.transformer
    if width % heads:
        raise ValueError(f"--transformer {width} {layers} {heads}: use a width that is a multiple of the heads")


def function_classes(job: base.Job[ClassesConfig]) -> Iterator[base.Part]:
    """A part for each class and shift; linear functions also on shifted prompts."""
    for kind in job.config.functions:
        d = job.config.dim
        functions = FunctionClass(kind, dim=d, points=2 * d + 1, nonzero=min(3, d))
        predictors = cache(partial(_make_predictors, job, functions))
        for shift in SHIFTS if kind == "linear" else SHIFTS[:1]:
            if d > 1 or shift not in _two_dimensional:
                yield {"task": kind, "shift": shift}, partial(_prompt_rows, job.config, functions, shift, predictors)


def _make_predictors(job: base.Job[ClassesConfig], functions: FunctionClass) -> Predictors:
    """All baselines of a class and every seed's transformer, each compiled once."""
    config, (width, layers, heads) = job.config, job.config.transformer
    model = CausalTransformer(width, layers, heads, jnp.zeros(()).dtype)
    problem, init = problems.Prompts(functions, model.apply), partial(_init_transformer, model, functions)  # pyright: ignore[reportArgumentType]
    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    evaluation, every = training.validation_loss(config, problem), max(1, config.steps // 20)
    trained = training.train_or_load(job, f"functions_{functions.kind}", init, problem, recipe, evaluation, every=every)
    predictors: Predictors = [
        ({"predictor": name, "layers": 0}, jax.jit(jax.vmap(partial(problems.at_every_prefix, baseline))))
        for name, baseline in problems.function_baselines(functions.kind).items()
    ]
    apply: Any = jax.jit(model.apply)
    for one, entry in trained:
        about = {"predictor": "trained", **entry, "layers": layers, "heads": heads, "start": "cold"}
        predictors.append((about, lambda prompts, one=one: apply(one, prompts.X, prompts.y)))
    return predictors


@partial(jax.jit, static_argnums=(0, 1))
def _init_transformer(model: CausalTransformer, functions: FunctionClass, key: jax.Array) -> Any:
    """The weights of a transformer."""
    X = jnp.zeros((1, functions.points, functions.dim))
    return model.init(key, X, X[:, :, 0])


def _prompt_rows(
    config: ClassesConfig, functions: FunctionClass, shift: Shift, predictors: Callable[[], Predictors]
) -> Iterator[Row]:
    """Losses at some prefixes of test prompts, padded to the transformer's positions."""
    # at most d points are orthogonal to each other
    fits = replace(functions, points=functions.dim) if shift == "orthogonal query" else functions
    T, d, left = fits.points, fits.dim, functions.points - fits.points
    with stage(f"testing {fits.kind} functions, {shift}"):
        keys = jax.random.split(base.random_key(config, base.TEST), config.test_tasks)
        prompts = jax.vmap(lambda key: fits.sample(key, shift))(keys)
        padded = Prompt(*(jnp.asarray(np.pad(leaf, ((0, 0), (0, left), *[(0, 0)] * (leaf.ndim - 2)))) for leaf in prompts))
        for entry, predict in predictors():
            found = np.asarray(_losses_by_prefix(predict(padded), prompts.y))
            about = {"test_tasks": config.test_tasks, "recurrent": False, "dim": d, "context": T - 1, **entry}
            for t in sorted({0, d // 2, min(d, T - 1), T - 1}):
                yield {**about, "prefix": t, "loss": float(found[t]), "loss_by_power": float(found[t] / fits.power)}


@jax.jit
def _losses_by_prefix(predictions: jax.Array, y: jax.Array) -> jax.Array:
    """The losses at the prefixes of prompts, without padding."""
    return problems.prefix_losses(predictions[:, : y.shape[1]], y)


def _after_prompts(results: Results) -> list[Row]:
    """The means over seeds after the whole prompt, the transformer first."""
    rows = sorted(results.rows, key=lambda row: row["predictor"] != "trained")
    return means([row for row in rows if row["prefix"] == row["context"]], ["task", "shift", "predictor"])


_class_note = """Half the squared error after the whole prompt, in % of E[f²]. Garg et al. 2022 (12 layers, 20 dimensions,
500,001 steps): near least squares on linear functions and Lasso on sparse ones, better than greedy trees on trees."""
_class_columns = [Column("functions", "task"), Column("shift", "shift")]
CLASSES = pivot_table(_class_columns, "predictor", "loss_by_power", ".1f", scale=100, rows=_after_prompts)
CLASSES_VIEWS = [CLASSES._replace(note=_class_note)]
FUNCTION_CLASSES = base.experiment(
    "function-classes", function_classes, CLASSES_VIEWS, title="Classes of functions", check=_check_transformer
)


# Markov chains: two layers that count transitions (Edelman et al. 2024).

MARKOV_MODELS = {
    "no symbol at the start": "markov",
    "a symbol at the start": "markov_start",
}  # names in files and events, by label
_exact_sequences = 100  # on which constructions are compared in float64

Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


def markov(job: base.Job[MarkovConfig]) -> Iterator[base.Part]:
    """Closed forms, constructions and models of every seed, in one part."""
    yield {}, partial(_chain_rows, job, Chains(job.config.states, job.config.length, job.config.alpha))


def _chain_rows(job: base.Job[MarkovConfig], chains: Chains) -> Iterator[Row]:
    """Losses of trained and constructed models, and of a cache row."""
    config, k, size = job.config, chains.states, min(job.config.validation_tasks, job.config.test_tasks)
    keys = [jax.random.fold_in(base.random_key(config, base.TEST), block) for block in range(config.test_tasks // size)]
    tests = [chains.sample(key, size) for key in keys]
    constructed = jax.jit(induction_model, static_argnums=(0, 1))(k, chains.length, chains.alpha)
    about = {"task": "markov chains", "recurrent": False, "alpha": chains.alpha, "dim": k, "context": chains.length}

    def test(name: str, predict: Predict, *weights: Any, **fields: Any) -> Row:
        found = [_chain_measures(predict, chains, batch, *weights) for batch in tests]
        if weights:
            found = [of_batch | roles(*weights, batch) for of_batch, batch in zip(found, tests, strict=True)]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if weights else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    yield from (test(name, predict) for name, predict in strategies(chains).items())
    row, layers, counts = _exact_differences(chains, base.random_key(config, base.TEST))
    of_cache = lambda x: jax.nn.log_softmax(cache_row(x, k).row)  # noqa: E731
    yield test("cache row", of_cache, max_difference=row, count_difference=counts)
    of_construction = lambda model, x: jnp.log(next_outputs(model, x))  # noqa: E731  (whose outputs are probabilities)
    yield test("constructed", of_construction, constructed, symbols_before=k, max_difference=layers)
    for before, name in enumerate(MARKOV_MODELS.values()):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        yield from (test("trained", of_logits, model, **fields, **entry) for model, entry in _train_chains(job, chains, name))


def _exact_differences(chains: Chains, key: jax.Array) -> list[float]:
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


def _train_chains(job: base.Job[MarkovConfig], chains: Chains, name: str) -> list[training.Member]:
    """Two-layer models, one per seed, with or without a start symbol."""
    config = job.config

    def evaluation() -> training.Measure:
        validation = chains.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
        for strategy, predict in strategies(chains).items():
            loss = float(_chain_measures(predict, chains, validation)["loss"])
            job.folder.log(event="reference", model=name, predictor=strategy, loss=loss)
        return lambda model: _chain_measures(of_logits, chains, validation, model) | roles(model, validation)

    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    init, every = partial(_init_causal, chains, name == "markov_start"), max(1, min(50, config.steps // 20))
    return training.train_or_load(job, name, init, chains, recipe, evaluation, every=every)


@partial(jax.jit, static_argnums=(0, 1))
def _init_causal(chains: Chains, start: bool, key: jax.Array) -> CausalModel:
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
def _chain_measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
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
    for label, model in MARKOV_MODELS.items():
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
_markov_note = """Edelman et al. 2024: predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by
a head that attends to what followed the same state. Phases of training, by seed:"""
_markov_axes = {"xlabel": "training step", "ylabel": "nats"}
MARKOV_FIGURE = Lines(
    "markov", "step", "loss", "series", "label", partial(curves, models=MARKOV_MODELS), axes=_markov_axes, sharey=True
)
MARKOV_VIEWS = [CHAINS._replace(note=_markov_note), Table(rows=phases), MARKOV_FIGURE]
MARKOV = base.experiment("markov", markov, MARKOV_VIEWS, title="Markov chains")
