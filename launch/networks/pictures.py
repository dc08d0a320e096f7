"""Experiments of launch.networks on images: autoencoders, and comparisons of one part of a network.

A comparison exchanges one part and trains every variant from several seeds. A whole run is one compiled scan, under `vmap` over
rates and seeds, so that nothing waits for the host. Epochs are whole batches: what is left of an order is dropped.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jexplicit.nn import networks
from jexplicit.nn.names import InitializerName, NormName, ObjectiveName
from jexplicit.nn.networks import FullyConnected, init_variables, initial_state, network_outputs, network_step
from jexplicit.nn.training import epoch_order, make_optimizer, objective
from jexplicit.runs.devices import key_of_seed
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, groups, pivot_table, section, where
from launch.networks.config import AutoencoderConfig, CompareConfig, Descent, checked
from launch.networks.training import CURVES, RESULTS, Data, SplitData, open_pictures, train_model

# --- autoencoders: linear ones, a bottleneck, anomalies, memories ----------------------------------------------------------

_bottleneck, _width = 16, 64  # of the layer, and of those on both sides of it
_depth = 4  # hidden layers of the over-parameterised networks
_iterations = 500  # of their maps
_starts_per_memory = 10
_noise = 0.5  # of these starts, in standard deviations of the data

Map = Callable[[Any], Any]


def _measure_autoencoders(config: AutoencoderConfig, folder: RunFolder) -> Iterator[Part]:
    """Solved and trained linear autoencoders, a bottleneck, and over-parameterised networks."""
    images = open_pictures(config)
    if config.anomaly >= images.outputs:
        raise ValueError(f"--anomaly {config.anomaly}: the classes are 0 .. {images.outputs - 1}")
    D, normal = images.train.X.shape[1], [part.Y.argmax(axis=1) != config.anomaly for part in images[:3]]
    parts = (SplitData(part.X[kept], part.X[kept]) for part, kept in zip(images[:3], normal, strict=True))
    data = Data(*parts, outputs=D, about={**images.about, "anomaly": config.anomaly})
    anomalies, few = images.test.X[~normal[2]], SplitData(*(part[: config.memories] for part in data.train))

    def auc(f: Map) -> float:
        """How well the reconstruction error separates anomalies from test examples."""
        return networks.anomaly_auc(*(networks.reconstruction_errors(f(X), X) for X in _arrays(data.test.X, anomalies)))

    def solved() -> list[Row]:
        begin, f = time.perf_counter(), networks.linear_autoencoder(jnp.asarray(data.train.X), _bottleneck)
        row: dict[str, Any] = {"model": "linear, solved", "steps": 0, "anomaly_auc": auc(f), **data.about}
        for part, X in zip(("train", "dev", "test"), _arrays(data.train.X, data.dev.X, data.test.X), strict=True):
            row[f"{part}_loss"] = float(networks.reconstruction_errors(f(X), X).mean())
        return [{**row, "seconds": time.perf_counter() - begin}]

    yield {"name": "linear, solved"}, solved

    def trained(name: str, model: str, network: FullyConnected, flags: Descent, data: Data, **options: Any) -> Part:
        def finish(variables: Any) -> Row:
            f = functools.partial(network_outputs, network, variables)
            more = _attraction(config.seed, lambda x: f(x[None])[0], data) if "variables" in options else {}
            return {"anomaly_auc": auc(f), **more}

        options |= {"name": name, "model": model, "finish": finish}
        return {"name": name}, functools.partial(train_model, folder, flags, data, network, "squared_error", **options)

    linear = FullyConnected((_bottleneck,), D, "linear", bias=False, weights="glorot_normal")
    yield trained("linear, trained", "linear, trained", linear, config, data)
    yield trained("bottleneck", "bottleneck", FullyConnected((_width, _bottleneck, _width), D), config, data)
    flags = Descent(config.out, config.seed, batch_size=0, epochs=config.memory_steps)
    # the few examples are dev too, which selects the step: a memory need not generalise
    remembered = data._replace(train=few, dev=few)
    for phi, scale in itertools.product(config.memory_activations, config.memory_scales):
        network = FullyConnected((config.memory_width,) * _depth, D, phi)
        start = jax.tree.map(lambda W, scale=scale: W * scale, init_variables(network, key_of_seed(config.seed), few.X[:2]))
        name, model = f"over-parameterised, {phi}, weights x {scale:g}", f"{_depth} x {config.memory_width} {phi}"
        yield trained(name, model, network, flags, remembered, variables=start)


def _arrays(*parts: np.ndarray) -> Iterator[Array]:
    return map(jnp.asarray, parts)


def _attraction(seed: int, f: Map, data: Data) -> Row:
    """Whether a map contracts around the training examples, and leads back to them."""
    X, X_test = _arrays(data.train.X, data.test.X)
    with stage("iterating the map"):
        singular, radius = networks.contraction(f, X)
        starts = networks.add_noise(key_of_seed(seed), X, _noise, _starts_per_memory)
        own = np.repeat(np.arange(len(X)), _starts_per_memory)
        from_noise, from_test = (networks.recall(networks.iterate_map(f, x, _iterations), X) for x in (starts, X_test))
    return {
        "largest_singular_value": float(singular.max()),
        "largest_spectral_radius": float(radius.max()),
        "attractors": int((radius < 1).sum()),
        "recalled_from_noise": float(from_noise[np.arange(len(own)), own].mean()),
        "recalled_from_test": float(from_test.any(axis=1).mean()),
    }


def _anomalies(results: Results) -> list[Row]:
    """Errors of the autoencoders that are to find anomalies, over seeds."""
    found = groups(where(results.rows, name=("linear, solved", "linear, trained", "bottleneck")), ["name"])
    shown = {"test_loss": ".2f", "anomaly_auc": ".3f"}
    own = ({of: mean_std([row[of] for row in rows], form) for of, form in shown.items()} for rows in found.values())
    return [{"name": name, **fields} for (name,), fields in zip(found, own, strict=True)]


_named = [Column("autoencoder", "name"), Column("half the squared error", "test_loss")]
ANOMALIES = Table([*_named, Column("area under the ROC curve", "anomaly_auc")], _anomalies)
_maps = Table(
    [
        Column("network", "name"),
        Column("AUC", "anomaly_auc", ".3f"),
        *(Column(f"largest {x}", f"largest_{x.replace(' ', '_')}", ".3f") for x in ("singular value", "spectral radius")),
        Column("attractors", "attractors", "d"),
        *(Column(f"from {x} %", f"recalled_from_{x}", ".0f", 100) for x in ("noise", "test")),
    ],
    rows=lambda results: [row for row in results.rows if "attractors" in row],
    note="A training example whose Jacobian has a spectral radius below 1 attracts the iterates of the map.",
)
_of_autoencoders = [RESULTS, CURVES, section("Anomalies", ANOMALIES), section("Memories", _maps)]
_title = "launch.networks autoencoder"
AUTOENCODER = Experiment("networks", AutoencoderConfig, _measure_autoencoders, _of_autoencoders, check=checked, title=_title)


# --- comparisons -----------------------------------------------------------------------------------------------------------

_saturation = 6.0  # of the output biases: a sigmoid has 0.9975, and a slope of 0.0025
_deep = 5  # hidden layers of the comparison of initialisers, as in Glorot & Bengio (2010)


class Variant(NamedTuple):
    """A network to train, and how.

    group: the panel of the figure; value: of what varies, for groups drawn against a number. rates: to try; the best
    has the lowest mean dev loss. batch_size 0: all examples. start: from the random variables.
    """

    name: str
    network: FullyConnected
    group: str = ""
    value: float | None = None
    objective: ObjectiveName = "softmax_cross_entropy"
    optimizer: str = "sgd"
    rates: tuple[float, ...] = (0.1,)
    batch_size: int = 32
    epochs: int = 20
    start: Callable[[dict[str, Any]], dict[str, Any]] = lambda variables: variables


class Outcome(NamedTuple):
    """A variant at its best rate, from S seeds.

    Mean dev losses of all rates, infinite where a run diverged; scores after the last epoch, such as `train_loss`; the dev loss
    and accuracy by epoch, from the start on; the steps of each run.
    """

    rate: float
    rate_losses: Float[np.ndarray, " R"]
    scores: dict[str, Float[np.ndarray, " S"]]
    curves: dict[str, Float[np.ndarray, "S E_1"]]
    steps: int


def train_variant(variant: Variant, data: Data, seeds: Sequence[int]) -> Outcome:
    """Train a variant from every seed at every rate, and keep the best rate."""
    M, network, loss = len(data.train.X), variant.network, objective(variant.objective)
    size = min(variant.batch_size or M, M)
    steps, epochs = M // size, range(1, variant.epochs + 1)
    orders = [[epoch_order(seed, epoch, M)[: steps * size].reshape(steps, size) for epoch in epochs] for seed in seeds]
    parts = {name: tuple(_arrays(*getattr(data, name))) for name in ("train", "dev", "test")}
    X, Y = parts["train"]

    def scores(state: Any, *names: str) -> dict[str, Array]:
        found = {}
        for name in names:
            X, Y = parts[name]
            z = network_outputs(network, state.variables, X)
            right = (z.argmax(axis=1) == Y.argmax(axis=1)).mean(dtype=z.dtype)
            found |= {f"{name}_loss": loss(z, Y).mean(), f"{name}_accuracy": right}
        return found

    def run(key: Array, order: Array, rate: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        optimizer = make_optimizer(variant.optimizer, rate)
        step = network_step(network, loss, optimizer, seed=key)
        start = initial_state(variant.start(init_variables(network, key, X[:2])), optimizer)

        def epoch(state: Any, order: Array) -> tuple[Any, dict[str, Array]]:
            state, _ = jax.lax.scan(lambda state, m: (step(state, (X[m], Y[m]))[0], None), state, order)
            return state, scores(state, "dev")

        state, later = jax.lax.scan(epoch, start, order)
        return scores(state, *parts), jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), scores(start, "dev"), later)

    every = jax.jit(jax.vmap(jax.vmap(run, (0, 0, None)), (None, None, 0)))
    keys, rates = jnp.stack([key_of_seed(seed) for seed in seeds]), jnp.asarray(variant.rates, jnp.float32)
    found = every(keys, jnp.asarray(np.array(orders), jnp.int32), rates)
    last = np.asarray(found[0]["dev_loss"], np.float64).mean(axis=1)
    rate_losses = np.where(np.isfinite(last), last, np.inf)
    best = int(rate_losses.argmin())
    ends, curves = jax.tree.map(lambda leaf: np.asarray(leaf[best], np.float64), found)
    return Outcome(variant.rates[best], rate_losses, ends, curves, variant.epochs * steps)


def variants_of(config: CompareConfig, outputs: int) -> Iterator[Variant]:
    """The variants of the comparison that the flags name."""
    make = functools.partial(Variant, rates=config.rates, epochs=config.epochs)

    def network(layers: int, **flags: Any) -> FullyConnected:
        return FullyConnected((config.width,) * layers, outputs, **flags)

    match config.what:
        case "normalisation":
            for norm, residual, depth in itertools.product(get_args(NormName), (False, True), config.depths):
                group = ("no norm" if norm == "none" else f"{norm} norm") + ", residual" * residual
                yield make(f"{group}, depth {depth}", network(depth, norm=norm, residual=residual), group, depth)
        case "objectives":
            tanh, starts = network(1, activation="tanh", output_scale=0.1), {"saturated": {"start": saturate}, "small": {}}
            optimizers = {"sgd": config.rates, "adam": tuple(rate / 10 for rate in config.rates)}
            for (optimizer, rates), start, name in itertools.product(optimizers.items(), starts, get_args(ObjectiveName)):
                group = f"{'descent' if optimizer == 'sgd' else optimizer}, {start} outputs"
                plan: Any = {"optimizer": optimizer, "rates": rates, "batch_size": 0, "epochs": 10 * config.epochs}
                yield make(f"{name}, {group}", tanh, group, objective=name, **plan, **starts[start])
        case "initializers":
            deep = functools.partial(network, _deep, activation="tanh", bias=False)
            for law in get_args(InitializerName):
                yield make(law, deep(weights=law), "initialisers")
            for scale in (0.1, 0.3, 1.0, 3.0, 10.0):
                yield make(f"glorot_normal x {scale:g}", deep(weights="glorot_normal", weight_scale=scale), "scales", scale)


def saturate(variables: dict[str, Any]) -> dict[str, Any]:
    """The network with output biases of ±6, by turns."""
    output = variables["params"]["output"]
    signs = 1 - 2 * (jnp.arange(len(output["bias"])) % 2)
    biases = _saturation * signs.astype(output["bias"].dtype)
    return {**variables, "params": {**variables["params"], "output": {**output, "bias": biases}}}


def _measure_variants(config: CompareConfig, folder: RunFolder) -> Iterator[Part]:
    """Every variant from every seed."""
    data = open_pictures(config)
    for variant in variants_of(config, data.outputs):
        yield {"variant": variant.name}, functools.partial(_variant_rows, config, folder, variant, data)


def _variant_rows(config: CompareConfig, folder: RunFolder, variant: Variant, data: Data) -> list[Row]:
    """Train a variant and log its curves; diverged runs have no numbers."""
    seeds, begin = range(config.seed, config.seed + config.seeds), time.perf_counter()
    with stage(f"{config.what}: {variant.name}"):
        outcome = train_variant(variant, data, seeds)
    shared: dict[str, Any] = {"comparison": config.what, "variant": variant.name, "group": variant.group}
    curves = {name: [_finite(seed) for seed in curve] for name, curve in outcome.curves.items()}
    folder.log(event="curves", **shared, **curves, rates=list(variant.rates), rate_losses=_finite(outcome.rate_losses))
    shared |= {"value": variant.value, "learning_rate": outcome.rate, "steps": outcome.steps, **data.about}
    shared["seconds"] = (time.perf_counter() - begin) / len(seeds)
    known = np.isfinite([values for name, values in outcome.scores.items() if name.endswith("loss")]).all(axis=0)
    scores = {name: _finite(np.where(known, values, np.nan)) for name, values in outcome.scores.items()}
    return [{**shared, "seed": seed, **{name: own[n] for name, own in scores.items()}} for n, seed in enumerate(seeds)]


def _finite(values: Any) -> list[float | None]:
    """Numbers for JSON."""
    return [x if np.isfinite(x) else None for x in np.asarray(values, float).tolist()]


def mean_std(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation."""
    return f"{mean(values):{form}}" + (f" ± {stdev(values):{form}}" if len(values) > 1 else "")


def summaries(results: Results, **fields: Any) -> list[Row]:
    """Mean ± standard deviation over seeds, a line for each variant."""
    summarised, lines = {"train_accuracy": (100, ".1f"), "test_accuracy": (100, ".1f"), "dev_loss": (1, ".3f")}, []
    for own in groups(where(results.rows, **fields), ["variant"]).values():
        line = {**own[0], "variant": own[0]["variant"].replace("_", " ")}
        for name, (scale, form) in summarised.items():
            values = [scale * row[name] for row in own if row.get(name) is not None]
            line[name] = mean_std(values, form) if len(values) == len(own) else "all rates diverge"
        lines.append(line)
    return lines


_against = {"normalisation": "hidden layers", "initializers": "factor on the weights"}


def _curves(results: Results) -> list[Row]:
    """Dev accuracy by epoch, or test accuracy by number."""
    numbered = [row for row in results.rows if row.get("value") is not None]
    rows: list[Row] = [
        {"x": row["value"], "y": 100 * row["test_accuracy"], "hue": row["group"], "panel": f"by {_against[row['comparison']]}"}
        for row in numbered
        if row.get("test_accuracy") is not None
    ]
    for event in results.events("curves", "variant"):
        hue, panel = event["variant"].removesuffix(f", {event['group']}").replace("_", " "), event["group"]
        if not where(numbered, variant=event["variant"]):
            percent = 100 * np.array(event["dev_accuracy"], float).T  # by epoch and seed
            rows.append({"x": range(len(percent)), "y": percent.tolist(), "hue": hue, "panel": panel})
    return rows


_columns = [
    Column("variant", "variant"), Column("steps", "steps", ",d"), Column("best rate", "learning_rate", ".3g"),
    Column("train %", "train_accuracy"), Column("test %", "test_accuracy"), Column("dev loss", "dev_loss"),
]  # fmt: skip
SCALES = Table(_columns, lambda results: summaries(results, group="scales"))
BY_VALUE = pivot_table(  # of variants with a number, such as a depth
    [Column("test %", "group")],
    "number",
    Column("", "test_accuracy"),
    lambda results: [{**line, "number": f"{n:g}"} for line in summaries(results) if (n := line.get("value")) is not None],
)
_by_panel = {f"by {what}": {"xlabel": what, "ylabel": "test accuracy (%)", "xscale": "log"} for what in _against.values()}
_shown: dict[str, Any] = {"axes": {"xlabel": "epochs", "ylabel": "dev accuracy (%)"}, "by_panel": _by_panel, "size": (4.6, 3.2)}
_figure = Lines("comparison", "x", "y", "hue", "panel", _curves, **_shown)
_of_comparisons = [Table(_columns, summaries), BY_VALUE, _figure]
COMPARE = Experiment(
    "networks", CompareConfig, _measure_variants, _of_comparisons, check=checked, title="launch.networks compare"
)
