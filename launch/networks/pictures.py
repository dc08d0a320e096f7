"""The images of launch.networks, and fully connected networks for them."""

from typing import Any

import numpy as np

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.nn.networks import FullyConnected
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.networks.config import Pictures
from launch.networks.training import Data, Job, Part


def open_pictures(config: Pictures, folder: RunFolder, command: str) -> tuple[Job, Images, Data]:
    """The job of a subcommand on images, with the images and centred examples."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    about = {"command": command, "data": images.name, "sha256": images.sha256, "outputs": images.outputs}
    return Job(config, folder, about), images, centred_data(images)


def raw_data(images: Images) -> Data:
    """Positive pixel features and one-hot labels; dev is the last tenth of the training images."""
    train, test = (
        Part(pixel_features(X, images.levels), one_hot(labels, images.outputs))
        for X, labels in ((images.train_images, images.train_labels), (images.test_images, images.test_labels))
    )
    kept = len(train.X) - max(1, len(train.X) // 10)
    train, dev = (Part(train.X[where], train.Y[where]) for where in (slice(kept), slice(kept, None)))
    return Data(train, dev, test, labels=images.train_labels[:kept].astype(np.int64), outputs=images.outputs)


def centred_data(images: Images) -> Data:
    """Pixels minus the mean training image, divided by their standard deviation, and one-hot labels."""
    data = raw_data(images)
    mean = data.train.X.mean(axis=0)
    scale = float((data.train.X - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    parts = (Part((X - mean) / scale, Y) for X, Y in data[:3])
    return Data(*parts, labels=data.labels, outputs=data.outputs)


def image_network(config: Any, data: Data, **changes: Any) -> FullyConnected:
    """The network of the flags, unless changed."""
    flags = {name: getattr(config, name) for name in ("hidden", "activation", "norm", "residual", "dropout", "output_scale")}
    return FullyConnected(**{**flags, "outputs": data.outputs, "weights": config.initializer, **changes})
