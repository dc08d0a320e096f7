"""The tasks, models and recipes that follow from a configuration of launch.icl."""

from icl.models.batched import Regression
from icl.names import Kind
from icl.problems.function_classes import FunctionClass
from icl.problems.markov import Chains
from icl.problems.mixed_noise import MixedNoise
from icl.problems.sine_waves import Waves
from icl.tasks import Tasks
from icl.training import Recipe
from launch.icl.config import Config


def make_tasks(config: Config, *, dim: int | None = None, context: int | None = None) -> Tasks:
    """The distribution of the tasks: U(-1/2, 1/2) inputs by default."""
    input_range = 2.0 if config.settings == "paper" else 1.0
    return Tasks(dim=dim or config.dim, context=context or config.context, input_range=input_range)


def make_regression(config: Config, tasks: Tasks, depth: int) -> Regression:
    """K layers on tasks, with the token clip of the paper's code or text."""
    return Regression(tasks, depth, clip=10.0 if depth > (3 if config.settings == "code" else 2) else None)


def make_noise(config: Config) -> MixedNoise:
    """Tasks with noise levels of their own, and twice as many pairs as inputs."""
    levels = config.noise_levels[0] if len(config.noise_levels) == 1 else config.noise_levels
    return MixedNoise(dim=config.dim, context=2 * config.dim, levels=levels)


def make_functions(config: Config, kind: Kind) -> FunctionClass:
    """A class of functions, with prompts of 2 d + 1 points."""
    d = config.function_dim
    return FunctionClass(kind, dim=d, points=2 * d + 1, nonzero=min(3, d))


def make_chains(config: Config) -> Chains:
    """Markov chains."""
    return Chains(config.chain_states, config.chain_length, config.chain_alpha)


def make_waves(config: Config) -> Waves:
    """Sine waves of the paper's code or text."""
    paper = config.waves == "paper"
    return Waves(context=config.context, amplitude=(0.1, 5.0) if paper else (0.1, 0.5), independent=paper)


def make_recipe(config: Config, depth: int) -> Recipe:
    """The hyperparameters for K layers, from the paper's code or text."""
    code = config.settings == "code"
    return Recipe(
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        b2=0.98 if code else 0.999,
        gradient_clip=1e-3 if code and depth <= 2 else 10.0,
    )


def init_scale(config: Config, depth: int, width: int) -> float:
    """Variance times fan-in of random weights."""
    return 0.002 / depth if config.settings == "code" else (0.002 / depth) ** 2 * width
