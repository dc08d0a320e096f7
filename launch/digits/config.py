"""The configuration of launch.digits and its presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from jexplicit.runs.files import Bounds, PositiveFloat, PositiveInt
from launch.kit.command import Images, Preset, Run

Solved = Literal["explicit", "scaling", "quadratic", "kernel"]
Method = Literal[Solved, "trained_readout", "optimum", "network", "cnn", "cold", "warm"]


@dataclass(frozen=True)
class Config(Images, Run):
    """Classify images with networks fitted without SGD, and with trained ones."""

    GROUPS: ClassVar = {"methods": "models", "sweeps": "fits"}

    limit: Annotated[int, Bounds(at_least=100)] | None = None
    """Use at most this many training images, and at most as many test images."""
    resize: Annotated[int, Bounds(at_least=1, at_most=1024)] | None = None
    """Read a folder of images of any size as ones of N x N pixels."""
    methods: tuple[Method, ...] = get_args(Method)
    """Models to fit. explicit: the closed form. scaling, quadratic: sweeps from it, and with a bound on the curvature. kernel:
    least squares and a softmax layer on random Fourier features of scattering. trained_readout: a softmax layer on these,
    trained by AdamW. optimum: that layer by four optimisers, to convergence. network, cnn: one hidden layer, and convolutions.
    cold, warm: softmax layers trained by Adagrad from random parameters or from the explicit solution."""
    layers: tuple[Annotated[int, Bounds(at_least=1, at_most=8)], ...] = (1, 2)
    """explicit, cold, warm: numbers of softmax layers, one model each."""
    sweeps: PositiveInt = 300
    """scaling: number of sweeps."""
    frequencies: PositiveInt = 1024
    """kernel: number of random frequencies. Each gives two features, a cosine and a sine."""
    epochs: PositiveInt | None = None
    """Training: passes over the data, for each weight decay or rate. Default: 8 for cnn, 20 for trained_readout, else at most
    100. network, cold and warm stop after five epochs without a lower loss on a held-out tenth."""
    rates: tuple[PositiveFloat, ...] = (1e-2, 3e-2, 1e-1)
    """optimum: learning rates of Adam. Each takes all the passes, and the lowest loss is kept."""


_kernel: dict[str, Any] = dict(methods=("kernel",), frequencies=4096)
PRESETS = {
    "tiny": Preset(
        Config("runs/digits_tiny", limit=300, epochs=3, sweeps=20),
        "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores. Test accuracy of explicit, 1 layer: 75 %.",
    ),
    "mnist-best": Preset(
        Config("runs/mnist_best", data="mnist", **_kernel),
        "MNIST without backpropagation: test accuracy 99.6 %, in 3 minutes and 2.5 GB on 2 CPU cores.",
    ),
    "images": Preset(
        Config("runs/images", **_kernel),
        "the models of mnist-best on the images of --data; 60,000 images of 28x28 take as long.",
    ),
    "mnist": Preset(
        Config("runs/mnist", data="mnist", frequencies=4096),
        "the paper's experiments on MNIST, and those beyond; half an hour on 2 CPU cores, most of it for held-out scores and "
        "the cnn. Test accuracy with one and two layers: explicit 83.34 and 83.64 %, warm 92.78 and 92.87 %; without "
        "backpropagation 99.6 %.",
    ),
}
