"""The configuration of launch.digits and its presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from jexplicit.runs.bounds import Bounds, PositiveFloat, PositiveInt
from launch.kit.command import Images, Preset, Run

Solved = Literal["explicit", "scaling", "quadratic", "kernel"]
Method = Literal[Solved, "trained_readout", "optimum", "network", "cnn", "cold", "warm"]


@dataclass(frozen=True)
class Config(Images, Run):
    """Classify images with networks fitted without SGD, and with trained ones."""

    GROUPS: ClassVar = {"methods": "models", "sweeps": "sweeps", "octaves": "kernel"} | {
        **{"epochs": "training", "hidden": "baselines"}
    }

    limit: Annotated[int, Bounds(at_least=100)] | None = None
    """Use at most this many training images, and at most as many test images."""
    resize: Annotated[int, Bounds(at_least=1, at_most=1024)] | None = None
    """Read a folder of images of any size as ones of N x N pixels."""
    methods: tuple[Method, ...] = get_args(Method)
    """Models to fit. explicit: the closed form. scaling: iterative scaling from the explicit solution. quadratic: sweeps with a
    bound on the curvature. kernel: least squares and a softmax layer on random Fourier features of scattering. trained_readout:
    a softmax layer on the same features, trained by AdamW. optimum: that layer with one ridge by four optimisers, to
    convergence. network: one hidden layer, trained by backpropagation. cnn: a
    convolutional network, trained by AdamW. cold, warm: softmax layers trained by Adagrad from random parameters or from the
    explicit solution."""
    layers: tuple[Annotated[int, Bounds(at_least=1, at_most=8)], ...] = (1, 2)
    """explicit, cold, warm: numbers of softmax layers, one model each."""
    sweeps: PositiveInt = 300
    """scaling: number of sweeps."""
    quadratic_sweeps: PositiveInt = 30
    """quadratic: number of sweeps with the bound on the curvature."""
    octaves: PositiveInt | None = None
    """kernel: number of octaves of the wavelets. Default: 3, fewer for images below 16 pixels."""
    angles: PositiveInt = 6
    """kernel: number of angles of the wavelets."""
    grid: PositiveInt | None = None
    """kernel: number of cells along each side over which moduli are averaged. Default: 7 for images of 28 x 28, 4 for 8 x 8."""
    axes: PositiveInt = 400
    """kernel: number of principal components of the averages in a descriptor."""
    frequencies: PositiveInt = 1024
    """kernel: number of random frequencies. Each gives two features, a cosine and a sine."""
    kernel_sweeps: PositiveInt = 6
    """kernel: number of sweeps of the softmax layer. They use the bound on the curvature: first on nine tenths of the training
    images, from the least-squares solution, then as many on all of them."""
    epochs: PositiveInt = 100
    """network, cold, warm: maximum number of passes over the data."""
    patience: PositiveInt = 5
    """network, cold, warm: stop after this many epochs without a lower loss on a held-out tenth of the training images. The
    model of the epoch with the lowest loss is used."""
    batch_size: PositiveInt = 128
    """Training: images per step."""
    learning_rate: PositiveFloat = 0.1
    """cold, warm: learning rate of Adagrad. The paper gives a learning rate for text only, 0.01."""
    hidden: PositiveInt = 256
    """network: number of hidden units. It is trained by Adam with a learning rate of 0.001."""
    cnn_epochs: PositiveInt = 8
    """cnn: number of passes over the data, at the end of which the learning rate is 0."""
    passes: PositiveInt = 100
    """optimum: passes over the training images at most, for each of its four optimisers."""
    rates: tuple[PositiveFloat, ...] = (1e-2, 3e-2, 1e-1)
    """optimum: learning rates of Adam. Each takes all the passes, and the lowest loss is kept."""
    readout_epochs: PositiveInt = 20
    """trained_readout: number of passes over the data with each of four weight decays; the learning rate is 0 at the end."""


_SMALL: dict[str, Any] = dict(limit=300, epochs=3, cnn_epochs=3, readout_epochs=3, sweeps=20)
_KERNEL: dict[str, Any] = dict(methods=("kernel",), frequencies=4096)
PRESETS = {
    "tiny": Preset(
        Config("runs/digits_tiny", **_SMALL),
        "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores. Test accuracy of explicit, 1 layer: 75 %.",
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
