"""The flags and presets of launch.icl, without JAX."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from icl.names import Inputs
from jexplicit.nn.names import ScheduleName
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveFloat, PositiveInt
from launch.kit.command import Command, Preset, Run


@dataclass(frozen=True)
class Flags(Run):
    """Flags of all experiments."""

    GROUPS: ClassVar = {"test_tasks": "measurements"}

    seed: Annotated[int, Bounds(at_least=0, at_most=2**32 - 1)] = 0
    devices: int | None = None
    """Number of devices to split the seeds over. Default: all accelerators, or one virtual CPU device per core."""
    test_tasks: PositiveInt = 200_000
    """Number of fresh tasks that results are computed on, and of contexts whose eigenvalues rates are fitted to."""


@dataclass(frozen=True)
class TaskFlags(Flags):
    """Flags of experiments on linear regression."""

    GROUPS: ClassVar = {"dim": "tasks"}

    dim: PositiveInt = 10
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
    """Schedule of the learning rate. cosine, linear: down to 0. exponential: down to a hundredth. step: a tenth after two
    thirds of the steps. constant: no decay, and Adam's noise decides how close training comes to the solution."""
    validation_tasks: PositiveInt = 10_000
    """Number of tasks of the training curves, which are evaluated every 100 steps, of long trainings 200 times."""


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

    layers: Annotated[int, Bounds(at_least=1, at_most=24)] = 2
    """Number of layers K."""
    recurrent: bool = True
    """Whether the layers share their weights."""
    warm_steps: NonNegativeInt = 1000
    """Number of training steps from the weights that were solved for; 0: no warm start."""


@dataclass(frozen=True)
class DepthsConfig(InputFlags):
    """The best 1 .. K layers of GD and GD++, shared or separate rates."""

    depths: Annotated[int, Bounds(at_least=1, at_most=24)] = 12
    """Largest number of layers."""


@dataclass(frozen=True)
class CurvatureConfig(LayerFlags):
    """The eigenvalues before and after a recurrent layer, by context length."""

    contexts: tuple[PositiveInt, ...] = (10, 25, 50, 100)
    """Context lengths N, instead of --context."""
    seeds: PositiveInt = 1
    steps: PositiveInt = 2000


@dataclass(frozen=True)
class NonlinearConfig(TrainingFlags):
    """Sine waves: attention after an MLP, and a descent control."""

    context: PositiveInt = 10
    """Number of pairs (x, y) in the context, N."""
    seeds: PositiveInt = 2
    steps: PositiveInt = 4000
    test_tasks: PositiveInt = 10_000


@dataclass(frozen=True)
class CopyConfig(LayerFlags):
    """Two layers on tokens of x and of y, constructed and trained."""

    steps: PositiveInt = 6000
    test_tasks: PositiveInt = 100_000


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
    dim: Annotated[int, Bounds(at_least=1, at_most=60)] = 10
    pretraining_tasks: tuple[PositiveInt, ...] = tuple(2**n for n in range(13))
    """Numbers of pretraining tasks for which the best layer is solved."""
    diversity_points: tuple[PositiveInt, ...] = (2, 8, 32, 128, 1024)
    """Numbers of pretraining tasks on which layers are trained."""
    dims: tuple[Annotated[int, Bounds(at_least=1, at_most=60)], ...] = (2, 5, 10, 15, 20)
    """Input dimensions for which the threshold is computed, besides --dim."""


@dataclass(frozen=True)
class NewtonConfig(TaskFlags):
    """Newton's steps with the same loss as a solved layer."""

    depths: Annotated[int, Bounds(at_least=1, at_most=10)] = 10
    """Largest number of layers."""


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


_tiny = {"dim": 2, "context": 3, "test_tasks": 200, "seeds": 2, "steps": 100, "batch_size": 16, "validation_tasks": 50}
_few_tasks = {"pretraining_tasks": (1, 4, 512), "diversity_points": (4,), "dims": (2,)}
_ten: dict[str, Any] = {"layers": 10, "seeds": 2, "learning_rate": 5e-4}
_presets = {
    "two-steps": Preset(MultiStepConfig("runs/icl_two"), "two recurrent layers: two steps of GD++, loss 0.1105, gamma 0.175."),
    "ten-steps": Preset(MultiStepConfig("runs/icl_ten", **_ten), "ten recurrent layers, the paper's 5000 steps (Fig. 7)."),
}


def _command(name: str, config: type[Flags], where: str, tiny: Mapping[str, Any]) -> Command:
    """An experiment with the preset `tiny` beside others."""
    small = {field.name: _tiny[field.name] for field in dataclasses.fields(config) if field.name in _tiny}
    quick = Preset(config(**{"out": f"runs/icl_{name}_tiny", **small, **tiny}), "seconds; the numbers mean nothing.")
    presets, function = _presets if name == "multi-step" else {}, name.upper().replace("-", "_")
    return Command(config, f"launch.icl.{where}:{function}", {"tiny": quick, **presets}, f"icl {name}")


COMMANDS = {
    name: _command(name, config, where, tiny)
    for name, config, where, tiny in (
        ("one-step", OneStepConfig, "rates", {}),
        ("multi-step", MultiStepConfig, "rates", {"warm_steps": 100}),
        ("depths", DepthsConfig, "rates", {"depths": 3}),
        ("curvature", CurvatureConfig, "rates", {"contexts": (3, 5)}),
        ("nonlinear", NonlinearConfig, "problems", {"steps": 8}),
        ("copy", CopyConfig, "problems", {}),
        ("softmax", SoftmaxConfig, "rates", {}),
        ("deep-softmax", DeepSoftmaxConfig, "rates", {"warm_steps": 100}),
        ("noisy", NoisyConfig, "problems", {}),
        ("task-diversity", TaskDiversityConfig, "problems", _few_tasks),
        ("newton", NewtonConfig, "rates", {"depths": 3}),
        ("mesa", MesaConfig, "rates", {}),
        ("markov", MarkovConfig, "problems", {"length": 8, "steps": 8}),
    )
}
