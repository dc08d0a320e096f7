"""Classify images with networks fitted without SGD, and with trained ones.

python -m launch.digits --out runs/digits
python -m launch.digits --preset mnist --data-dir DIR --out runs/mnist
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from jexplicit.runs.files import Bounds, PositiveFloat, PositiveInt
from launch.kit.command import Images, Preset, Run, entry_point

Method = Literal[
    "explicit", "scaling", "quadratic", "kernel", "trained_readout", "optimum", "network", "cnn", "cold", "warm"
]  # fmt: skip


@dataclass(frozen=True)
class Config(Images, Run):
    """Classify images with networks fitted without SGD, and with trained ones."""

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
    """kernel: number of random frequencies, each of a cosine and a sine."""
    epochs: PositiveInt | None = None
    """Training: passes over the data. Default: 8 for cnn, 20 for trained_readout, else at most 100, until five epochs are
    without a lower loss on a held-out tenth."""
    rates: tuple[PositiveFloat, ...] = (1e-2, 3e-2, 1e-1)
    """optimum: learning rates of Adam. Each takes all the passes, and the lowest loss is kept."""


_kernel: Any = {"methods": ("kernel",), "frequencies": 4096}
_of_digits = Config("runs/digits_tiny", limit=300, epochs=3, sweeps=20)
_best, _own = Config("runs/mnist_best", data="mnist", **_kernel), Config("runs/images", **_kernel)
_all = Config("runs/mnist", data="mnist", frequencies=4096)
PRESETS = {
    "tiny": Preset(_of_digits, "300 images of digits, few sweeps and epochs; 30 s on 2 CPU cores."),
    "mnist-best": Preset(_best, "MNIST without backpropagation: test accuracy 99.6 %, in 3 minutes and 2.5 GB on 2 CPU cores."),
    "images": Preset(_own, "the models of mnist-best on the images of --data; 60,000 images of 28x28 take as long."),
    "mnist": Preset(_all, "the paper's experiments on MNIST, and those beyond; half an hour on 2 CPU cores."),
}
main = entry_point("launch.digits.solved:EXPERIMENT", Config, __doc__, PRESETS)
