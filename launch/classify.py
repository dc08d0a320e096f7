"""Classify images with a model of a run of launch.digits, solved or trained.

python -m launch.classify --run runs/digits --images seven.png scans/
python -m launch.classify --run runs/mnist --method kernel --images t10k-images-idx3-ubyte.gz --top 3
"""

from dataclasses import dataclass
from typing import Literal

from jexplicit.runs.files import PositiveInt
from launch.digits import Method
from launch.kit.command import entry_point


@dataclass(frozen=True)
class Config:
    run: str
    """Run folder of launch.digits."""
    images: tuple[str, ...]
    """Images of the run's size: PNG, JPEG, ..., folders of them, idx files, .npy, or .npz with one array or x_test. They become
    grey, bright on dark, with the levels of the run."""
    method: Method | None = None
    """Method that fitted the model. Default: the model of the highest held-out accuracy of those that match the other flags."""
    layers: PositiveInt | None = None
    """Number of layers of the model."""
    features: Literal["pixels", "kernel"] | None = None
    """Features that the model reads."""
    solver: str | None = None
    """How the linear classifier was fitted. With --method kernel: least_squares, softmax."""
    top: PositiveInt = 1
    """Number of labels to show, the most probable first."""


main = entry_point("launch.digits.solved:classify", Config, __doc__, module=__name__)
