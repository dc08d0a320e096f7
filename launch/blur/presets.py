"""Named configurations of launch.blur: the poster's and the paper's experiments at their scale, and in an hour of 2 cores.

Sizes, states, batches, populations, curricula and meta-rates of the full ones are the paper's. The design is that of the flags'
defaults; `--no-synapse-norm --path 0 --output-activation tanh` makes it the paper's own. Hours are estimates: an update of the
poster's network takes 0.03 to 0.05 s of a core with its derivatives, and others in proportion to their weights times states.
"""

import functools
import operator
from typing import Any

from launch.blur.config import AblationConfig, GridConfig, SgdCheckConfig, TasksConfig, TrainConfig, TransferConfig
from launch.kit.command import Preset

Fields = dict[str, Any]
_learners: Fields = dict(limit=400, widths=(8,), batch_size=16, learners=2, steps=12)
_tiny: Fields = _learners | dict(query_size=50, population=2, unroll=(3,), meta_steps=(4,), every=4, episodes=2)
_ridge: Fields = dict(  # the shipped genome `digits`
    **dict(states=2, backward="multiplicative_second_state", multistate=False, normalise_output=False, over="mixed"),
    **dict(synapse_norm=False, update="ridge", aging=True, average=True, pre="sequential", derivative=True),
    **dict(hidden_activation="silu", output_activation="linear", backward_activation="linear", feedback="cross_entropy"),
    **dict(start="ridge", families="digits", objective="curve", population=1, unroll=(100,), meta_steps=(480,), every=240),
    **dict(meta_rate=6e-3, gradient_clip=0.3, episodes=2),
)
_boolean: Fields = dict(
    **dict(data="xor", widths=(20,), states=2, synapse_norm=False, families="boolean", objective="curve", population=8),
    **dict(unroll=(10,), meta_steps=(600,), meta_rate=0.01, gradient_clip=1.0, query_size=100, learners=20),
    **dict(far=0, steps=20, baselines=()),
)
# The poster: MNIST at 10 x 10, two hidden layers, four states, 10,000 meta-steps at T = 10, 15, .. 50 from 8 genomes.
_mnist: Fields = dict(data="mnist", side=10, batch_size=128)
_full: Fields = _mnist | dict(population=8, meta_rate=5e-4)
_small: Fields = _mnist | dict(learners=4)
_stage: Fields = dict(unroll=(10,), meta_steps=(10_000,))
_poster: Fields = _full | dict(widths=(256, 128), unroll=tuple(range(10, 51, 5)), meta_steps=(10_000,) * 9)
_baselines: Fields = dict(baselines=("sgd", "momentum"), baseline_activations=("tanh",))
_poster_small: Fields = _small | _baselines | dict(widths=(256, 128), unroll=(10, 20), meta_steps=(1200, 500), population=4)
_wide_small: Fields = _small | _baselines | dict(widths=(512, 256), unroll=(10,), meta_steps=(500,), population=2)
_mnist28_small: Fields = _wide_small | dict(side=28, widths=(256, 128))
_short: Fields = dict(meta_steps=(500, 250))
_cmaes_small: Fields = dict(meta_steps=(200,), learners=4, baselines=("sgd",))
_cmaes: Fields = _full | dict(
    **dict(side=14, widths=(512,), states=2, method="evolution", population=80, unroll=(15,), meta_steps=(400,), every=10),
    **dict(query_size=20 * 128, fitness_learners=1),
)
_first: Fields = dict(classes=(0, 1, 2, 3, 4))
_nowhere: Fields = dict(networks=(), sides=(), others=())
_two: Fields = dict(widths=(256, 128))
_elsewhere: Fields = _two | dict(networks=("256", "512x256"), sides=(28,), others=(), train_depths=())
_elsewhere |= dict(genome="runs/blur_poster/genome.json")
_elsewhere_small: Fields = _elsewhere | dict(genome="runs/blur_poster_small/genome.json")
_classes: Fields = _first | _nowhere | _two | dict(train_depths=(), to_classes=(5, 6, 7, 8, 9))
_classes |= dict(genome="runs/blur_class_split/genome.json")
_classes_small: Fields = _classes | dict(genome="runs/blur_class_split_small/genome.json")
_depth: Fields = dict(widths=(128,)) | _nowhere
_states: Fields = dict(widths=(128,), normalisations=(), nonlinearities=(), variants=())
_nonlinear: Fields = dict(widths=(128,), normalisations=(), numbers_of_states=(), variants=())
_nonlinear_small: Fields = _nonlinear | dict(side=14, meta_steps=(500,))
_networks: Fields = dict(deep_sizes=(4, 5, 5, 5, 3), sizes=(4, 5, 3), steps=5, curl_hidden=4)
_tiny_train: Fields = _tiny | dict(unroll=(3, 5), meta_steps=(4, 4), far=20, rates=(0.1, 1.0), baselines=("sgd",))
_tiny_places: Fields = _tiny | dict(networks=("16",), sides=(16,), others=("wine",), train_depths=(1,), depths=(1, 2))
_tiny_designs: Fields = _tiny | dict(seeds=2, normalisations=("both",), numbers_of_states=(2,), variants=())
_tiny_designs |= dict(nonlinearities=("relu_tanh",))


def _named(kind: Any, out: str, note: str, *fields: Fields, **more: Any) -> Preset:
    """A preset of a configuration with its run folder, some fields that others have too, and some of its own."""
    return Preset(kind(f"runs/blur_{out}", **functools.reduce(operator.or_, fields, {}) | more), note)


_train, _transfer = functools.partial(_named, TrainConfig), functools.partial(_named, TransferConfig)
_ablation, _grid = functools.partial(_named, AblationConfig), functools.partial(_named, GridConfig)
_sgd, _tasks = functools.partial(_named, SgdCheckConfig), functools.partial(_named, TasksConfig)

PRESETS: dict[str, dict[str, Preset]] = {
    "train": {
        "tiny": _train("tiny", "400 of the 8x8 digits, 8 meta-steps; under a minute. The numbers mean nothing.", _tiny_train),
        "digits": _train("digits", "the package's `digits`: ridge updates, 12 families of tasks; half an hour.", _ridge),
        "boolean": _train("boolean", "the package's `boolean`: functions of two inputs; a minute.", _boolean),
        "poster": _train("poster", "MNIST at 10x10, hidden layers 256-128, 8 genomes, T = 10 .. 50; a week.", _poster),
        "poster-small": _train("poster_small", "4 genomes, T = 10 and 20, 1700 meta-steps; an hour.", _poster_small),
        "poster-wide": _train("poster_wide", "poster with hidden layers 512-256; three weeks.", _poster, widths=(512, 256)),
        "poster-wide-small": _train("poster_wide_small", "2 genomes, T = 10, 500 meta-steps; half an hour.", _wide_small),
        "mnist28": _train("mnist28", "poster at 28x28; four weeks.", _poster, side=28),
        "mnist28-small": _train("mnist28_small", "2 genomes, T = 10, 500 meta-steps; 40 minutes.", _mnist28_small),
        "class-split": _train("class_split", "poster on digits 0 to 4, for transfer; as long as poster.", _poster, _first),
        "class-split-small": _train("class_split_small", "750 meta-steps; an hour.", _poster_small, _first, _short),
        "cmaes": _train("cmaes", "evolution of 80 genomes, 400 generations: MNIST at 14x14, width 512; three hours.", _cmaes),
        "cmaes-small": _train("cmaes_small", "200 generations, one baseline; 40 minutes.", _cmaes, _cmaes_small),
    },
    "transfer": {
        "tiny": _transfer("transfer_tiny", "`digits` elsewhere, and a genome at two depths; a minute or two.", _tiny_places),
        "poster": _transfer("poster_elsewhere", "poster's genome at 28x28 and in 256 and 512-256; an hour.", _full, _elsewhere),
        "poster-small": _transfer("poster_elsewhere_small", "poster-small's genome; half an hour.", _small, _elsewhere_small),
        "class-split": _transfer("classes", "class-split's genome on 0 to 4 and 5 to 9; 15 minutes.", _full, _classes),
        "class-split-small": _transfer("classes_small", "class-split-small's genome; minutes.", _small, _classes_small),
        "depth": _transfer("depth", "8 genomes of 1, 2 and 4 hidden layers in 1 to 10; ten hours.", _full, _depth, _stage),
        "depth-small": _transfer("depth_small", "2 genomes each; 25 minutes.", _small, _depth, meta_steps=(600,)),
    },
    "ablation": {
        "tiny": _ablation("ablation_tiny", "four designs from two seeds; two minutes.", _tiny_designs),
        "states": _ablation("states", "2 to 16 states: MNIST at 10x10, hidden layer 128; 35 hours.", _full, _states, _stage),
        "states-small": _ablation("states_small", "2 genomes; 40 minutes.", _small, _states, meta_steps=(500,)),
        "nonlinearities": _ablation("nonlinearities", "5 activations; a week.", _full, _nonlinear, _stage, side=28),
        "nonlinearities-small": _ablation("nonlinearities_small", "at 14x14, 2 genomes; 45 minutes.", _small, _nonlinear_small),
    },
    "grid": {
        "tiny": _grid("grid_tiny", "400 of the 8x8 digits; seconds.", _learners, rates=(0.1, 1.0), momenta=(0.0, 0.9)),
        "grid": _grid("grid_mnist", "MNIST at 28x28, hidden layers 256-128; half an hour.", _mnist, _two, side=None),
        "grid-small": _grid("grid_small", "as grid, at 10x10, with 4 learners; a few minutes.", _small, _two),
    },
    "sgd-check": {"tiny": _sgd("sgd_tiny", "small networks and 5 steps; seconds.", _networks)},
    "tasks": {"tiny": _tasks("tasks_tiny", "two tasks; a minute.", tasks=("iris/32-32-32", "xor/64"), learners=2)},
}
"""By subcommand and name. Times are of 2 CPU cores; a name with -small is less of the same."""
