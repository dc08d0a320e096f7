"""The configuration of launch.digits and its presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from jexplicit.runs.bounds import Bounds, NonNegativeFloat, PositiveFloat, PositiveInt
from launch.kit.command import Preset
from launch.shared.groups import Images, Run

Solved = Literal["explicit", "delta", "scaling", "quadratic", "features", "kernel", "feature-machine"]
Method = Literal[Solved, "logistic_regression", "trained_readout", "network", "cnn", "cold", "warm", "solved_second"]
METHODS: tuple[Method, ...] = tuple(name for name in get_args(Method) if name != "feature-machine")


@dataclass(frozen=True)
class Config(Images, Run):
    """Classify images with networks that are solved instead of trained, and with the same networks trained."""

    GROUPS: ClassVar = {"methods": "models", "sweeps": "sweeps", "featurizers": "features", "descriptor": "kernel"} | {
        **{"epochs": "training", "hidden": "baselines"},
    }

    limit: Annotated[int, Bounds(at_least=100)] | None = None
    """Use at most this many training images, and at most as many test images."""
    methods: tuple[Method, ...] = METHODS
    """The models to fit; default, all but feature-machine. explicit: the closed form. delta: explicit, its exponent
    corrected by one fitted number. scaling: iterative scaling from the explicit solution. quadratic: sweeps with a bound on
    the curvature. features: explicit, scaling and quadratic on explicit features. kernel: least squares and a softmax layer
    on random Fourier features of --descriptor. feature-machine: the same with a metric learned by a recursive feature
    machine. logistic_regression: scikit-learn's. trained_readout: a softmax layer on the features of kernel, trained by
    AdamW. network: one hidden layer, trained by backpropagation. cnn: a convolutional network, trained by AdamW. cold, warm:
    trained by --optimizer from random parameters or from the explicit solution. solved_second: a second layer, solved in
    closed form and by sweeps, on the first layer of each trained model."""
    layers: tuple[Annotated[int, Bounds(at_least=1, at_most=8)], ...] = (1, 2)
    """explicit, cold, warm: numbers of softmax layers, one model each."""
    priming_number: Annotated[float, Bounds(at_least=1)] | None = None
    """Priming number K of the first layer. Default: the mean L1 norm of the training images."""
    sweeps: PositiveInt = 300
    """scaling: number of sweeps."""
    feature_sweeps: PositiveInt = 150
    """features: number of sweeps of iterative scaling."""
    quadratic_sweeps: PositiveInt = 30
    """quadratic, features: number of sweeps with the bound on the curvature."""
    ridge: PositiveFloat = 1e-4
    """quadratic, features: ridge penalty of these sweeps, in units of the features' mean square."""
    featurizers: tuple[Literal["patches", "random"], ...] = ("patches", "random")
    """Explicit features. patches: convolutions with whitened patches of training images. random: projections on random
    directions in pixel space."""
    filters: PositiveInt = 64
    """patches: number of filters. Each gives two features, its positive and its negative part, per cell of the grid."""
    patch: PositiveInt | None = None
    """patches: height and width of a filter in pixels. Default: 6 for images of 28 x 28, 3 for 8 x 8."""
    grid: PositiveInt | None = None
    """Number of cells along each side over which responses are pooled. Default, for images of 28 x 28 and 8 x 8: 4 and 3 with
    patches, 7 and 4 with scattering."""
    directions: PositiveInt = 1024
    """random: number of directions. Each gives two features."""
    threshold: NonNegativeFloat = 1.0
    """Responses below this many standard deviations are set to 0, so that features are sparse."""
    descriptor: Literal["scattering", "patches"] = "scattering"
    """kernel: how images are described, averaged over the cells of --grid. scattering: moduli of wavelet transforms of first
    and second order. patches: responses to filters of several sizes; for each size, --filters clusters of image patches."""
    octaves: PositiveInt | None = None
    """kernel, scattering: number of octaves of the wavelets. Default: 3, fewer for images below 16 pixels."""
    angles: PositiveInt = 6
    """kernel, scattering: number of angles of the wavelets."""
    patch_sizes: tuple[PositiveInt, ...] = ()
    """kernel, patches: heights and widths of filters in pixels; there are --filters of each size. Default: odd numbers near a
    sixth, a quarter and a third of the side of an image."""
    axes: PositiveInt = 400
    """kernel: number of principal components of the pooled responses in a descriptor."""
    frequencies: PositiveInt = 1024
    """kernel: number of random frequencies. Each gives two features, a cosine and a sine."""
    scale: PositiveFloat = 0.7
    """kernel: scale of the frequencies; the kernel is `exp(-scale² d²/2)`, with distances d in units of the root mean square
    norm of the descriptors."""
    ridges: tuple[PositiveFloat, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """kernel: ridge penalties to choose from, by the squared error on a held-out tenth of the training images."""
    kernel_sweeps: PositiveInt = 6
    """kernel: number of sweeps of the softmax layer with the bound on the curvature: first on nine tenths of the training
    images, from the least-squares solution, then as many on all of them."""
    solves: PositiveInt = 3
    """feature-machine: at most this many solves, the first by the identity as metric. Their number is chosen by the squared
    error on a held-out tenth of the training images."""
    landmarks: PositiveInt = 2000
    """feature-machine: training images whose kernels its predictor is made of while the metric is learned."""
    powers: tuple[PositiveFloat, ...] = (0.5, 1.0)
    """feature-machine: powers of the average gradient outer product to choose from, in the same way."""
    epochs: PositiveInt = 100
    """Training: maximum number of passes over the data."""
    batch_size: PositiveInt = 128
    """Training: images per step."""
    optimizer: str = "adagrad"
    """cold, warm: optimiser of optax, by name: adagrad, sgd, adam, rmsprop, ..."""
    learning_rate: PositiveFloat = 0.1
    """cold, warm: learning rate, for the mean loss of a batch. The paper gives a learning rate for text only, 0.01."""
    accumulator: NonNegativeFloat = 0.0
    """Training: initial value of Adagrad's sum of squares. The paper does not give it; optax's default is 0.1."""
    stop: tuple[Literal["rise", "patience"], ...] = ("patience", "rise")
    """Early stopping, with a row of results for each rule. rise: the paper's rule, at the first epoch that does not lower the
    loss. patience: after --patience epochs without a lower loss. The model of the epoch with the lowest loss is used."""
    stop_on: Literal["held_out", "train", "test"] = "held_out"
    """Loss that early stopping uses. held_out: that of a drawn tenth of the training images, which are then not trained on.
    train: that of all training images. test: that of the test images, which makes results optimistic."""
    patience: PositiveInt = 5
    """Epochs to wait for a lower loss, with --stop patience."""
    cnn_epochs: PositiveInt = 8
    """cnn: number of passes over the data, at the end of which the learning rate is 0."""
    channels: tuple[PositiveInt, ...] = (32, 64)
    """cnn: filters of 3 x 3 pixels in each layer of convolutions, which a pool of 2 x 2 follows."""
    dropout: Annotated[float, Bounds(at_least=0, below=1)] = 0.5
    """cnn: share of the hidden layer's inputs that is set to 0 in training."""
    readout_epochs: PositiveInt = 20
    """trained_readout: number of passes over the data with each of four weight decays; the learning rate is 0 at the end."""
    hidden: PositiveInt = 256
    """network: number of hidden units. It is trained by Adam with a learning rate of 0.001."""
    logistic_iterations: PositiveInt = 200
    """logistic_regression: maximum number of L-BFGS iterations, without regularisation."""


_SMALL: dict[str, Any] = dict(
    limit=300, epochs=3, cnn_epochs=3, readout_epochs=3, sweeps=20, feature_sweeps=20, filters=16, directions=64
)
_KERNEL: dict[str, Any] = dict(methods=("kernel",), frequencies=4096)
PRESETS = {
    "tiny": Preset(
        Config("runs/digits_tiny", logistic_iterations=20, **_SMALL),
        "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores. Test accuracy of explicit, 1 layer: 75 %.",
    ),
    "digits": Preset(
        Config("runs/digits"),
        "the default flags: 8x8 digits; a minute on 2 CPU cores. Test accuracy: explicit 84.4 %, warm 90.0 %, patches "
        "without backpropagation 95.8 %.",
    ),
    "mnist-best": Preset(
        Config("runs/mnist_best", data="mnist", **_KERNEL),
        "MNIST without backpropagation: test accuracy 99.6 %, in 3 minutes and 2.5 GB on 2 CPU cores.",
    ),
    "images": Preset(
        Config("runs/images", **_KERNEL),
        "the models of mnist-best on the images of --data; 60,000 images of 28x28 take as long.",
    ),
    "mnist": Preset(
        Config("runs/mnist", data="mnist", frequencies=4096),
        "the paper's experiments on MNIST, and those beyond; half an hour on 2 CPU cores, most of it for held-out scores and "
        "the cnn. Test accuracy with one and two layers: explicit 83.34 and 83.64 %, warm 92.78 and 92.87 %; without "
        "backpropagation 99.6 %.",
    ),
}
