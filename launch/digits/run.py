"""Classify images by networks that are solved instead of trained, and by the same networks trained.

python -m launch.digits --out runs/digits
python -m launch.digits --preset mnist --data-dir DIR --out runs/mnist
"""

import sys
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.counts.dense import dense_cooccurrence
from jexplicit.data.images import Images, check_images, one_hot, pixel_features, read_images
from jexplicit.runs.command import run_command
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import priming_number
from jexplicit.solvers.priming import priming_scan
from launch.digits.config import PRESETS, Config, check
from launch.digits.models import (
    Job,
    Part,
    guesses_path,
    measure_explicit,
    measure_features,
    measure_intercept,
    measure_logistic_regression,
    measure_quadratic,
    measure_scaling,
    saved_params,
)
from launch.digits.report import PICTURES, digits_table, row_name, write_digits_report, write_scan
from launch.digits.training import measure_network, measure_trained


def run(config: Config) -> None:
    """The whole job: images -> features -> solutions, sweeps and training -> scan, figures, report."""
    start = time.perf_counter()
    check(config)
    images = read(config)
    folder = RunFolder(config.out, config, resume=config.resume)
    job = make_job(config, folder, images)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(folder.path, *scan(job))
    for method in config.methods:
        measure(job, method)
    save_pictures(job)
    report = write_digits_report(folder.path)
    console.print(digits_table(folder.rows()))
    seconds = time.perf_counter() - start
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def read(config: Config) -> Images:
    """The images that the config asks for."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir)
    if config.limit:
        parts = (getattr(images, name)[: config.limit] for name in images._fields[1:5])
        images = check_images(Images(images.name, *parts, levels=images.levels))
    return images


def make_job(config: Config, folder: RunFolder, images: Images) -> Job:
    """Features and targets of the train and test images, and what all rows say of them."""

    def part(name: str) -> Part:
        X, labels = getattr(images, f"{name}_images"), getattr(images, f"{name}_labels")
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Part(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train, test = part("train"), part("test")
    norm = float(priming_number(train.H))
    height, width = images.train_images.shape[1:]
    about = {
        "data": images.name,
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


def measure(job: Job, method: str) -> None:
    """The rows of one method."""
    if method in ("cold", "warm"):
        for layers in job.config.layers:
            measure_trained(job, method, layers)
    elif method == "features":
        for kind in job.config.featurizers:
            measure_features(job, kind)
    else:
        {
            "explicit": measure_explicit,
            "intercept": measure_intercept,
            "scaling": measure_scaling,
            "quadratic": measure_quadratic,
            "logistic_regression": measure_logistic_regression,
            "network": measure_network,
        }[method](job)


def save_pictures(job: Job) -> None:
    """Keep what the pictures show: columns of U before and after training, and what the best saved model gets wrong."""
    shape = job.images.train_images.shape[1:]
    pictures = {}
    for title, name in (("explicit", "explicit_1"), ("scaling", "scaling_1"), ("warm", "warm_1"), ("cold", "cold_1")):
        if params := saved_params(job, name):
            pictures[f"U {title}"] = np.asarray(params[0]).reshape(*shape, -1)
    if mistaken := mistakes(job):
        np.savez_compressed(job.folder.path / PICTURES, **mistaken, **pictures)


def mistakes(job: Job, most: int = 40) -> dict[str, Any]:
    """Test images that the most accurate model without backpropagation gets wrong; nothing where there is no such model."""
    rows = [row for row in job.folder.rows() if row["backprop_free"]]
    if not rows:
        return {}
    best = max(rows, key=lambda row: row["test_accuracy"])
    guesses, labels = np.load(guesses_path(job.folder.path, best)), job.images.test_labels
    wrong = np.flatnonzero(guesses != labels)
    shown = wrong[:most]
    title = f"What {row_name(best)} gets wrong: {len(wrong):,} of {len(labels):,} test images, the first {len(shown)}"
    return {"images": job.images.test_images[shown], "labels": labels[shown], "guesses": guesses[shown], "title": title}


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
