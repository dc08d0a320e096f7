"""The subcommands of launch.blur; each adds rows to results.json and events to metrics.jsonl."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.blur.descent import Loss, sgd_difference, sgd_genome, sgd_rules
from icl.blur.genome_files import LearnedRule, load_genome, save_genome
from icl.blur.rules import Rules, init_synapses
from icl.blur.update_field import curl, update_jacobian, xor
from jexplicit.nn.names import Activation
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.blur.config import AblationConfig, GridConfig, SgdCheckConfig, TrainConfig, TransferConfig, designs, hidden_layers
from launch.blur.data import load_sets, read_sets
from launch.blur.measurements import find_genome, measure_descent, measure_grid, measure_learners, measure_once
from launch.blur.report import jacobian_path

_networks: tuple[tuple[Activation, Activation, Loss], ...] = (
    ("sigmoid", "sigmoid", "squared_error"),
    ("tanh", "tanh", "squared_error"),
    ("relu", "linear", "squared_error"),
    ("sigmoid", "linear", "cross_entropy"),
    ("tanh", "linear", "cross_entropy"),
    ("relu", "linear", "cross_entropy"),
)  # hidden activation, output activation and loss of the networks for sgd-check
_transfer_rates = tuple(float(f"{rate:.3g}") for rate in np.geomspace(0.03, 10, 9))


def run_train(config: TrainConfig, folder: RunFolder) -> None:
    """Meta-train a genome, and compare its learners with gradient descent at every learning rate."""
    sets = load_sets(config)
    rule = find_genome(folder, sets.name, config, sets)
    key: Any = {"experiment": "train", "genome": sets.name}
    measure_learners(folder, config, rule, sets, config.widths, steps=max(config.steps, config.far), **key)
    accuracy = {str(row["step"]): round(row["test_accuracy"], 4) for row in folder.rows() if row["genome"]}
    save_genome(folder.path / "genome.json", rule._replace(provenance={**rule.provenance, "test_accuracy": accuracy}))
    choices: Any = {"rates": config.rates, "activations": config.baseline_activations}
    for optimizer in config.baselines:
        measure_descent(folder, config, optimizer, sets, config.widths, **choices, experiment="train")


def run_transfer(config: TransferConfig, folder: RunFolder) -> None:
    """A genome in other networks and on other data, with tuned descent; then genomes of some depths at others."""
    sets, rule, hidden = load_sets(config), load_genome(config.genome), config.widths
    places = {"same": (sets, hidden)}
    places |= {f"hidden {network}": (sets, hidden_layers(network)) for network in config.networks}
    places |= {f"{side} x {side}": (read_sets(config, side=side), hidden) for side in config.sides}
    places |= {name: (read_sets(config, name), hidden) for name in config.others}
    if config.to_classes:
        others = read_sets(config, side=config.side, classes=config.to_classes)
        places[f"classes {' '.join(map(str, config.to_classes))}"] = others, hidden
    for where, network in places.items():
        key: Any = {"experiment": "transfer", "where": where}
        measure_learners(folder, config, rule, *network, **key, genome=config.genome)
        measure_descent(folder, config, "sgd", *network, rates=_transfer_rates, **key)
    for depth in config.train_depths:
        name = f"depth {depth}"
        rule = find_genome(folder, name, dataclasses.replace(config, widths=hidden[:1] * depth), sets)
        for layers in config.depths:
            measure_learners(folder, config, rule, sets, hidden[:1] * layers, experiment="depth", genome=name, layers=layers)


def run_ablation(config: AblationConfig, folder: RunFolder) -> None:
    """Genomes that differ in one choice: in the networks of their meta-training, on larger images and in deeper networks.

    The genomes of several seeds run the same learners, so that their accuracies differ by meta-training alone.
    """
    sets, hidden = load_sets(config), config.widths
    larger = read_sets(config, side=2 * round(sets.inputs**0.5))
    places = {"same": (sets, hidden), "larger images": (larger, hidden), "deeper": (sets, (*hidden, hidden[-1]))}
    for name, design in designs(config).items():
        first = next(other for other, same in designs(config).items() if same == design)  # the reference occurs repeatedly
        for seed in range(config.seed, config.seed + config.seeds):
            start = dataclasses.replace(design, seed=seed)
            rule = find_genome(folder, f"{first}/{seed}", start, sets)
            fields: Any = {"skipped": rule.provenance["skipped"], "meta_seconds": rule.provenance["seconds"]}
            fields |= {"output_normalised": design.normalise_output, "activation": design.hidden_activation}
            for where, network in places.items():
                key: Any = {"experiment": "ablation", "genome": name, "seed": seed, "where": where}
                measure_learners(folder, config, rule, *network, fields=fields, **key)


def run_grid(config: GridConfig, folder: RunFolder) -> None:
    """Gradient descent at every learning rate and momentum, and the learners of a genome."""
    sets, rule = load_sets(config), load_genome(config.genome)
    measure_learners(folder, config, rule, sets, config.widths, experiment="grid", genome=config.genome)
    measure_grid(folder, config, sets)


def run_sgd_check(config: SgdCheckConfig, folder: RunFolder) -> None:
    """The genome of gradient descent and `jax.grad` in both precisions; and the curl of its update and of a learned one."""
    for sizes in (config.sizes, config.deep_sizes):
        for hidden, output, loss in _networks:
            for precision in ("float32", "float64"):
                check = functools.partial(_sgd_rows, config, sizes, sgd_rules(hidden, loss, output=output), precision)
                key = {"network": "-".join(map(str, sizes)), "activation": hidden, "loss": loss, "precision": precision}
                measure_once(folder, check, experiment="sgd-check", **key)
    descent = LearnedRule(sgd_genome(config.rate), sgd_rules("tanh", "cross_entropy"), {})
    for name, rule in {"sgd": descent, config.genome: load_genome(config.genome)}.items():
        measure_once(folder, functools.partial(_curl_rows, config, rule, folder, name), experiment="curl", genome=name)


def _sgd_rows(config: SgdCheckConfig, sizes: tuple[int, ...], rules: Rules, precision: str) -> list[dict[str, Any]]:
    options: Any = {"rate": config.rate, "steps": config.steps, "batch_size": config.batch_size, "seed": config.seed}
    with jax.enable_x64(precision == "float64"):
        found = sgd_difference(rules, sizes, dtype=np.dtype(precision), **options)
    differences = {"max_difference": found.all_steps, "one_step": found.one_step, "moved": found.change}
    genome = {"genome": "sgd", "states": 2, "layers": len(sizes) - 2, "normalisation": "none"}
    return [{**genome, "step": config.steps, "learning_rate": config.rate, **differences}]


def _curl_rows(config: SgdCheckConfig, rule: LearnedRule, folder: RunFolder, name: str) -> list[dict[str, Any]]:
    initial = init_synapses(jax.random.key(config.seed), rule.genome, rule.rules, (2, config.curl_hidden, 2))

    def jacobian(dtype: Any) -> np.ndarray:  # of the same synapses: precisions differ by the numerical error only
        with jax.enable_x64(dtype == np.float64):
            genome, synapses, (x, y) = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (rule.genome, initial, xor()))
            return np.asarray(update_jacobian(genome, rule.rules, synapses, x, y), np.float64)

    single, double = jacobian(np.float32), jacobian(np.float64)
    largest, relative = map(float, curl(double))
    error = float(np.max(np.abs(single - double)))
    np.save(jacobian_path(folder.path, name), double.astype(np.float32))
    console.print(f"    {name}: curl {largest:.2g}, numerical error {error:.2g}")
    design = {"states": rule.rules.states, "layers": 1, "normalisation": rule.rules.normalise}
    curls = {"curl": largest, "relative_curl": relative, "numerical_error": error, "variables": len(double)}
    return [{**design, **curls}]
