"""The configuration of launch.digits and its presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.runs.command import Preset

Method = Literal[
    "explicit",
    "delta",
    "mean_cooccurrence",
    "intercept",
    "scaling",
    "quadratic",
    "features",
    "kernel",
    "logistic_regression",
    "network",
    "cold",
    "warm",
    "solved_second",
]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Config:
    """Classify images with networks that are solved instead of trained, and with the same networks trained."""

    GROUPS: ClassVar = {
        "out": "run",
        "data": "images",
        "methods": "models",
        "sweeps": "sweeps",
        "featurizers": "features",
        "descriptor": "kernel",
        "epochs": "training",
        "hidden": "baselines",
        "seed": "run",
    }

    out: str
    """Run folder to write: config, results, scan, figures, report.md and the models."""
    data: str = "digits"
    """Which images. digits: scikit-learn's 8x8 digits, embedded. mnist, fashion_mnist, or any name: the files in --data-dir. A
    path, such as ./shapes or mnist.npz: the files there. tfds:NAME or tfds:DIR: a data set of TensorFlow Datasets."""
    data_dir: str | None = None
    """Grey images of one size: a folder of PNGs, train/LABEL/*.png and test/LABEL/*.png; a folder of idx files with MNIST's
    published names, gzipped or not; or an .npz file with the arrays x_train, y_train, x_test, y_test. Default, the folder of
    the data set's name in $JEXPLICIT_DATA_DIR."""
    limit: Annotated[int, Bounds(at_least=100)] | None = None
    """Use at most this many training images, and as many test images."""
    methods: tuple[Method, ...] = METHODS
    """The models to fit. explicit: the closed form. delta: its exponent corrected. mean_cooccurrence: its exact
    weights (Eq. 14). intercept: log F frozen, w fitted. scaling: iterative scaling from the
    explicit solution. quadratic: sweeps with a bound on the curvature. features: these three on explicit features. kernel:
    least squares and a softmax layer on random Fourier features of patches. cold, warm: Adagrad from random parameters and from
    the explicit solution. logistic_regression: scikit-learn's. network: a hidden layer and backprop. solved_second: a second
    layer, solved in closed form and by sweeps, over the first layer of each trained model."""
    layers: tuple[Annotated[int, Bounds(at_least=1, at_most=8)], ...] = (1, 2)
    """Numbers of softmax layers of explicit, cold and warm."""
    priming_number: Annotated[float, Bounds(at_least=1)] | None = None
    """K of the first layer; default, the mean L1 norm of the training images."""
    sweeps: PositiveInt = 300
    """Sweeps of iterative scaling on pixels and of the intercept's fit."""
    feature_sweeps: PositiveInt = 150
    """Sweeps of iterative scaling on explicit features."""
    quadratic_sweeps: PositiveInt = 30
    """Sweeps with the bound on the curvature."""
    ridge: PositiveFloat = 1e-4
    """Their ridge, in units of the features' mean square."""
    featurizers: tuple[Literal["patches", "random"], ...] = ("patches", "random")
    """patches: convolutions with whitened patches of training images. random: random directions in pixel space."""
    filters: PositiveInt = 64
    """patches: number of filters; each gives two features (its positive and its negative part) per cell of the grid."""
    patch: PositiveInt | None = None
    """patches: height and width of a filter in pixels; default, 6 for images of 28 x 28 and 3 for 8 x 8."""
    grid: PositiveInt | None = None
    """Cells along each side over which responses are pooled; default, for images of 28 x 28 and 8 x 8, 4 and 3 of patches, and
    7 and 4 of scattering."""
    directions: PositiveInt = 1024
    """random: number of directions; each gives two features."""
    threshold: NonNegativeFloat = 1.0
    """Responses below this many standard deviations become 0, so that features are sparse."""
    descriptor: Literal["scattering", "patches"] = "scattering"
    """kernel: what stands for an image. scattering: moduli of wavelets of one and two orders. patches: responses to --filters
    clusters of patches of each of several sizes. Both are averaged over the cells of --grid."""
    octaves: PositiveInt | None = None
    """kernel, scattering: octaves of wavelets; default, 3, and fewer for images below 16 pixels."""
    angles: PositiveInt = 6
    """kernel, scattering: angles of wavelets."""
    patch_sizes: tuple[PositiveInt, ...] = ()
    """kernel, patches: heights and widths of filters; default, odd numbers near a sixth, a quarter and a third of a side. Each
    size has --filters of them."""
    second_filters: NonNegativeInt = 0
    """kernel, patches: filters of a second stage, of 3 x 3 cells of the maps of all others, pooled over 2 x 2 pixels. 0: one
    stage."""
    copies: NonNegativeInt = 0
    """kernel: drawn copies of each training image, a little turned, scaled, sheared and shifted; for small data sets."""
    axes: PositiveInt = 400
    """kernel: principal axes of the pooled responses that a descriptor keeps."""
    frequencies: PositiveInt = 1024
    """kernel: random frequencies; each gives two features, a cosine and a sine."""
    scale: PositiveFloat = 0.7
    """kernel: spread of the frequencies; the kernel is `exp(-scale² d²/2)`, with distances d in units of the root mean square
    norm of descriptors."""
    ridges: tuple[PositiveFloat, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """kernel: ridges, of which a held-out tenth of the training images chooses one."""
    kernel_sweeps: PositiveInt = 6
    """kernel: sweeps of the softmax layer with the bound on the curvature, on nine tenths of the images from least squares, and
    as many on all images from there."""
    epochs: PositiveInt = 100
    """Training: passes over the data, at most."""
    batch_size: PositiveInt = 128
    """Training: images per step."""
    optimizer: str = "adagrad"
    """Training of cold and warm: an optimiser of optax by its name there: adagrad, sgd, adam, rmsprop, ..."""
    learning_rate: PositiveFloat = 0.1
    """Training of cold and warm: learning rate, for the mean loss of a batch. The paper gives one, 0.01, for text only."""
    accumulator: NonNegativeFloat = 0.0
    """Training: initial value of Adagrad's sum of squares. The paper does not give it; optax's default is 0.1."""
    stop: tuple[Literal["rise", "patience"], ...] = ("patience", "rise")
    """Early stopping, a row for each: rise, the paper's rule, as soon as the loss is higher than an epoch before; patience,
    after --patience epochs without a lower one. The model is that of the epoch with the lowest loss so far."""
    stop_on: Literal["held_out", "train", "test"] = "held_out"
    """The loss that decides: on the last tenth of the training images, which are then not trained on; on all training
    images; or on the test images, which is optimistic."""
    patience: PositiveInt = 5
    """Epochs to wait for a lower loss."""
    hidden: PositiveInt = 256
    """network: hidden units; it is trained by Adam with a learning rate of 0.001."""
    logistic_iterations: PositiveInt = 200
    """logistic_regression: iterations of L-BFGS, at most; without regularisation."""
    seed: NonNegativeInt = 0
    """Seed of every random choice: random parameters, order of the data, patches and directions."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_TINY = Config(
    out="runs/digits_tiny", limit=300, epochs=3, sweeps=20, feature_sweeps=20, filters=16, directions=64, logistic_iterations=20
)
_KERNEL: dict[str, Any] = dict(methods=("kernel",), frequencies=4096)
PRESETS = {
    "tiny": Preset(_TINY, "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores. Explicit, 1 layer: 75 %."),
    "digits": Preset(
        Config(out="runs/digits"),
        "the defaults: 8x8 digits, 40 s on 2 CPU cores. Explicit 84.4 %, warm 87.8 %, patches without backpropagation 95.8 %.",
    ),
    "mnist-best": Preset(
        Config(out="runs/mnist_best", data="mnist", **_KERNEL),
        "MNIST without a gradient: 99.6 % in 3 minutes on 2 CPU cores, 2.5 GB.",
    ),
    "images": Preset(
        Config(out="runs/images", **_KERNEL),
        "the same models for the images of --data; 60,000 of 28x28 take as long.",
    ),
    "mnist": Preset(
        Config(out="runs/mnist", data="mnist", frequencies=4096),
        "the paper's experiments and those beyond, 6 minutes on 2 CPU cores. Explicit 83.34 and 83.64 %, warm 92.71 and "
        "92.93 % with one and two layers, without backpropagation 99.59 %.",
    ),
}
