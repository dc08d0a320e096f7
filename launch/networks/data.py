"""The examples of launch.networks, and those of the subcommands on images."""

from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.nn.networks import FullyConnected
from jexplicit.runs.progress import console, stage
from launch.networks.config import Pictures


class SplitData(NamedTuple):
    """Inputs and targets of the train, dev or test examples."""

    X: np.ndarray
    Y: np.ndarray


class Data(NamedTuple):
    """The examples.

    labels: [M] classes of the training examples, for balanced batches.
    outputs: N.
    about: fields of the rows of all models on these examples.
    """

    train: SplitData
    dev: SplitData
    test: SplitData
    labels: np.ndarray
    outputs: int
    about: dict[str, Any]


def open_pictures(config: Pictures, command: str) -> tuple[Images, Data]:
    """The images of a subcommand, and their centred examples."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    return images, centred_data(images, command)


def raw_data(images: Images, command: str = "") -> Data:
    """Positive pixel features and one-hot labels; dev is the last tenth of the training images."""
    train, test = (
        SplitData(pixel_features(X, images.levels), one_hot(labels, images.outputs))
        for X, labels in ((images.train_images, images.train_labels), (images.test_images, images.test_labels))
    )
    kept = len(train.X) - max(1, len(train.X) // 10)
    about = {"command": command, "data": images.name, "sha256": images.sha256, "outputs": images.outputs}
    labels = images.train_labels[:kept].astype(np.int64)
    return Data(
        SplitData(train.X[:kept], train.Y[:kept]),
        SplitData(train.X[kept:], train.Y[kept:]),
        test,
        labels,
        images.outputs,
        about,
    )


def centred_data(images: Images, command: str = "") -> Data:
    """Pixels minus the mean training image, divided by their standard deviation, and one-hot labels."""
    data = raw_data(images, command)
    mean = data.train.X.mean(axis=0)
    scale = float((data.train.X - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    train, dev, test = (SplitData((X - mean) / scale, Y) for X, Y in data[:3])
    return data._replace(train=train, dev=dev, test=test)


def image_network(config: Any, data: Data, **changes: Any) -> FullyConnected:
    """The network of the flags, unless changed."""
    flags = {name: getattr(config, name) for name in ("hidden", "activation", "norm", "residual", "dropout", "output_scale")}
    return FullyConnected(**{**flags, "outputs": data.outputs, "weights": config.initializer, **changes})


def finite(values: Any) -> list[float | None]:
    """Numbers for JSON."""
    return [x if np.isfinite(x) else None for x in np.asarray(values, float).tolist()]
