"""The configuration of `launch.blur tasks`, and its presets."""

from dataclasses import dataclass
from typing import ClassVar

from icl.names import TASK_GROUPS
from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.command import Preset
from launch.blur.config import BlurConfig


@dataclass(frozen=True)
class TasksConfig(BlurConfig):
    """Evaluate a genome, without training it, on 54 small tasks, beside SGD, momentum and Adam, each tuned for each number of
    updates.

    All tasks take an hour on 2 busy CPU cores, most of it for the baselines; with those of an earlier run, 6 to 12 minutes."""

    GROUPS: ClassVar = {"genome": "measurements"}

    genome: str = "digits"
    """Genome to evaluate: the name of one in the package, or the genome.json of a train run."""
    tasks: tuple[str, ...] = TASK_GROUPS
    """Groups of tasks (mnist needs files), data sets (wine) or single tasks (wine/128-128: data set and hidden layers)."""
    data_dir: str | None = None
    """Folder of MNIST's idx files. Default: the folder mnist in $JEXPLICIT_DATA_DIR."""
    learners: PositiveInt = 5
    """Number of learners that an accuracy is averaged over, each with its own initial synapses and minibatches."""
    batch_size: PositiveInt = 64
    """Examples per update."""
    baselines: str | None = None
    """Run folder of an earlier `launch.blur tasks` to take baselines from, with the same data, learners, rates and versions;
    missing ones are measured."""


PRESETS = {
    "tiny": Preset(
        TasksConfig("runs/blur_tasks_tiny", tasks=("iris/32-32-32", "xor/64"), learners=2),
        "two tasks, two learners; a minute on 2 CPU cores.",
    )
}
