"""Named configurations of launch.blur: the poster's and the paper's experiments at their scale, and in an hour of 2 cores.

Sizes, states, batches, populations, curricula and meta-rates of the full ones are the paper's. The design is that of the flags'
defaults; `--no-synapse-norm --path 0 --output-activation tanh` makes it the paper's own. Hours are estimates: an update of the
poster's network takes 0.03 to 0.05 s of a core with its derivatives, and others in proportion to their weights times states.
"""

import dataclasses
from typing import Any

from jexplicit.runs.command import Preset
from launch.blur.config import AblationConfig, GridConfig, SgdCheckConfig, TrainConfig, TransferConfig

_TINY_LEARNERS: dict[str, Any] = dict(limit=400, widths=(8,), batch_size=16, learners=2, steps=12)
_TINY: dict[str, Any] = _TINY_LEARNERS | dict(
    query_size=50, population=2, unroll=(3, 5), meta_steps=(4, 4), every=4, episodes=2
)
_TINY_STAGE: dict[str, Any] = _TINY | dict(unroll=(3,), meta_steps=(4,))
_PLACES: dict[str, Any] = dict(networks=("16",), sides=(16,), others=("wine",), train_depths=(1,), depths=(1, 2))
_DESIGNS: dict[str, Any] = dict(
    seeds=2, normalisations=("both",), numbers_of_states=(2,), nonlinearities=("relu_tanh",), variants=()
)
# The shipped genomes.
_RIDGE: dict[str, Any] = dict(states=2, backward="multiplicative_second_state", multistate=False, normalise_output=False)
_RIDGE |= dict(over="mixed", synapse_norm=False, update="ridge", aging=True, average=True, pre="sequential", derivative=True)
_RIDGE |= dict(hidden_activation="silu", output_activation="linear", backward_activation="linear", feedback="cross_entropy")
_RIDGE |= dict(start="ridge", families="digits", objective="curve", population=1, unroll=(100,), meta_steps=(480,), every=240)
_RIDGE |= dict(meta_rate=6e-3, gradient_clip=0.3, episodes=2)
_BOOLEAN: dict[str, Any] = dict(data="xor", widths=(20,), states=2, synapse_norm=False, families="boolean", objective="curve")
_BOOLEAN |= dict(population=8, unroll=(10,), meta_steps=(600,), meta_rate=0.01, gradient_clip=1.0, query_size=100, learners=20)
_NETWORKS: dict[str, Any] = dict(deep_sizes=(4, 5, 5, 5, 3), sizes=(4, 5, 3), steps=5, curl_hidden=4)

# The poster: MNIST at 10 x 10, two hidden layers, four states, 10,000 meta-steps at T = 10, 15, .. 50 from 8 genomes.
_MNIST: dict[str, Any] = dict(data="mnist", side=10, batch_size=128, population=8, meta_rate=5e-4)
_CURRICULUM: dict[str, Any] = dict(unroll=tuple(range(10, 51, 5)), meta_steps=(10_000,) * 9)
_ONE_STAGE: dict[str, Any] = dict(unroll=(10,), meta_steps=(10_000,))
_SMALL: dict[str, Any] = dict(data="mnist", side=10, batch_size=128, learners=4)
_SMALL_TRAIN: dict[str, Any] = _SMALL | dict(baselines=("sgd", "momentum"), baseline_activations=("tanh",))
_FIRST: dict[str, Any] = dict(classes=(0, 1, 2, 3, 4))
_OTHER: dict[str, Any] = _FIRST | dict(networks=(), sides=(), others=(), train_depths=(), to_classes=(5, 6, 7, 8, 9))
_ELSEWHERE: dict[str, Any] = dict(networks=("256", "512x256"), sides=(28,), others=(), train_depths=())
_DEPTH: dict[str, Any] = dict(widths=(128,), networks=(), sides=(), others=())
_STATES: dict[str, Any] = dict(widths=(128,), normalisations=(), nonlinearities=(), variants=())
_NONLINEAR: dict[str, Any] = dict(widths=(128,), normalisations=(), numbers_of_states=(), variants=())
_CMAES: dict[str, Any] = dict(side=14, widths=(512,), states=2, method="evolution", population=80, unroll=(15,), every=10)
_CMAES |= dict(query_size=20 * 128, fitness_learners=1)

_poster = TrainConfig("runs/blur_poster", widths=(256, 128), **_MNIST, **_CURRICULUM)
_poster_small = TrainConfig(
    "runs/blur_poster_small", widths=(256, 128), **_SMALL_TRAIN, unroll=(10, 20), meta_steps=(1200, 500), population=4
)
_wide_small = TrainConfig(
    "runs/blur_poster_wide_small", widths=(512, 256), **_SMALL_TRAIN, unroll=(10,), meta_steps=(500,), population=2
)
_split_small = dataclasses.replace(_poster_small, out="runs/blur_class_split_small", meta_steps=(500, 250), **_FIRST)
_poster_genome, _small_genome = (f"{config.out}/genome.json" for config in (_poster, _poster_small))
_split_genome, _split_small_genome = "runs/blur_class_split/genome.json", f"{_split_small.out}/genome.json"
_cmaes = TrainConfig("runs/blur_cmaes", **{**_MNIST, **_CMAES, "meta_steps": (400,)})

PRESETS: dict[str, dict[str, Preset]] = {
    "train": {
        "tiny": Preset(
            TrainConfig("runs/blur_tiny", **_TINY, far=20, rates=(0.1, 1.0), baselines=("sgd",)),
            "400 of the 8x8 digits and 8 meta-steps; under a minute on 2 CPU cores. The numbers mean nothing.",
        ),
        "digits": Preset(
            TrainConfig("runs/blur_digits", **_RIDGE),
            "the genome `digits` of the package: ridge updates, 12 families of tasks; half an hour on 2 CPU cores.",
        ),
        "boolean": Preset(
            TrainConfig("runs/blur_boolean", **_BOOLEAN, far=0, steps=20, baselines=()),
            "the genome `boolean` of the package: functions of two inputs, two states, 204 synapses; a minute on 2 CPU cores.",
        ),
        "poster": Preset(
            _poster, "MNIST at 10x10, hidden layers 256-128, 8 genomes, T = 10 .. 50; about a week on 2 CPU cores."
        ),
        "poster-small": Preset(_poster_small, "as poster, with 4 genomes, T = 10 and 20, and 1700 meta-steps; about an hour."),
        "poster-wide": Preset(
            dataclasses.replace(_poster, out="runs/blur_poster_wide", widths=(512, 256)),
            "as poster, with hidden layers 512-256; about three weeks.",
        ),
        "poster-wide-small": Preset(
            _wide_small, "as poster-wide, with 2 genomes, T = 10 and 500 meta-steps; about half an hour."
        ),
        "mnist28": Preset(
            dataclasses.replace(_poster, out="runs/blur_mnist28", side=28),
            "as poster, at 28x28; about four weeks.",
        ),
        "mnist28-small": Preset(
            dataclasses.replace(_wide_small, out="runs/blur_mnist28_small", side=28, widths=(256, 128)),
            "as mnist28, with 2 genomes, T = 10 and 500 meta-steps; about 40 minutes.",
        ),
        "class-split": Preset(
            dataclasses.replace(_poster, out="runs/blur_class_split", **_FIRST),
            "as poster, on digits 0 to 4, for `transfer --preset class-split`; as long as poster.",
        ),
        "class-split-small": Preset(_split_small, "as poster-small, on digits 0 to 4, with 750 meta-steps; about an hour."),
        "cmaes": Preset(
            _cmaes,
            "evolution of 80 genomes for 400 generations: MNIST at 14x14, hidden layer 512, 2 states, T = 15; three hours.",
        ),
        "cmaes-small": Preset(
            dataclasses.replace(_cmaes, out="runs/blur_cmaes_small", meta_steps=(200,), learners=4, baselines=("sgd",)),
            "as cmaes, with 200 generations and one baseline; about 40 minutes.",
        ),
    },
    "transfer": {
        "tiny": Preset(
            TransferConfig("runs/blur_transfer_tiny", **_TINY_STAGE, **_PLACES),
            "the genome `digits` elsewhere, and one of 4 meta-steps at two depths; under a minute on 2 CPU cores.",
        ),
        "poster": Preset(
            TransferConfig("runs/blur_poster_elsewhere", widths=(256, 128), genome=_poster_genome, **_MNIST, **_ELSEWHERE),
            "the genome of `train --preset poster` at 28x28 and in networks of 256 and 512-256; about an hour on 2 CPU cores.",
        ),
        "poster-small": Preset(
            TransferConfig("runs/blur_poster_elsewhere_small", widths=(256, 128), genome=_small_genome, **_SMALL, **_ELSEWHERE),
            "as poster, with the genome of `train --preset poster-small` and 4 learners; half an hour.",
        ),
        "class-split": Preset(
            TransferConfig("runs/blur_classes", widths=(256, 128), genome=_split_genome, **_MNIST, **_OTHER),
            "the genome of `train --preset class-split` on digits 0 to 4 and 5 to 9; a quarter of an hour on 2 CPU cores.",
        ),
        "class-split-small": Preset(
            TransferConfig("runs/blur_classes_small", widths=(256, 128), genome=_split_small_genome, **_SMALL, **_OTHER),
            "as class-split, with the genome of `train --preset class-split-small` and 4 learners; some minutes.",
        ),
        "depth": Preset(
            TransferConfig("runs/blur_depth", **_MNIST, **_DEPTH, **_ONE_STAGE),
            "8 genomes for each of 1, 2 and 4 hidden layers, 10,000 meta-steps, run with 1 to 10; about ten hours on 2 CPU "
            "cores.",
        ),
        "depth-small": Preset(
            TransferConfig("runs/blur_depth_small", **_SMALL, **_DEPTH, unroll=(10,), meta_steps=(600,)),
            "as depth, with 2 genomes each and 600 meta-steps; about 25 minutes.",
        ),
    },
    "ablation": {
        "tiny": Preset(
            AblationConfig("runs/blur_ablation_tiny", **_TINY_STAGE, **_DESIGNS),
            "four designs from two seeds, 4 meta-steps each; two minutes on 2 CPU cores. The numbers mean nothing.",
        ),
        "states": Preset(
            AblationConfig("runs/blur_states", **_MNIST, **_STATES, **_ONE_STAGE),
            "2 to 16 states: MNIST at 10x10, hidden layer 128, 8 genomes, 10,000 meta-steps, 3 seeds; 35 hours on 2 CPU cores.",
        ),
        "states-small": Preset(
            AblationConfig("runs/blur_states_small", **_SMALL, **_STATES, meta_steps=(500,)),
            "as states, with 2 genomes and 500 meta-steps; about 40 minutes.",
        ),
        "nonlinearities": Preset(
            AblationConfig("runs/blur_nonlinearities", **{**_MNIST, "side": 28}, **_NONLINEAR, **_ONE_STAGE),
            "5 activations: MNIST at 28x28, hidden layer 128, 8 genomes, 10,000 meta-steps, 3 seeds; about a week on 2 CPU "
            "cores.",
        ),
        "nonlinearities-small": Preset(
            AblationConfig("runs/blur_nonlinearities_small", **{**_SMALL, "side": 14}, **_NONLINEAR, meta_steps=(500,)),
            "as nonlinearities, at 14x14, with 2 genomes and 500 meta-steps; about 45 minutes.",
        ),
    },
    "grid": {
        "tiny": Preset(
            GridConfig("runs/blur_grid_tiny", **_TINY_LEARNERS, rates=(0.1, 1.0), momenta=(0.0, 0.9)),
            "two rates and two momenta on 400 of the 8x8 digits; seconds on 2 CPU cores. The numbers mean nothing.",
        ),
        "grid": Preset(
            GridConfig("runs/blur_grid_mnist", data="mnist", widths=(256, 128), batch_size=128),
            "MNIST at 28x28, hidden layers 256-128, 16 rates and 5 momenta; about half an hour on 2 CPU cores.",
        ),
        "grid-small": Preset(
            GridConfig("runs/blur_grid_small", widths=(256, 128), **_SMALL),
            "as grid, at 10x10, with 4 learners; a few minutes.",
        ),
    },
    "sgd-check": {
        "tiny": Preset(
            SgdCheckConfig("runs/blur_sgd_tiny", **_NETWORKS), "small networks and 5 steps; seconds on 2 CPU cores."
        ),
    },
}
