"""The configuration of launch.digits, its presets, and what it refuses."""

from dataclasses import dataclass
from typing import Literal

import optax

from jexplicit.runs.command import Preset

Method = Literal["explicit", "intercept", "cold", "warm", "scaling", "quadratic", "features", "logistic_regression", "network"]
METHODS: tuple[Method, ...] = (
    "explicit",
    "intercept",
    "scaling",
    "quadratic",
    "features",
    "logistic_regression",
    "network",
    "cold",
    "warm",
)


@dataclass(frozen=True)
class Config:
    """Classify images by networks that are solved instead of trained, and by the same networks trained."""

    out: str
    """Run folder to write: config, results, scan, figures, report.md and the models."""
    data: str = "digits"
    """digits: scikit-learn's 8x8 digits, embedded. mnist, fashion_mnist, or any name: idx files under MNIST's published names.
    tfds:NAME: a data set of TensorFlow Datasets, where that is installed."""
    data_dir: str | None = None
    """Folder of the idx files, gzipped or not; default, the folder of the data set's name in $JEXPLICIT_DATA_DIR."""
    limit: int | None = None
    """Use at most this many training images, and as many test images."""
    methods: tuple[Method, ...] = METHODS
    """explicit: the closed form. intercept: log F frozen, w fitted. scaling: iterative scaling from the explicit solution.
    quadratic: sweeps by a bound on the curvature. features: these three on explicit features. cold, warm: Adagrad from random
    parameters and from the explicit solution. logistic_regression: scikit-learn's. network: a hidden layer and backprop."""
    layers: tuple[int, ...] = (1, 2)
    """Numbers of softmax layers of explicit, cold and warm."""
    priming_number: float | None = None
    """K of the first layer; default, the mean L1 norm of the training images."""
    sweeps: int = 300
    """Sweeps of iterative scaling on pixels and of the intercept's fit."""
    feature_sweeps: int = 150
    """Sweeps of iterative scaling on explicit features."""
    quadratic_sweeps: int = 30
    """Sweeps by the bound on the curvature."""
    ridge: float = 1e-4
    """Ridge of these, in units of the features' mean square."""
    featurizers: tuple[Literal["patches", "random"], ...] = ("patches", "random")
    """patches: convolutions with whitened patches of training images. random: random directions of pixel space."""
    filters: int = 64
    """patches: number of filters; each gives two features (its positive and its negative part) per cell of the grid."""
    patch: int | None = None
    """patches: height and width of a filter in pixels; default, 6 for images of 28 x 28 and 3 for 8 x 8."""
    grid: int | None = None
    """patches: cells along each side over which answers are summed; default, 4 for images of 28 x 28 and 3 for 8 x 8."""
    directions: int = 1024
    """random: number of directions; each gives two features."""
    threshold: float = 1.0
    """Answers below so many standard deviations count as none, so that features are sparse."""
    epochs: int = 100
    """Training: passes over the data, at most."""
    batch_size: int = 128
    """Training: images per step."""
    optimizer: str = "adagrad"
    """Training of cold and warm: an optimiser of optax by its name there: adagrad, sgd, adam, rmsprop, ..."""
    learning_rate: float = 0.1
    """Training of cold and warm: learning rate, of the mean loss of a batch. The paper names one, 0.01, for text alone."""
    accumulator: float = 0.0
    """Training: where Adagrad's sum of squares starts. The paper does not say; optax starts at 0.1."""
    stop: tuple[Literal["rise", "patience"], ...] = ("patience", "rise")
    """Early stopping, a row for each: rise, the paper's rule, as soon as the loss is higher than an epoch before; patience,
    after so many epochs without a lower one. The model is that of the epoch with the lowest loss up to then."""
    stop_on: Literal["held_out", "train", "test"] = "held_out"
    """The loss that decides: of the last tenth of the training images, which then nothing is trained on; of all training
    images; or of the test images, which flatters."""
    patience: int = 5
    """Epochs to wait for a lower loss."""
    hidden: int = 256
    """network: hidden units; it is trained by Adam with a learning rate of 0.001."""
    logistic_iterations: int = 200
    """logistic_regression: iterations of L-BFGS, at most; without regularisation."""
    seed: int = 0
    """Of every random choice: random parameters, order of the data, patches and directions."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_TINY = Config(
    out="runs/digits_tiny", limit=300, epochs=3, sweeps=20, feature_sweeps=20, filters=16, directions=64, logistic_iterations=20
)
PRESETS = {
    "tiny": Preset(_TINY, "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores. Explicit, 1 layer: 75 %."),
    "digits": Preset(
        Config(out="runs/digits"),
        "the defaults: 8x8 digits, 40 s on 2 CPU cores. Explicit 84.4 %, warm 87.8 %, patches without backpropagation 95.8 %.",
    ),
    "mnist": Preset(
        Config(out="runs/mnist", data="mnist"),
        "the paper's experiments and those beyond, 11 minutes on 2 CPU cores. Explicit 83.34 and 83.64 %, warm 92.71 and "
        "92.95 % with one and two layers, patches without backpropagation 98.90 %.",
    ),
}


def check(config: Config) -> None:
    """Refuse flags that make no sense, before anything is written."""
    if not config.methods or not config.layers or not config.stop:
        raise ValueError("--methods, --layers and --stop need at least one value each")
    if min(config.layers) < 1 or max(config.layers) > 8:
        raise ValueError(f"--layers {config.layers}: stacks have 1 to 8 layers")
    if config.limit is not None and config.limit < 100:
        raise ValueError(f"--limit {config.limit}: use at least 100 images")
    if config.priming_number is not None and not 1 <= config.priming_number < float("inf"):
        raise ValueError(f"--priming-number {config.priming_number}: it is at least 1")
    for name in ("sweeps", "feature_sweeps", "quadratic_sweeps", "filters", "directions", "epochs", "batch_size", "patience"):
        if getattr(config, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(config, name)}: it is at least 1")
    if min(config.hidden, config.logistic_iterations) < 1:
        raise ValueError(f"--hidden {config.hidden}, --logistic-iterations {config.logistic_iterations}: both are at least 1")
    if "features" in config.methods and not config.featurizers:
        raise ValueError("--methods features without --featurizers: give patches, random or both")
    if not config.ridge > 0 or config.threshold < 0:
        raise ValueError(f"--ridge {config.ridge} > 0 and --threshold {config.threshold} >= 0 are needed")
    if not config.learning_rate > 0 or config.accumulator < 0:
        raise ValueError(f"--learning-rate {config.learning_rate} > 0 and --accumulator {config.accumulator} >= 0 are needed")
    if not callable(getattr(optax, config.optimizer, None)):
        raise ValueError(f"--optimizer {config.optimizer}: optax has none of this name; try adagrad, sgd, adam or rmsprop")
