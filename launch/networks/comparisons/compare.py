"""launch.networks compare: one part of a network or of its training exchanged, every variant from several seeds."""

import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.diagnostics import hidden_layers
from jexplicit.nn.networks import init_variables, network_outputs
from jexplicit.nn.optimizers import make_optimizer
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.studies.gradient_noise import gradient_noise
from jexplicit.nn.studies.trajectories import SURFACES, trajectory
from jexplicit.runs.progress import stage
from jexplicit.solvers.metrics import recall_by_class
from launch.kit.experiment import Experiment, Part
from launch.kit.figures import COLOURS, figure, legend_outside
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, mean_std, where
from launch.kit.tables import Column
from launch.kit.views import Bars, Lines, Section, Table, picture, pivot_table
from launch.networks.comparisons.choices import variants_of
from launch.networks.comparisons.variants import Variant, train_variant
from launch.networks.config import CompareConfig, checked
from launch.networks.data import Data, finite, open_pictures
from launch.networks.diagnostics import HISTOGRAMS, LAYERS, watch

_watched = 256  # examples whose sensitivities are measured
_draws = 50  # of batches of each size
_path_steps = 40
_path_rates = {"sgd": 0.09, "momentum": 0.03, "nesterov": 0.03, "adagrad": 0.9, "rmsprop": 0.15, "adam": 0.3}
_summarised = {"train_accuracy": (100, ".1f"), "test_accuracy": (100, ".1f"), "dev_loss": (1, ".3f")}
_when = {"start": "before training", "end": "after"}
_against = {"normalisation": "hidden layers", "initializers": "factor on the weights", "dropout": "dropout"}
_by_panel = {
    f"by {what}": {"xlabel": what, "ylabel": "test accuracy (%)", "xscale": "linear" if what == "dropout" else "log"}
    for what in _against.values()
}


def measure(config: CompareConfig, folder: RunFolder) -> Iterator[Part]:
    """Every variant from every seed."""
    _, data = open_pictures(config, "compare")
    for variant in variants_of(config, data):
        yield {"variant": variant.name}, functools.partial(measure_variant, config, folder, variant, data)


def measure_variant(config: CompareConfig, folder: RunFolder, variant: Variant, data: Data) -> list[Row]:
    """Train a variant, and log its curves and what the comparison looks at; a run that diverged has no numbers."""
    seeds, begin, own = range(config.seed, config.seed + config.seeds), time.perf_counter(), variant.data or data
    with stage(f"{config.what}: {variant.name}"):
        outcome = train_variant(variant, data, seeds)
        start = variant.start(init_variables(variant.network, jax.random.key(config.seed), data.train.X[:2]))
        end = jax.tree.map(lambda leaf: leaf[0], outcome.variables)
        if config.what in ("activations", "initializers"):
            for when, variables in (("start", start), ("end", end)):
                watch(folder, variant.name, variant.network, variables, objective(variant.objective), data, when)
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
    shared |= {
        "value": variant.value,
        "learning_rate": outcome.rate,
        "rates": len(variant.rates),
        "batch_size": min(variant.batch_size or len(own.labels), len(own.labels)),
        "epochs": variant.epochs,
        "steps": outcome.steps,
        "seconds": (time.perf_counter() - begin) / len(seeds),
        **{name: data.about[name] for name in ("data", "sha256")},
        "train_examples": len(own.labels),
    }
    known = np.isfinite([values for name, values in outcome.scores.items() if name.endswith("loss")]).all(axis=0)
    scores = {name: finite(np.where(known, values, np.nan)) for name, values in outcome.scores.items()}
    return [{**shared, "seed": seed, **{name: own[n] for name, own in scores.items()}} for n, seed in enumerate(seeds)]


def log_sensitivities(folder: RunFolder, variant: Variant, variables: Any, data: Data) -> None:
    """The size of dJ/dz of the output and of the hidden layer, root mean square over examples."""
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
    found = gradient_noise(loss, variables["params"], X, Y, jax.random.key(seed), sizes=sizes, draws=_draws)
    for size, error, predicted, cosine in zip(*found[:4], strict=True):
        numbers = {"size": int(size), "error": float(error), "predicted": float(predicted), "cosine": float(cosine)}
        folder.log(event="noise", when=when, scale=found.scale, **numbers)


def log_recall(folder: RunFolder, variant: Variant, variables: Any, data: Data) -> None:
    """Recall by class on the test examples, of every seed, and how many training examples the class had."""
    X, labels = jnp.asarray(data.test.X), jnp.asarray(data.test.Y.argmax(axis=1))
    guesses = jax.vmap(lambda variables: network_outputs(variant.network, variables, X).argmax(axis=1))(variables)
    recalls = np.asarray(jax.vmap(lambda g: recall_by_class(g, labels, data.outputs))(guesses), np.float64)
    counts = np.bincount((variant.data or data).labels, minlength=data.outputs)
    folder.log(event="recall", name=variant.name, counts=counts.tolist(), recalls=recalls.tolist())


def summaries(results: Results, **fields: Any) -> list[Row]:
    """One line for each variant: mean ± standard deviation over its seeds, %, and dev losses; none where a seed diverged."""
    lines = []
    for own in groups(where(results.rows, **fields), ["variant"]).values():
        line = {**own[0], "variant": own[0]["variant"].replace("_", " ")}
        for name, (scale, form) in _summarised.items():
            values = [scale * row[name] for row in own if row.get(name) is not None]
            line[name] = mean_std(values, form) if len(values) == len(own) else "all rates diverge"
        lines.append(line)
    return lines


def variants(*groups: str) -> Table:
    """The table of the variants of some groups; default, of all."""
    columns = [
        Column("variant", "variant"),
        Column("steps", "steps", ",d"),
        Column("best rate", "learning_rate", ".3g"),
        *(Column(f"{part} %", f"{part}_accuracy") for part in ("train", "test")),
        Column("dev loss", "dev_loss"),
    ]
    return Table(columns, rows=lambda results: summaries(results, **({"group": groups} if groups else {})))


def _by_layer(results: Results) -> list[Row]:
    """The spread of activations and gradients in the first and the last hidden layer before training."""
    layers = groups(
        where(results.events("layer", "name", "when", "layer"), when="start"), lambda e: e["name"].replace("_", " ")
    )
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


def _errors(results: Results) -> list[Row]:
    return [{**row, "error": float(row["cell"])} for row in _noise(results) if "cosine" not in row["what"]]


def _recalls(results: Results) -> Iterator[Row]:
    """Recall by class of every seed, %, and its mean over classes."""
    for event in results.events("recall", "name"):
        recalls = 100 * np.array(event["recalls"])
        for c, (number, own) in enumerate(zip(event["counts"], recalls.T, strict=True)):
            yield {"name": event["name"], "class": f"{c} ({number})", "recall": own, "cell": f"{own.mean():.0f}"}
        yield {"name": event["name"], "class": "mean", "recall": recalls.mean(axis=1), "cell": f"{recalls.mean():.1f}"}


def _curves(results: Results) -> list[Row]:
    """Dev accuracy by epoch, a panel for each group; of variants with numbers, such as depths, test accuracy by number."""
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


def paths_figure(results: Results) -> list[str]:
    """Paths of optimisers on a ravine and from near a saddle, and how far their values are above the lowest."""
    with figure(results.path / "figures" / "paths.png", 2, 2, size=(8.4, 6)) as axes:
        for (top, bottom), (name, surface) in zip(axes.T, SURFACES.items(), strict=True):
            limits = surface.start[0] - 0.5, -surface.start[0] / 2 + 0.5
            x, y = np.meshgrid(np.linspace(*limits, 200), np.linspace(-1.6, 1.6, 200))
            heights = np.asarray(surface.f(jnp.stack([x, y])))
            top.contour(x, y, heights - surface.lowest, levels=np.geomspace(0.02, 40, 14), colors="0.8", linewidths=0.6)
            for (optimizer, rate), colour in zip(_path_rates.items(), COLOURS, strict=False):
                w = np.asarray(trajectory(make_optimizer(optimizer, rate), surface, _path_steps))
                top.plot(*w.T, "o-", color=colour, markersize=2, linewidth=1, label=f"{optimizer}, rate {rate:g}")
                above = np.maximum([float(surface.f(point)) - surface.lowest for point in w], 1e-8)
                bottom.plot(above, color=colour, linewidth=1)
            top.set(title=name, xlabel="$w_1$", ylabel="$w_2$", xlim=limits, ylim=(-1.6, 1.6))
            bottom.set(yscale="log", xlabel="step", ylabel="above the minimum")
        legend_outside(axes[0, 1], fontsize=8)
    return picture(results, "paths")


VARIANTS, OPTIMIZERS, SCALES = variants(), variants("optimisers"), variants("scales")
MOMENTUM = variants("momentum", "schedules, descent")
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
_shown: dict[str, Any] = {"axes": {"xlabel": "epochs", "ylabel": "dev accuracy (%)"}, "by_panel": _by_panel, "size": (4.6, 3.2)}
COMPARISON = Lines("comparison", "x", "y", "hue", "panel", _curves, row="line", legend="below", **_shown)
_log = {"xscale": "log", "yscale": "log", "xlabel": "batch size", "ylabel": "||g_B - g|| / ||g||"}
_drawn = {f"{when}: drawn": {"marker": "o", "linestyle": ""} for when in _when.values()}
ERRORS = Lines("noise", "size", "error", "what", rows=_errors, styles=_drawn, axes=_log)
RECALL_BARS = Bars("recall", "class", "recall", "name", rows=_recalls, axes={"ylabel": "recall (%)"}, size=(8.6, 3.2))
VIEWS = [
    VARIANTS,
    BY_VALUE,
    COMPARISON,
    Section("By layer", [BY_LAYER, LAYERS, HISTOGRAMS], {"comparison": ("activations", "initializers")}),
    Section("Sensitivities", [SENSITIVITIES], {"comparison": "objectives"}),
    Section("The noise of the gradient", [NOISE, ERRORS], {"comparison": "batch-size"}),
    Section("Recall by class", [RECALLS, RECALL_BARS], {"comparison": "samplers"}),
    Section("Paths", [paths_figure], {"comparison": "optimizers"}),
]
EXPERIMENT = Experiment("networks", CompareConfig, measure, VIEWS, check=checked, title="launch.networks compare")
