"""launch.networks compare: one part exchanged, every variant from several seeds.

A whole run is one compiled scan, under `vmap` over rates and seeds, so that nothing waits for the host. Epochs are whole
batches: what is left of an order is dropped.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.nn.names import Activation, NormName, ObjectiveName, OptimizerName, SamplerName, ScheduleName
from jexplicit.nn.networks import (
    FullyConnected,
    activation,
    init_variables,
    initial_state,
    network_outputs,
    network_step,
    variables_of,
)
from jexplicit.nn.studies import gradient_noise, hidden_layers
from jexplicit.nn.training import make_optimizer, make_schedule, objective, sampler
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import stage
from jexplicit.solvers.metrics import recall_by_class
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Section, Table, groups, mean_std, pivot_table, where
from launch.networks.config import CompareConfig, checked
from launch.networks.training import Data, SplitData, finite, open_pictures

SATURATION = 6.0  # of the output biases: a sigmoid has 0.9975, and a slope of 0.0025
SMALLEST_CLASS = 0.02  # examples of the rarest class, relative to the most frequent one
FEW = 200  # examples
_deep = 5  # hidden layers of the comparison of initialisers, as in Glorot & Bengio (2010)
_objectives = ("sigmoid_squared_error", "binary_cross_entropy", "squared_error", "softmax_cross_entropy")
_laws = ("fan_in_uniform", "glorot_uniform", "glorot_normal", "he_normal", "backward_normal", "standard", "zeros")
_by_descent = ("sgd", "momentum", "nesterov")
_rates_of_a_search = 8
_watched, _bins = 256, 60  # examples whose layers are watched; of a histogram
_draws = 50  # of batches of each size
_summarised = {"train_accuracy": (100, ".1f"), "test_accuracy": (100, ".1f"), "dev_loss": (1, ".3f")}
_when = {"start": "before training", "end": "after"}
_against = {"normalisation": "hidden layers", "initializers": "factor on the weights", "dropout": "dropout"}
_by_panel = {
    f"by {what}": {"xlabel": what, "ylabel": "test accuracy (%)", "xscale": "linear" if what == "dropout" else "log"}
    for what in _against.values()
}


class Variant(NamedTuple):
    """A network to train, and how.

    group: the panel of the figure; value: of what varies, for groups drawn against a number. rates: to try; the best
    has the lowest mean dev loss. start: from the random variables. data: other data than the comparison's.
    """

    name: str
    network: FullyConnected
    group: str = ""
    value: float | None = None
    objective: ObjectiveName = "softmax_cross_entropy"
    optimizer: str = "sgd"
    momentum: float = 0.9
    rates: tuple[float, ...] = (0.1,)
    cooling: ScheduleName = "constant"
    sampler: SamplerName = "round-robin"
    batch_size: int = 32
    epochs: int = 20
    start: Callable[[dict[str, Any]], dict[str, Any]] = lambda variables: variables
    data: Data | None = None


class Outcome(NamedTuple):
    """A variant at its best rate, from S seeds.

    Mean dev losses of all rates, infinite where a run diverged; scores after the last epoch, such as `train_loss`; curves over
    epochs from the start on; variables and the steps of each run.
    """

    rate: float
    rate_losses: Float[np.ndarray, " R"]
    scores: dict[str, Float[np.ndarray, " S"]]
    curves: dict[str, Float[np.ndarray, "S E_1"]]
    variables: dict[str, Any]
    steps: int


def train_variant(variant: Variant, data: Data, seeds: Sequence[int]) -> Outcome:
    """Train a variant from every seed at every rate, and keep the best rate."""
    data = variant.data or data
    size = min(variant.batch_size or len(data.train.X), len(data.train.X))
    steps, epochs = len(data.train.X) // size, range(1, variant.epochs + 1)
    loss, draw = objective(variant.objective), sampler(variant.sampler, data.labels)
    orders = [[draw(seed, epoch)[: steps * size].reshape(steps, size) for epoch in epochs] for seed in seeds]
    cooling = make_schedule(variant.cooling, 1.0, variant.epochs * steps)
    parts = {name: tuple(map(jnp.asarray, getattr(data, name))) for name in ("train", "dev", "test")}
    X, Y = parts["train"]

    def scores(variables: Any, part: str) -> tuple[Array, Array]:
        X, Y = parts[part]
        z = network_outputs(variant.network, variables, X)
        return loss(z, Y).mean(), (z.argmax(axis=1) == Y.argmax(axis=1)).mean(dtype=z.dtype)

    def curves_of(variables: Any) -> tuple[Array, ...]:
        return (*scores(variables, "dev"), scores(variables, "train")[0])

    def run(key: Array, order: Array, rate: Array) -> tuple[dict[str, Any], tuple[Array, ...]]:
        optimizer = make_optimizer(variant.optimizer, lambda k: rate * cooling(k), momentum=variant.momentum)
        step = network_step(variant.network, loss, optimizer, seed=key)
        variables = variant.start(init_variables(variant.network, key, X[:2]))

        def epoch(state: Any, order: Array) -> tuple[Any, tuple[Array, ...]]:
            state, _ = jax.lax.scan(lambda state, m: (step(state, (X[m], Y[m]))[0], None), state, order)
            return state, curves_of(variables_of(state))

        first = curves_of(variables)
        state, later = jax.lax.scan(epoch, initial_state(variables, optimizer), order)
        return variables_of(state), tuple(jnp.concatenate([a[None], b]) for a, b in zip(first, later, strict=True))

    every = jax.jit(jax.vmap(jax.vmap(run, (0, 0, None)), (None, None, 0)))
    keys, rates = jnp.stack([key_of_seed(seed) for seed in seeds]), jnp.asarray(variant.rates, jnp.float32)
    variables, curves = every(keys, jnp.asarray(np.array(orders), jnp.int32), rates)
    last = np.asarray(curves[0][:, :, -1], np.float64).mean(axis=1)
    rate_losses = np.where(np.isfinite(last), last, np.inf)
    best = int(rate_losses.argmin())
    variables = jax.tree.map(lambda leaf: leaf[best], variables)
    names = ("dev_loss", "dev_accuracy", "train_loss")
    named = {name: np.asarray(curve[best], np.float64) for name, curve in zip(names, curves, strict=True)}
    last_scores: dict[str, Any] = {}
    for part in parts:
        pair = jax.jit(jax.vmap(lambda v, part=part: scores(v, part)))(variables)
        last_scores |= {f"{part}_{kind}": np.asarray(x, np.float64) for kind, x in zip(("loss", "accuracy"), pair, strict=True)}
    return Outcome(variant.rates[best], rate_losses, last_scores, named, variables, variant.epochs * steps)


def variants_of(config: CompareConfig, data: Data) -> Iterator[Variant]:
    """The variants of the comparison that the flags name."""
    make = functools.partial(Variant, rates=config.rates, batch_size=config.batch_size, epochs=config.epochs)
    hundredths = tuple(sorted({*(round(rate * 0.01, 9) for rate in config.rates), *config.rates}))
    tenths = tuple(rate / 10 for rate in config.rates)

    def network(layers: int, **flags: Any) -> FullyConnected:
        return FullyConnected((config.width,) * layers, data.outputs, **flags)

    match config.what:
        case "activations":
            for name in get_args(Activation):
                yield make(name, network(3, activation=name))
        case "normalisation":
            for norm, residual, depth in product(get_args(NormName), (False, True), config.depths):
                group = ("no norm" if norm == "none" else f"{norm} norm") + ", residual" * residual
                yield make(f"{group}, depth {depth}", network(depth, norm=norm, residual=residual), group, depth)
        case "objectives":
            tanh, starts = network(1, activation="tanh", output_scale=0.1), {"saturated": {"start": saturate}, "small": {}}
            plan: Any = {"batch_size": 0, "epochs": 10 * config.epochs}
            for (optimizer, own), start, name in product((("sgd", config.rates), ("adam", tenths)), starts, _objectives):
                group = f"{'descent' if optimizer == 'sgd' else optimizer}, {start} outputs"
                plan |= {"optimizer": optimizer, "rates": own}
                yield make(f"{name}, {group}", tanh, group, objective=name, **plan, **starts[start])
        case "initializers":
            deep = functools.partial(network, _deep, activation="tanh", bias=False)
            for law in _laws:
                yield make(law, deep(weights=law), "initialisers")
            yield make("he_normal, gain 1.67", deep(weight_scale=5 / 3), "initialisers")
            zero_output = lambda v: _with_output(v, jax.tree.map(jnp.zeros_like, v["params"]["output"]))  # noqa: E731
            yield make("zero last layer", deep(), "initialisers", start=zero_output)
            for scale in (0.1, 0.3, 1.0, 3.0, 10.0):
                yield make(f"glorot_normal x {scale:g}", deep(weights="glorot_normal", weight_scale=scale), "scales", scale)
        case "optimizers":
            for name in get_args(OptimizerName):
                own = config.rates if name in _by_descent else hundredths
                yield make(name, network(2), "optimisers", optimizer=name, rates=own)
            for momentum in (0.0, 0.5, 0.9, 0.99):
                plan = {"optimizer": "momentum", "momentum": momentum, "rates": tuple(sorted({*config.rates, *tenths}))}
                yield make(f"momentum {momentum:g}", network(2), "momentum", **plan)
            for name in get_args(ScheduleName):
                yield make(f"cooling {name}", network(2), "schedules, descent", cooling=name)
            for spacing, space in {"linear": np.linspace, "exponential": np.geomspace}.items():
                own = tuple(space(hundredths[0], hundredths[-1], _rates_of_a_search).tolist())
                name = f"{_rates_of_a_search} {spacing} rates"
                yield make(name, network(2), "spacing of rates, adam", optimizer="adam", rates=own)
        case "batch-size":
            for size in (*(size for size in (8, 32, 128, 512) if size < len(data.train.X)), 0):
                yield make(f"batch {size}" if size else "full batch", network(2), batch_size=size)
        case "samplers":
            rare = imbalance(data)
            for name in get_args(SamplerName):
                yield make(name, network(2), sampler=name, data=rare)
        case "dropout":
            few = min(FEW, len(data.labels))
            parts = {f"{few} examples": _chosen(data, np.arange(few)), "all examples": data}
            for group, dropout in product(parts, (0.0, 0.2, 0.5, 0.8)):
                wide = FullyConnected((4 * config.width,) * 2, data.outputs, dropout=dropout)
                yield make(f"dropout {dropout:g}, {group}", wide, group, dropout, data=parts[group])


def imbalance(data: Data, smallest: float = SMALLEST_CLASS) -> Data:
    """Training examples of rarer and rarer classes: shares `smallest^(c/(N - 1))`."""
    shares = smallest ** (np.arange(data.outputs) / max(1, data.outputs - 1))
    most = np.bincount(data.labels, minlength=data.outputs).min()
    kept = np.concatenate([np.flatnonzero(data.labels == c)[: max(1, round(most * share))] for c, share in enumerate(shares)])
    return _chosen(data, np.sort(kept))


def saturate(variables: dict[str, Any]) -> dict[str, Any]:
    """The network with output biases of ±SATURATION, by turns."""
    output = variables["params"]["output"]
    signs = 1 - 2 * (jnp.arange(len(output["bias"])) % 2)
    return _with_output(variables, {**output, "bias": SATURATION * signs.astype(output["bias"].dtype)})


def _with_output(variables: dict[str, Any], output: Any) -> dict[str, Any]:
    return {**variables, "params": {**variables["params"], "output": output}}


def _chosen(data: Data, m: np.ndarray) -> Data:
    return data._replace(train=SplitData(data.train.X[m], data.train.Y[m]), labels=data.labels[m])


def measure(config: CompareConfig, folder: RunFolder) -> Iterator[Part]:
    """Every variant from every seed."""
    _, data = open_pictures(config, "compare")
    for variant in variants_of(config, data):
        yield {"variant": variant.name}, functools.partial(measure_variant, config, folder, variant, data)


def measure_variant(config: CompareConfig, folder: RunFolder, variant: Variant, data: Data) -> list[Row]:
    """Train a variant and log its curves; diverged runs have no numbers."""
    seeds, begin, own = range(config.seed, config.seed + config.seeds), time.perf_counter(), variant.data or data
    with stage(f"{config.what}: {variant.name}"):
        outcome = train_variant(variant, data, seeds)
        start = variant.start(init_variables(variant.network, key_of_seed(config.seed), data.train.X[:2]))
        end = jax.tree.map(lambda leaf: leaf[0], outcome.variables)
        if config.what == "initializers":
            log_layers(folder, variant, start, data)
        if config.what == "objectives":
            log_sensitivities(folder, variant, start, data)
        if config.what == "batch-size" and variant.batch_size and not folder.events("noise"):
            for when, variables in (("start", start), ("end", end)):
                log_noise(folder, variant, variables, data, config.seed, when)
        if config.what == "samplers":
            log_recall(folder, variant, outcome.variables, data)
    shared = {"comparison": config.what, "variant": variant.name, "group": variant.group}
    curves = {name: [finite(seed) for seed in curve] for name, curve in outcome.curves.items()}
    folder.log(event="curves", **shared, **curves, rates=list(variant.rates), rate_losses=finite(outcome.rate_losses))
    shared |= {"value": variant.value, "learning_rate": outcome.rate, "rates": len(variant.rates), "steps": outcome.steps}
    shared |= {"batch_size": min(variant.batch_size or len(own.labels), len(own.labels)), "epochs": variant.epochs}
    shared |= {"seconds": (time.perf_counter() - begin) / len(seeds), "train_examples": len(own.labels)}
    shared |= {name: data.about[name] for name in ("data", "sha256")}
    known = np.isfinite([values for name, values in outcome.scores.items() if name.endswith("loss")]).all(axis=0)
    scores = {name: finite(np.where(known, values, np.nan)) for name, values in outcome.scores.items()}
    return [{**shared, "seed": seed, **{name: own[n] for name, own in scores.items()}} for n, seed in enumerate(seeds)]


def log_layers(folder: RunFolder, variant: Variant, variables: Any, data: Data) -> None:
    """Log hidden layers before training, and save histograms."""
    X, Y = (part[:_watched] for part in data.train)
    arrays: dict[str, Any] = {}
    for layer, values in hidden_layers(variant.network, variables, objective(variant.objective), X, Y).items():
        sizes = {"std": activation(variant.network.activation)(values.z).std(), "gradient_std": values.gradient.std() * len(X)}
        numbers = {name: float(size) for name, size in sizes.items()}
        folder.log(event="layer", name=variant.name, when="start", layer=layer, **numbers)
        for kind, array in {"z": values.z, "gradient": values.gradient * len(X)}.items():
            density, edges = np.histogram(np.asarray(array, np.float64), _bins, density=True)
            arrays |= {f"{layer} {kind}": density, f"{layer} {kind} edges": edges}
    path = folder.path / "histograms" / f"{variant.name} start.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)


def log_sensitivities(folder: RunFolder, variant: Variant, variables: Any, data: Data) -> None:
    """The root mean square dJ/dz of output and hidden layer."""
    X, Y = (jnp.asarray(part[:_watched]) for part in data.train)
    loss = objective(variant.objective)
    (hidden,) = hidden_layers(variant.network, variables, loss, X, Y).values()
    output = jax.grad(lambda z: loss(z, Y).sum())(network_outputs(variant.network, variables, X))
    sizes = {"output": output, "hidden": hidden.gradient * len(X)}
    numbers = {name: float(jnp.sqrt((v**2).sum(axis=1).mean())) for name, v in sizes.items()}
    folder.log(event="sensitivity", name=variant.name, group=variant.group, objective=variant.objective, **numbers)


def log_noise(folder: RunFolder, variant: Variant, variables: Any, data: Data, seed: int, when: str) -> None:
    """The error of mini-batch gradients of all batch sizes."""
    X, Y = map(jnp.asarray, data.train)

    def loss(params: Any, x: Any, y: Any) -> Any:
        z = network_outputs(variant.network, {"params": params, "batch_stats": {}}, x[None])
        return objective(variant.objective)(z, y[None])[0]

    sizes = [size for size in (1, 8, 32, 128, 512) if size < len(X)]
    found = gradient_noise(loss, variables["params"], X, Y, key_of_seed(seed), sizes=sizes, draws=_draws)
    for size, error, predicted, cosine in zip(*found[:4], strict=True):
        numbers = {"size": int(size), "error": float(error), "predicted": float(predicted), "cosine": float(cosine)}
        folder.log(event="noise", when=when, scale=found.scale, **numbers)


def log_recall(folder: RunFolder, variant: Variant, variables: Any, data: Data) -> None:
    """Recall by class on test, by seed, and training examples."""
    X, labels = jnp.asarray(data.test.X), jnp.asarray(data.test.Y.argmax(axis=1))
    guesses = jax.vmap(lambda variables: network_outputs(variant.network, variables, X).argmax(axis=1))(variables)
    recalls = np.asarray(jax.vmap(lambda g: recall_by_class(g, labels, data.outputs))(guesses), np.float64)
    counts = np.bincount((variant.data or data).labels, minlength=data.outputs)
    folder.log(event="recall", name=variant.name, counts=counts.tolist(), recalls=recalls.tolist())


def summaries(results: Results, **fields: Any) -> list[Row]:
    """Mean ± standard deviation over seeds, a line for each variant."""
    lines = []
    for own in groups(where(results.rows, **fields), ["variant"]).values():
        line = {**own[0], "variant": own[0]["variant"].replace("_", " ")}
        for name, (scale, form) in _summarised.items():
            values = [scale * row[name] for row in own if row.get(name) is not None]
            line[name] = mean_std(values, form) if len(values) == len(own) else "all rates diverge"
        lines.append(line)
    return lines


def _starts(results: Results) -> list[Row]:
    return where(results.events("layer", "name", "when", "layer"), when="start")


def _by_layer(results: Results) -> list[Row]:
    """Activations and gradients of first and last hidden layer before training."""
    layers = groups(_starts(results), lambda e: e["name"].replace("_", " "))
    lines = []
    for line in summaries(results, group="initialisers"):
        first, *_, last = layers[line["variant"]]
        ratio = first["gradient_std"] / last["gradient_std"] if last["gradient_std"] else None
        lines.append({**line, "first": first["std"], "last": last["std"], "ratio": ratio})
    return lines


def _cells(row: Row, where: str, **forms: str) -> Iterator[Row]:
    """Numbers of a row as rows of `pivot_table`."""
    for name, form in forms.items():
        yield {**row, "what": f"{where}: {name}", "cell": format(row[name], form)}


def _sensitivities(results: Results) -> Iterator[Row]:
    """Sensitivities where training by descent starts, and the accuracy after it."""
    lines = {line["variant"]: line for line in summaries(results)}
    for event in results.events("sensitivity", "name"):
        optimizer, start = event["group"].split(", ")
        if optimizer == "descent":
            accuracy = lines[event["name"].replace("_", " ")]["test_accuracy"]
            row = {**event, "objective": event["objective"].replace("_", " "), "test %": accuracy}
            yield from _cells(row, start, **{"output": "#.3g", "hidden": "#.2g", "test %": ""})


def _noise(results: Results) -> Iterator[Row]:
    """Errors of mini-batch gradients, drawn and by the formula."""
    for event in results.events("noise", "when", "size"):
        row = {"size": event["size"], "drawn": event["error"], "formula": event["predicted"], "cosine": event["cosine"]}
        yield from _cells(row, _when[event["when"]], drawn="#.3g", formula="#.3g", cosine=".2f")


def _recalls(results: Results) -> Iterator[Row]:
    """Recall by class of every seed, %, and its mean over classes."""
    for event in results.events("recall", "name"):
        recalls = 100 * np.array(event["recalls"])
        for c, (number, own) in enumerate(zip(event["counts"], recalls.T, strict=True)):
            yield {"name": event["name"], "class": f"{c} ({number})", "recall": own, "cell": f"{own.mean():.0f}"}
        yield {"name": event["name"], "class": "mean", "recall": recalls.mean(axis=1), "cell": f"{recalls.mean():.1f}"}


def _curves(results: Results) -> list[Row]:
    """Dev accuracy by epoch, or test accuracy by number."""
    rows = [
        {"x": row["value"], "y": row["test_accuracy"], "hue": row["group"], "panel": f"by {_against[row['comparison']]}"}
        for row in results.rows
        if row.get("value") is not None and row.get("test_accuracy") is not None
    ]
    numbered = {row["variant"] for row in results.rows if row.get("value") is not None}
    for event in results.events("curves", "variant"):
        hue, panel = event["variant"].removesuffix(f", {event['group']}").replace("_", " "), event["group"]
        for epoch, seeds in enumerate(zip(*event["dev_accuracy"], strict=True)):
            if event["variant"] not in numbered:
                rows.append({"x": epoch, "y": np.array(seeds, float), "hue": hue, "panel": panel})
    places = {panel: n // 2 for n, panel in enumerate(dict.fromkeys(row["panel"] for row in rows))}
    return [{**row, "y": 100 * row["y"], "line": places[row["panel"]]} for row in rows]


def _densities(results: Results) -> Iterator[Row]:
    """The histograms before training, a row for each bin."""
    names = dict.fromkeys(event["name"] for event in _starts(results))
    for n, name in enumerate(names):
        arrays = results.arrays(f"histograms/{name} start.npz")
        for key in arrays:
            if f"{key} edges" in arrays:
                layer, kind = key.rsplit(" ", 1)
                edges, panel = arrays[f"{key} edges"], {"z": "z", "gradient": "dJ/dz"}[kind]
                for at, density in zip((edges[1:] + edges[:-1]) / 2, arrays[key], strict=True):
                    row = {"layer": layer.replace("_", " "), "at": float(at), "density": density}
                    yield {**row, "panel": f"{name.replace('_', ' ')}: {panel}", "line": n // 2}


_columns = [Column("variant", "variant"), Column("steps", "steps", ",d"), Column("best rate", "learning_rate", ".3g")]
_columns += [*(Column(f"{part} %", f"{part}_accuracy") for part in ("train", "test")), Column("dev loss", "dev_loss")]
VARIANTS, SCALES = Table(_columns, summaries), Table(_columns, lambda results: summaries(results, group="scales"))
BY_VALUE = pivot_table(  # of variants with a number, such as a depth
    [Column("test %", "group")],
    "value",
    "test_accuracy",
    heading="{:g}",
    rows=lambda results: [line for line in summaries(results) if line.get("value") is not None],
)
BY_LAYER = Table(
    [
        Column("before training", "variant"),
        Column("activations, layer 1", "first", ".2f"),
        Column("last layer", "last", "#.2g"),
        Column("gradient, layer 1 / last", "ratio", ".2f"),
        Column("test %", "test_accuracy"),
    ],
    rows=_by_layer,
)
SENSITIVITIES = pivot_table([Column("objective", "objective")], "what", "cell", rows=_sensitivities)
NOISE = pivot_table([Column("batch", "size", "d")], "what", "cell", rows=_noise)
RECALLS = pivot_table([Column("class (training examples)", "name")], "class", "cell", rows=_recalls)
_histogram: dict[str, Any] = {"axes": {"xlabel": "", "ylabel": "", "yticks": []}, "size": (3.4, 1.9), "row": "line"}
HISTOGRAMS = Lines("histograms", "at", "density", "layer", "panel", _densities, legend="below", **_histogram)
_shown: dict[str, Any] = {"axes": {"xlabel": "epochs", "ylabel": "dev accuracy (%)"}, "by_panel": _by_panel, "size": (4.6, 3.2)}
COMPARISON = Lines("comparison", "x", "y", "hue", "panel", _curves, row="line", legend="below", **_shown)
_log = {"xscale": "log", "yscale": "log", "xlabel": "batch size", "ylabel": "||g_B - g|| / ||g||"}
_drawn = {f"{when}: drawn": {"marker": "o", "linestyle": ""} for when in _when.values()}
_errors = lambda results: (row for row in _noise(results) if "cosine" not in row["what"])  # noqa: E731
ERRORS = Lines("noise", "size", lambda row: float(row["cell"]), "what", rows=_errors, styles=_drawn, axes=_log)
_bars: Any = {"axes": {"ylabel": "recall (%)"}, "size": (8.6, 3.2), "bars": True, "legend": "right"}
RECALL_BARS = Lines("recall", "class", "recall", "name", rows=_recalls, **_bars)
VIEWS = [
    VARIANTS,
    BY_VALUE,
    COMPARISON,
    Section("By layer", [BY_LAYER, HISTOGRAMS], {"comparison": "initializers"}),
    Section("Sensitivities", [SENSITIVITIES], {"comparison": "objectives"}),
    Section("The noise of the gradient", [NOISE, ERRORS], {"comparison": "batch-size"}),
    Section("Recall by class", [RECALLS, RECALL_BARS], {"comparison": "samplers"}),
]
EXPERIMENT = Experiment("networks", CompareConfig, measure, VIEWS, check=checked, title="launch.networks compare")
