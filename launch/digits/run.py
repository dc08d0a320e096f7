"""The experiment of launch.digits: images -> classifiers -> accuracies, figures, report.

Its views, and a model of a run as a function of images, for launch.classify.
"""

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import check_grey_levels, pixel_features, read_grey_images, size
from jexplicit.nn.networks import ConvolutionalNetwork, FullyConnected, network_outputs
from jexplicit.runs.bounds import config_of, refuses
from jexplicit.runs.devices import full_precision
from jexplicit.runs.files import host_bytes, local_path, read_config, read_run
from jexplicit.runs.loop import is_checkpoint
from jexplicit.runs.progress import console, show, stage
from jexplicit.solvers.explicit import dense_cooccurrence, priming_scan, stack_logits
from launch.digits import optimum, solved, trained
from launch.digits.config import PRESETS, Config
from launch.digits.solved import Parts, Problem, load_model, row_name
from launch.kit.experiment import Experiment, RunFolder
from launch.kit.views import (
    COLOURS,
    Column,
    Images,
    Lines,
    Results,
    Row,
    Section,
    Table,
    View,
    figure,
    legend_outside,
    log_ticks,
    picture,
    where,
)


def epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


COLUMNS = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("test %", "test_accuracy", ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100),
    Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100),
    Column("epochs", epochs),
    Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("seconds", "seconds", ".1f"),
)
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
FAIR = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("TFLOP", "flops", ".2f", 1e-12),
)


def patient(rows: Sequence[Row]) -> list[Row]:
    """Without the rows of `rise`, a rule of stopping of earlier versions."""
    return [row for row in rows if row.get("stop") != "rise"]


def table(**fields: Any) -> Table:
    """A table of the rows with these values."""
    return Table(COLUMNS, lambda results: where(patient(results.rows), **fields))


ALL = Table(COLUMNS, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = table(method=("explicit", "delta", "cold", "warm"))
SOLVED = table(method=("explicit", "scaling", "quadratic", "features"), layers=1)
KERNEL = table(method=("kernel", "feature-machine"))
_FITTED = ("kernel", "feature-machine", "trained_readout", "cnn", "network")
OPPONENTS = Table(FAIR, lambda results: where(patient(results.rows), method=_FITTED))


def methods(results: Results) -> list[str]:
    """Test error against seconds: blue without backpropagation, orange trained by gradients."""
    with figure(results.path / "figures" / "methods.png", size=(6.6, 4.6)) as axes:
        draw_errors(axes[0, 0], patient(results.rows))
    return picture(results, "methods", "test error against seconds")


def draw_errors(ax: Any, rows: Sequence[Row], loaded: Sequence[Row] = ()) -> None:
    """A named point for every model; hollow if timed on shared cores."""
    for row in (*rows, *loaded):
        x, y, name = max(row["seconds"], 1e-3), max(100 * (1 - row["test_accuracy"]), 1e-2), row_name(row)
        colour = COLOURS[not row["backprop_free"]]
        ax.plot(x, y, marker="o", color=colour, markerfacecolor="white" if row in loaded else colour)
        left = name.startswith(("cold", "scaling", "kernel, least", "trained"))
        place = {"xytext": (-6 if left else 6, -3), "textcoords": "offset points", "ha": "right" if left else "left"}
        ax.annotate(name, (x, y), fontsize=8, **place)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error (%)")
    ax.margins(x=0.15, y=0.1)
    log_ticks(ax)
    log_ticks(ax, "x")


def bins(results: Results) -> list[Row]:
    """Confidence and accuracy by bin, for bins of 20 images or more."""
    return [
        {"name": event["name"], "confidence": confidence, "accuracy": accuracy}
        for event in results.events("reliability", "name")
        if event["name"].startswith(("explicit, 1 layer", "kernel", "logistic regression", "network"))
        for confidence, accuracy, share in zip(event["confidence"], event["accuracy"], event["share"], strict=True)
        if share * results.rows[0]["test_images"] >= 20
    ]


def diagonal(axes: np.ndarray) -> None:
    """On it a model is right as often as it is confident."""
    axes[0, 0].plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    legend_outside(axes[0, 0])


_axes = {"ylabel": "share of right guesses", "xlim": (0, 1.01), "ylim": (0, 1.01)}
_reliable: Any = {"axes": _axes, "size": (6.6, 4.0), "finish": diagonal}
RELIABILITY = Lines("reliability", "confidence", "accuracy", "name", rows=bins, **_reliable)


def class_columns(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """Each class's column of U, minus the mean over classes."""
    grid, row = {}, results.rows[0]
    for model in ("explicit", "scaling", "warm", "cold"):
        if (path := results.path / "checkpoints" / f"{model}_1").is_dir():
            U = np.asarray(jax.tree.leaves(load_model(path))[0]).reshape(row["height"], row["width"], -1)
            U = U - U.mean(axis=-1, keepdims=True)
            limit = np.quantile(np.abs(U), 0.99)
            grid[model] = {str(i): U.clip(-limit, limit)[..., i] for i in range(U.shape[-1])}
    return grid


def data_lines(results: Results) -> list[str]:
    """What the rows were measured on."""
    row = results.rows[0]
    return [
        f"Data `{row['data']}`: {row['train_images']:,} train and {row['test_images']:,} test images of {row['height']} x "
        f"{row['width']}, {row['outputs']} classes, mean L1 norm {row['mean_norm']:.2f}, sha256 `{row['sha256'][:16]}`.",
        "",
    ]


_columns = "Each class's column of U, minus the mean over classes: red is evidence for the class, blue against it."
VIEWS: Sequence[View] = [
    data_lines,
    ALL,
    OPPONENTS._replace(note="Fitted to the same nine tenths of the training images; the solved ones then to all of them."),
    Section("One loss, four optimisers", [optimum.OPTIMUM]),
    methods,
    Section("Explicit, cold and warm", [PAPER]),
    Section("Calibration", [RELIABILITY], note="Below the diagonal a model is too sure; bins have 20 images or more."),
    Section("Pictures", [Images("columns", class_columns, scale=False, shared="row", size=(0.95, 1.1))], note=_columns),
]


_images_per_call = 1000


class Classifier(NamedTuple):
    """A model of a run: its row, labels and logits [M, N]."""

    row: Row
    classes: tuple[str, ...]
    logits: Callable[[np.ndarray], Array]


def load_classifier(run: str, **wanted: Any) -> Classifier:
    """The most accurate model of a run among the wanted ones.

    Args:
        run: folder of a run of launch.digits.
        wanted: values of method, layers, features and solver in results.json; None for any.

    Raises:
        ValueError: no such run or model, a run of another version, or a damaged checkpoint.
    """
    stored, rows = read_run(run, "digits")
    if set(stored) != {field.name for field in fields(Config)}:
        raise ValueError(f"{run} is a run of another version: fit its models again, by jexplicit digits with another --out")
    config = config_of(Config, stored, f"restore it in {run}, or give another run")
    folder = local_path(run, "--run") / "checkpoints"
    saved = [row for row in rows if is_checkpoint(folder / solved.model_name(row))]
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not (fitting := where(saved, **wanted)):
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(map(row_name, saved)) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    row = solved.most_accurate(fitting)
    params = load_model(folder / solved.model_name(row))
    weights = load_model(folder / row["features"]) if row["method"] in solved.WITH_FEATURES else {}

    def logits(X: np.ndarray) -> Array:
        if row["features"] in ("kernel", "feature-machine"):
            return solved.kernel_logits(config, weights, params, X, row["levels"])
        if row["method"] == "features":
            return _logits(row, params, solved.explicit_features(X, row["levels"], weights))
        H = jnp.asarray(pixel_features(X, row["levels"]))
        if row["method"] == "cnn":
            return trained.network_logits(ConvolutionalNetwork((row["height"], row["width"]), row["outputs"]))(params, H)
        return _logits(row, params, H)

    return Classifier(row, tuple(row.get("classes") or map(str, range(row["outputs"]))), logits)


@full_precision
def _logits(row: Row, params: Any, H: Array) -> Array:
    """Logits of features by a network, a stack of softmax layers, or a layer."""
    if row["method"] == "network":
        hidden = len(params["output"]["kernel"])
        return network_outputs(FullyConnected((hidden,), row["outputs"]), {"params": params}, H)
    if row["method"] in ("cold", "warm"):
        return stack_logits([params[f"layer_{n}"]["kernel"] for n in range(1, row["layers"] + 1)], H)
    if row["method"] == "explicit":
        return stack_logits(params, H)
    return solved.layer_inputs(row, H) @ params["U"] + params["intercept"][None, :]


def classify(config: Any) -> dict[str, Any]:
    """launch.classify: load the model, read the images, print a line for each."""
    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    wanted = {name: getattr(config, name) for name in ("method", "layers", "features", "solver")}
    model = load_classifier(config.run, **wanted)
    name, accuracy = row_name(model.row), model.row["test_accuracy"]
    console.print(f"model {name} of {config.run}, test accuracy {100 * accuracy:.2f} %", soft_wrap=True)
    resize = (read_config(config.run) or {}).get("resize")
    names, X = stack_images(read_grey_images(config.images, model.row["levels"], resize), model.row, config.run)
    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    P = np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])
    found = []
    for image, p in zip(names, P, strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": accuracy, "images": found}


def stack_images(images: Sequence[tuple[str, np.ndarray]], row: Row, run: str) -> tuple[list[str], np.ndarray]:
    """The names of images, and the images as one array.

    Raises:
        ValueError: an image of another size or range than those that the model of a row was fitted on.
    """
    shape = (row["height"], row["width"])
    remedy = f"the models of {run} read {size(shape)}: resize it, with Pillow: image.resize({shape[::-1]})"
    for name, image in images:
        if image.shape != shape:
            raise ValueError(f"{name} is {size(image.shape)}, but {remedy}")
    names, X = [name for name, _ in images], np.stack([image for _, image in images])
    brightest = names[int(X.max(axis=(1, 2)).argmax())]
    check_grey_levels(X, row["levels"], f"images such as {brightest}")
    return names, X


_shared = {"epochs": 0, "priming_number": None, "backprop_free": True}  # of rows whose methods have no others
_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies
_of_descriptors = {"kernel", "feature-machine", "trained_readout", "optimum"}


def parts_of(problem: Problem, method: str) -> Parts:
    """The models of a method."""
    trainings = {"trained_readout": trained.trained_readout, "network": trained.network, "cnn": trained.cnn}
    match method:
        case "optimum":
            return optimum.optimum(problem)
        case "features":
            return solved.features(problem)
        case "kernel" | "feature-machine":
            return solved.kernel(problem, method)
        case "cold" | "warm":
            return trained.stacks(problem, method)
    return trainings[method](problem) if method in trainings else solved.pixels(problem, method)


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other."""
    methods = set(config.methods)
    yield not (methods and config.layers), "--methods and --layers need at least one value each"
    yield {"kernel", "feature-machine"} & methods and not config.ridges, "--ridges needs at least one value"
    yield "feature-machine" in methods and not config.powers, "--powers needs at least one value"


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the images."""
    check(config)
    side = min(solved.read(config).train_images.shape[1:])
    small = f"--methods features of images {side} pixels wide: use images of at least 5, or leave it out"
    yield "features" in config.methods and side < 5, small
    halved = f"--methods cnn of images {side} pixels wide, which it halves twice: use images of at least 4, or leave it out"
    yield "cnn" in config.methods and side < 4, halved
    if not _of_descriptors & set(config.methods):
        return
    octaves, wide = solved.most_octaves(side), f"of images {side} pixels wide"
    yield (config.octaves or 0) > octaves, f"--octaves {config.octaves} {wide}: use at most {octaves}"
    yield solved.grid_cells(config, side) > side, f"--grid {config.grid} {wide}: use at most {side} cells"
    D, present = 2 * config.frequencies, host_bytes()
    needed, matrices = 4 * _matrices * D**2, f"{_matrices} matrices of {D} x {D} numbers"
    machine = f"this machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
    taken = f"{matrices} take {needed / 1e9:,.0f} GB, and {machine}"
    yield needed > present, f"--frequencies {config.frequencies}: {taken}"


def measure(config: Config, folder: RunFolder) -> Parts:
    """The accuracy by priming number, and every method."""
    problem = solved.make_problem(config, folder)
    images, data = problem.images, solved.about(problem)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(problem)
    for method in config.methods:
        for key, part in parts_of(problem, method):
            yield key, functools.partial(_complete, problem, part, data)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


def _complete(problem: Problem, part: Callable[[], Iterable[Row]], data: Row) -> list[Row]:
    return [{**_shared, **row, **solved.stored(problem, row), **data} for row in part()]


def write_scan(problem: Problem) -> None:
    """Write scan.csv: the explicit solution's accuracy at K = 1 .. D."""
    with stage("priming scan"):
        F = dense_cooccurrence(problem.train.H, problem.train.Y)
        K = jnp.arange(1, problem.train.H.shape[1] + 1, dtype=F.dtype)
        columns = [K, *(priming_scan(s.H, F, s.labels, K).accuracy for s in (problem.train, problem.test))]
        lines = [f"{k:g},{train:.6f},{test:.6f}" for k, train, test in zip(*map(np.asarray, columns), strict=True)]
    (problem.folder.path / "scan.csv").write_text("\n".join(["K,train_accuracy,test_accuracy", *lines]) + "\n")


_flags: Any = {"presets": PRESETS, "check": check_images, "extend": ("methods", "layers")}
EXPERIMENT = Experiment("digits", Config, measure, VIEWS, title="Digits: solved and trained", **_flags)
