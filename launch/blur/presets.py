"""Named configurations of launch.blur: the poster's and the paper's experiments at their scale, and in an hour of 2 cores.

Sizes, states, batches, populations, curricula and meta-rates of the full ones are the paper's. The design is that of the flags'
defaults; `--no-synapse-norm --path 0 --output-activation tanh` makes it the paper's own. Hours are estimates: an update of the
poster's network takes 0.03 to 0.05 s of a core with its derivatives, and others in proportion to their weights times states.
"""

import functools
import operator
from typing import Any

from jexplicit.runs.command import Preset
from launch.blur.config import AblationConfig, GridConfig, SgdCheckConfig, TasksConfig, TrainConfig, TransferConfig

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
_cmaes: Fields = _full | dict(
    **dict(side=14, widths=(512,), states=2, method="evolution", population=80, unroll=(15,), meta_steps=(400,), every=10),
    **dict(query_size=20 * 128, fitness_learners=1),
)
_first: Fields = dict(classes=(0, 1, 2, 3, 4))
_nowhere: Fields = dict(networks=(), sides=(), others=())
_elsewhere: Fields = dict(widths=(256, 128), networks=("256", "512x256"), sides=(28,), others=(), train_depths=())
_classes: Fields = _first | _nowhere | dict(widths=(256, 128), train_depths=(), to_classes=(5, 6, 7, 8, 9))
_depth: Fields = dict(widths=(128,)) | _nowhere
_states: Fields = dict(widths=(128,), normalisations=(), nonlinearities=(), variants=())
_nonlinear: Fields = dict(widths=(128,), normalisations=(), numbers_of_states=(), variants=())
_meaningless = "the numbers mean nothing."


def _config(kind: Any, out: str, *fields: Fields, **more: Any) -> Any:
    """A configuration with its run folder, some fields in common and others of its own."""
    return kind(f"runs/blur_{out}", **functools.reduce(operator.or_, fields, {}) | more)


_train, _transfer, _ablation, _grid = (
    functools.partial(_config, kind) for kind in (TrainConfig, TransferConfig, AblationConfig, GridConfig)
)
_tiny_train: Fields = dict(unroll=(3, 5), meta_steps=(4, 4), far=20, rates=(0.1, 1.0), baselines=("sgd",))
_tiny_places: Fields = dict(networks=("16",), sides=(16,), others=("wine",), train_depths=(1,), depths=(1, 2))
_tiny_designs: Fields = dict(seeds=2, normalisations=("both",), numbers_of_states=(2,), nonlinearities=("relu_tanh",))
_tiny_networks: Fields = dict(deep_sizes=(4, 5, 5, 5, 3), sizes=(4, 5, 3), steps=5, curl_hidden=4)
_tiny_tasks: Fields = dict(tasks=("iris/32-32-32", "xor/64"), learners=2)

PRESETS: dict[str, dict[str, Preset]] = {
    "train": {
        "tiny": Preset(
            _train("tiny", _tiny, _tiny_train),
            f"400 of the 8x8 digits, 8 meta-steps; under a minute on 2 CPU cores; {_meaningless}",
        ),
        "digits": Preset(
            _train("digits", _ridge),
            "the package's `digits`: ridge updates, 12 families of tasks; half an hour on 2 CPU cores.",
        ),
        "boolean": Preset(
            _train("boolean", _boolean),
            "the package's `boolean`: functions of two inputs, two states; a minute on 2 CPU cores.",
        ),
        "poster": Preset(
            _train("poster", _poster), "MNIST at 10x10, hidden layers 256-128, 8 genomes, T = 10 .. 50; a week on 2 CPU cores."
        ),
        "poster-small": Preset(
            _train("poster_small", _poster_small), "as poster, with 4 genomes, T = 10 and 20, and 1700 meta-steps; an hour."
        ),
        "poster-wide": Preset(
            _train("poster_wide", _poster, widths=(512, 256)), "as poster, with hidden layers 512-256; about three weeks."
        ),
        "poster-wide-small": Preset(
            _train("poster_wide_small", _wide_small), "as poster-wide, with 2 genomes, 500 meta-steps at T = 10; half an hour."
        ),
        "mnist28": Preset(_train("mnist28", _poster, side=28), "as poster, at 28x28; about four weeks."),
        "mnist28-small": Preset(
            _train("mnist28_small", _wide_small, side=28, widths=(256, 128)),
            "as mnist28, with 2 genomes, T = 10 and 500 meta-steps; about 40 minutes.",
        ),
        "class-split": Preset(
            _train("class_split", _poster, _first), "as poster, on digits 0 to 4, for transfer; as long as poster."
        ),
        "class-split-small": Preset(
            _train("class_split_small", _poster_small, _first, meta_steps=(500, 250)),
            "as poster-small, on digits 0 to 4, with 750 meta-steps; about an hour.",
        ),
        "cmaes": Preset(
            _train("cmaes", _cmaes), "evolution of 80 genomes, 400 generations: MNIST at 14x14, hidden layer 512; three hours."
        ),
        "cmaes-small": Preset(
            _train("cmaes_small", _cmaes, meta_steps=(200,), learners=4, baselines=("sgd",)),
            "as cmaes, with 200 generations and one baseline; about 40 minutes.",
        ),
    },
    "transfer": {
        "tiny": Preset(
            _transfer("transfer_tiny", _tiny, _tiny_places), "`digits` elsewhere, and a genome at two depths; under a minute."
        ),
        "poster": Preset(
            _transfer("poster_elsewhere", _full, _elsewhere, genome="runs/blur_poster/genome.json"),
            "the genome of `train --preset poster` at 28x28 and in networks of 256 and 512-256; about an hour on 2 CPU cores.",
        ),
        "poster-small": Preset(
            _transfer("poster_elsewhere_small", _small, _elsewhere, genome="runs/blur_poster_small/genome.json"),
            "as poster, with the genome of `train --preset poster-small` and 4 learners; half an hour.",
        ),
        "class-split": Preset(
            _transfer("classes", _full, _classes, genome="runs/blur_class_split/genome.json"),
            "the genome of `train --preset class-split` on digits 0 to 4 and 5 to 9; a quarter of an hour on 2 CPU cores.",
        ),
        "class-split-small": Preset(
            _transfer("classes_small", _small, _classes, genome="runs/blur_class_split_small/genome.json"),
            "as class-split, with the genome of `train --preset class-split-small` and 4 learners; some minutes.",
        ),
        "depth": Preset(
            _transfer("depth", _full, _depth, _stage),
            "8 genomes for each of 1, 2 and 4 hidden layers, 10,000 meta-steps, run with 1 to 10; ten hours on 2 CPU cores.",
        ),
        "depth-small": Preset(
            _transfer("depth_small", _small, _depth, meta_steps=(600,)),
            "as depth, with 2 genomes each and 600 meta-steps; about 25 minutes.",
        ),
    },
    "ablation": {
        "tiny": Preset(
            _ablation("ablation_tiny", _tiny, _tiny_designs, variants=()),
            f"four designs from two seeds, 4 meta-steps each; two minutes on 2 CPU cores; {_meaningless}",
        ),
        "states": Preset(
            _ablation("states", _full, _states, _stage),
            "2 to 16 states: MNIST at 10x10, hidden layer 128, 8 genomes, 10,000 meta-steps, 3 seeds; 35 hours on 2 CPU cores.",
        ),
        "states-small": Preset(
            _ablation("states_small", _small, _states, meta_steps=(500,)),
            "as states, with 2 genomes and 500 meta-steps; about 40 minutes.",
        ),
        "nonlinearities": Preset(
            _ablation("nonlinearities", _full, _nonlinear, _stage, side=28),
            "5 activations: MNIST at 28x28, hidden layer 128, 8 genomes, 10,000 meta-steps, 3 seeds; a week on 2 CPU cores.",
        ),
        "nonlinearities-small": Preset(
            _ablation("nonlinearities_small", _small, _nonlinear, side=14, meta_steps=(500,)),
            "as nonlinearities, at 14x14, with 2 genomes and 500 meta-steps; about 45 minutes.",
        ),
    },
    "grid": {
        "tiny": Preset(
            _grid("grid_tiny", _learners, rates=(0.1, 1.0), momenta=(0.0, 0.9)),
            f"two rates and two momenta on 400 of the 8x8 digits; seconds on 2 CPU cores; {_meaningless}",
        ),
        "grid": Preset(
            _grid("grid_mnist", data="mnist", widths=(256, 128), batch_size=128),
            "MNIST at 28x28, hidden layers 256-128, 16 rates and 5 momenta; about half an hour on 2 CPU cores.",
        ),
        "grid-small": Preset(
            _grid("grid_small", _small, widths=(256, 128)), "as grid, at 10x10, with 4 learners; a few minutes."
        ),
    },
    "sgd-check": {
        "tiny": Preset(
            _config(SgdCheckConfig, "sgd_tiny", _tiny_networks), "small networks and 5 steps; seconds on 2 CPU cores."
        )
    },
    "tasks": {
        "tiny": Preset(_config(TasksConfig, "tasks_tiny", _tiny_tasks), "two tasks, two learners; a minute on 2 CPU cores.")
    },
}
