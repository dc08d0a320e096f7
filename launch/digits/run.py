"""The whole job of launch.digits: images -> solved and trained classifiers -> accuracies, figures, report."""

import functools
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.data.images import Images, check_images, one_hot, pixel_features, read_images
from jexplicit.nn.optimizers import optax_optimizer
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import dense_cooccurrence, priming_number
from jexplicit.solvers.priming import priming_scan
from launch.digits import methods
from launch.digits.config import Config
from launch.digits.kernel import check_kernel, measure_kernel
from launch.digits.methods import Job, Part
from launch.digits.report import PICTURES, results_table, row_name, write_report, write_scan
from launch.digits.second import check_second, measure_second
from launch.digits.training import measure_network, measure_stacks

MEASURES = {
    "explicit": methods.measure_explicit,
    "delta": methods.measure_delta,
    "mean_cooccurrence": methods.measure_mean_cooccurrence,
    "intercept": methods.measure_intercept,
    "scaling": methods.measure_scaling,
    "quadratic": methods.measure_quadratic,
    "features": methods.measure_features,
    "kernel": measure_kernel,
    "logistic_regression": methods.measure_logistic_regression,
    "network": measure_network,
    "cold": functools.partial(measure_stacks, method="cold"),
    "warm": functools.partial(measure_stacks, method="warm"),
    "solved_second": measure_second,
}


def run(config: Config) -> dict[str, Any]:
    """The whole job: images -> features -> solutions, sweeps and training -> scan, figures, report."""
    start = time.perf_counter()
    check(config)
    images = read(config)
    if "features" in config.methods and "patches" in config.featurizers:
        methods.patch_sizes(config, min(images.train_images.shape[1:]))  # errors come before anything is written
    if "kernel" in config.methods:
        check_kernel(config, min(images.train_images.shape[1:]))
    folder = RunFolder(config.out, config, resume=config.resume)
    job = make_job(config, folder, images)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(folder.path, *scan(job))
    for method in sorted(config.methods, key=lambda name: name == "solved_second"):  # after what it stands on
        MEASURES[method](job)
    save_pictures(job)
    report = write_report(folder.path)
    return present_run(folder, results_table(folder.rows()), report, start)


def read(config: Config) -> Images:
    """The images that the config asks for."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir)
    if config.limit:
        parts = {name: getattr(images, name)[: config.limit] for name in images._fields[1:5]}
        images = check_images(images._replace(**parts))
    return images


def make_job(config: Config, folder: RunFolder, images: Images) -> Job:
    """Features and targets of the images, and the fields that all rows share."""

    def part(X: np.ndarray, labels: np.ndarray) -> Part:
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Part(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train = part(images.train_images, images.train_labels)
    test = part(images.test_images, images.test_labels)
    norm = float(priming_number(train.H))
    height, width = images.train_images.shape[1:]
    about = {
        "data": images.name,
        **({"classes": list(images.classes)} if images.classes else {}),
        "sha256": images.sha256,
        "train_images": len(train.labels),
        "test_images": len(test.labels),
        "height": height,
        "width": width,
        "outputs": images.outputs,
        "levels": images.levels,
        "mean_norm": norm,
    }
    return Job(config, folder, images, train, test, config.priming_number or norm, about)


def scan(job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Priming numbers 1 .. D, and the explicit solution's accuracy on the train and the test images at each."""
    with stage("priming scan"):
        F = dense_cooccurrence(job.train.H, job.train.Y)
        K = jnp.arange(1, job.train.H.shape[1] + 1, dtype=F.dtype)
        train, test = (priming_scan(part.H, F, part.labels, K).accuracy for part in (job.train, job.test))
        return np.asarray(K), np.asarray(train), np.asarray(test)


def save_pictures(job: Job) -> None:
    """Save what the pictures show: columns of U before and after training, and the mistakes of the best model."""
    shape = job.images.train_images.shape[1:]
    names = ("explicit", "scaling", "warm", "cold")
    columns = {name: U for name in names if (U := methods.first_layer(job, f"{name}_1")) is not None}
    if pictures := mistakes(job):
        pictures |= {f"U {name}": np.asarray(U).reshape(*shape, -1) for name, U in columns.items()}
        np.savez_compressed(job.folder.path / PICTURES, **pictures)


def mistakes(job: Job, most: int = 40) -> dict[str, Any]:
    """Test images that the most accurate model without backpropagation misclassifies; empty if there is no such model."""
    rows = [row for row in job.folder.rows() if row["backprop_free"]]
    if not rows:
        return {}
    best = max(rows, key=lambda row: row["test_accuracy"])
    guesses, labels = np.load(methods.guesses_path(job.folder.path, best)), job.images.test_labels
    wrong = np.flatnonzero(guesses != labels)
    shown = wrong[:most]
    title = f"Mistakes of {row_name(best)}: {len(wrong):,} of {len(labels):,} test images, the first {len(shown)}"
    return {"images": job.images.test_images[shown], "labels": labels[shown], "guesses": guesses[shown], "title": title}


def check(config: Config) -> None:
    """Refuse combinations of flags that make no sense, before anything is written."""
    if not config.methods or not config.layers or not config.stop:
        raise ValueError("--methods, --layers and --stop need at least one value each")
    if "features" in config.methods and not config.featurizers:
        raise ValueError("--methods features without --featurizers: give patches, random or both")
    if "solved_second" in config.methods:
        check_second(config)
    if "kernel" in config.methods and not config.ridges:
        raise ValueError("--ridges needs at least one value")
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)
