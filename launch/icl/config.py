"""The flags and presets of launch.icl, without JAX."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from icl.names import Inputs
from jexplicit.nn.names import ScheduleName
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveFloat, PositiveInt
from launch.kit.command import Command, Preset, Run

Layers = Annotated[int, Bounds(at_least=1, at_most=24)]
Dim = Annotated[int, Bounds(at_least=1, at_most=60)]  # of what is solved for every number of tasks


@dataclass(frozen=True)
class Flags(Run):
    """Flags of all experiments."""

    GROUPS: ClassVar = {"test_tasks": "measurements"}

    devices: PositiveInt | None = None
    """Number of devices to split the seeds over. Default: all accelerators, or one virtual CPU device per core."""
    test_tasks: PositiveInt = 200_000
    """Number of fresh tasks to test on, and of contexts to fit rates to."""


@dataclass(frozen=True)
class TaskFlags(Flags):
    """Flags of experiments on linear regression."""

    GROUPS: ClassVar = {"dim": "tasks"}

    dim: Annotated[int, Bounds(at_least=1, at_most=1000)] = 10
    """Input dimension d."""
    context: PositiveInt = 10
    """Number of pairs (x, y) in the context, N."""


@dataclass(frozen=True)
class TrainingFlags(Flags):
    """Flags of experiments that train on fresh tasks."""

    GROUPS: ClassVar = {"seeds": "training"}

    seeds: PositiveInt = 5
    """Number of training runs, with seeds --seed, --seed + 1, .."""
    steps: PositiveInt = 5000
    """Number of training steps from random weights, each on --batch-size fresh tasks."""
    batch_size: PositiveInt = 2048
    """Number of fresh tasks per step."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam at the first step."""
    cooling: ScheduleName = "cosine"
    """Schedule of the learning rate. cosine: down to 0. constant: Adam's noise decides how close training comes."""
    validation_tasks: PositiveInt = 10_000
    """Number of tasks of the training curves, which are evaluated every 100 steps, or 200 times if training is long."""


@dataclass(frozen=True)
class LayerFlags(TaskFlags, TrainingFlags):
    """Flags of experiments that train layers on linear regression."""


@dataclass(frozen=True)
class InputFlags(TaskFlags):
    """Flags of experiments whose inputs may have another distribution."""

    inputs: Inputs = "uniform"
    """Distribution of each coordinate of x: uniform on [-1/2, 1/2], or normal or laplace with its variance, 1/12."""


@dataclass(frozen=True)
class OneStepConfig(InputFlags, LayerFlags):
    """One layer of linear attention against one step of gradient descent (GD)."""


@dataclass(frozen=True)
class MultiStepConfig(InputFlags, LayerFlags):
    """Several layers of linear attention against steps of GD and of GD++."""

    GROUPS = {"layers": "layers"}

    layers: Layers = 2
    """Number of layers K."""
    recurrent: bool = True
    """Whether the layers share their weights."""
    warm_steps: NonNegativeInt = 1000
    """Number of training steps from the weights that were solved for; 0: no warm start."""


@dataclass(frozen=True)
class DepthsConfig(InputFlags):
    """The best 1 .. K layers of GD and GD++, shared or separate rates."""

    depths: Layers = 12
    """Largest number of layers."""


@dataclass(frozen=True)
class CurvatureConfig(LayerFlags):
    """The eigenvalues before and after a recurrent layer, by context length."""

    contexts: tuple[PositiveInt, ...] = (10, 25, 50, 100)
    """Context lengths N, instead of --context."""
    seeds: PositiveInt = 1
    steps: PositiveInt = 2000


@dataclass(frozen=True)
class SoftmaxConfig(LayerFlags):
    """One and two heads of softmax attention."""

    seeds: PositiveInt = 3


@dataclass(frozen=True)
class DeepSoftmaxConfig(MultiStepConfig):
    """Softmax layers with two heads, constructed from GD++ and trained."""


@dataclass(frozen=True)
class NoisyConfig(LayerFlags):
    """Inputs of unequal variance with noisy labels, and preconditioned descent."""

    seeds: PositiveInt = 1
    test_tasks: PositiveInt = 100_000


@dataclass(frozen=True)
class TaskDiversityConfig(LayerFlags):
    """One linear attention layer on few or many tasks, and Bayes optima."""

    seeds: PositiveInt = 1
    steps: PositiveInt = 2000
    test_tasks: PositiveInt = 20_000
    dim: Dim = 10
    pretraining_tasks: tuple[PositiveInt, ...] = tuple(2**n for n in range(13))
    """Numbers of pretraining tasks for which the best layer is solved."""
    diversity_points: tuple[PositiveInt, ...] = (2, 8, 32, 128, 1024)
    """Numbers of pretraining tasks on which layers are trained."""
    dims: tuple[Dim, ...] = (2, 5, 10, 15, 20)
    """Input dimensions for which the threshold is computed, besides --dim."""


@dataclass(frozen=True)
class NewtonConfig(DepthsConfig):
    """Newton's steps with the same loss as a solved layer."""

    depths: Layers = 10


@dataclass(frozen=True)
class MesaConfig(Flags):
    """Layers that estimate a regression online."""

    test_tasks: PositiveInt = 2000
    dim: PositiveInt = 10
    """Dimension d of keys and values."""


@dataclass(frozen=True)
class MarkovConfig(TrainingFlags):
    """Two layers that count a Markov chain's transitions, constructed and trained."""

    seeds: PositiveInt = 2
    steps: PositiveInt = 4000
    batch_size: PositiveInt = 64
    validation_tasks: PositiveInt = 1000
    test_tasks: PositiveInt = 5000
    length: Annotated[int, Bounds(at_least=2)] = 64
    """Length of a sequence of a chain of three states, T."""


_tiny: dict[str, Any] = {
    "test_tasks": 200, "dim": 2, "context": 3, "contexts": (3, 5), "length": 8, "depths": 3, "validation_tasks": 50,
    "seeds": 2, "steps": 100, "warm_steps": 100, "batch_size": 16,
    "pretraining_tasks": (1, 4, 512), "diversity_points": (4,), "dims": (2,),
}  # fmt: skip
_two, _ten = MultiStepConfig("runs/icl_two"), MultiStepConfig("runs/icl_ten", layers=10, seeds=2, learning_rate=5e-4)
_presets = {
    "two-steps": Preset(_two, "two recurrent layers: two steps of GD++, loss 0.1105, gamma 0.175."),
    "ten-steps": Preset(_ten, "ten recurrent layers, 5000 steps as in the paper's Figure 7."),
}
_configs: dict[str, dict[str, type[Flags]]] = {
    "trained": {
        "one-step": OneStepConfig, "multi-step": MultiStepConfig, "curvature": CurvatureConfig, "softmax": SoftmaxConfig,
        "deep-softmax": DeepSoftmaxConfig, "noisy": NoisyConfig, "task-diversity": TaskDiversityConfig, "markov": MarkovConfig,
    },
    "solved": {"depths": DepthsConfig, "newton": NewtonConfig, "mesa": MesaConfig},
}  # fmt: skip


def _command(module: str, name: str, config: type[Flags]) -> Command:
    """An experiment with the preset `tiny`."""
    small = {field.name: _tiny[field.name] for field in dataclasses.fields(config) if field.name in _tiny}
    tiny = Preset(config(f"runs/icl_{name}_tiny", **small), "seconds; the numbers mean nothing.")
    where = f"launch.icl.{module}:{name.upper().replace('-', '_')}"
    return Command(config, where, {"tiny": tiny, **(_presets if name == "multi-step" else {})}, f"icl {name}")


COMMANDS = {name: _command(module, name, config) for module, own in _configs.items() for name, config in own.items()}
