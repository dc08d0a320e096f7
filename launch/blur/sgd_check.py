"""Gradient descent as a genome beside `jax.grad`, and the curl of its update and of a learned one."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.blur.data import xor
from icl.blur.descent import curl, sgd_difference, sgd_genome, sgd_rules, update_jacobian
from icl.blur.design import Rules
from icl.blur.genome_files import LearnedRule, load_genome
from icl.blur.rules import init_synapses
from jexplicit.runs.progress import console
from launch.blur.config import SgdCheckConfig
from launch.blur.learners import part, ready
from launch.blur.presets import PRESETS
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results
from launch.kit.tables import Column
from launch.kit.views import Images, Section, Table

_pairs = {  # loss -> hidden and output activations
    "squared_error": (("sigmoid", "sigmoid"), ("tanh", "tanh"), ("relu", "linear")),
    "cross_entropy": (("sigmoid", "linear"), ("tanh", "linear"), ("relu", "linear")),
}


def measure(config: SgdCheckConfig, folder: RunFolder) -> Iterator[Part]:
    """Both networks with all activations and losses in both precisions, then two curls."""
    networks = [(*pair, loss) for loss, pairs in _pairs.items() for pair in pairs]
    cases: Any = itertools.product((config.sizes, config.deep_sizes), networks, ("float32", "float64"))
    for sizes, (hidden, output, loss), precision in cases:
        check = functools.partial(differences, config, sizes, sgd_rules(hidden, loss, output=output), precision)
        key = {"network": "-".join(map(str, sizes)), "activation": hidden, "loss": loss, "precision": precision}
        yield part(check, experiment="sgd-check", **key)
    descent = LearnedRule(sgd_genome(config.rate), sgd_rules("tanh", "cross_entropy"), {})
    for name, rule in {"sgd": descent, config.genome: load_genome(config.genome)}.items():
        yield part(functools.partial(curls, config, rule, folder, name), experiment="curl", genome=name)


def differences(config: SgdCheckConfig, sizes: tuple[int, ...], rules: Rules, precision: str) -> list[dict[str, Any]]:
    """The largest difference of a weight from descent by `jax.grad`."""
    options: Any = {"rate": config.rate, "steps": config.steps, "batch_size": config.batch_size, "seed": config.seed}
    with jax.enable_x64(precision == "float64"):
        found = sgd_difference(rules, sizes, dtype=np.dtype(precision), **options)
    genome = {"genome": "sgd", "states": 2, "layers": len(sizes) - 2, "normalisation": "none", "step": config.steps}
    found = {"max_difference": found.all_steps, "one_step": found.one_step, "moved": found.change}
    return [{**genome, "learning_rate": config.rate, **found}]


def curls(config: SgdCheckConfig, rule: LearnedRule, folder: RunFolder, name: str) -> list[dict[str, Any]]:
    """The curl of the update on exclusive or in float64, and how far float32 is from it."""
    initial = init_synapses(jax.random.key(config.seed), rule.genome, rule.rules, (2, config.curl_hidden, 2))

    def jacobian(dtype: Any) -> np.ndarray:  # of the same synapses: precisions differ by the numerical error only
        with jax.enable_x64(dtype == np.float64):
            genome, synapses, (x, y) = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (rule.genome, initial, xor()))
            return np.asarray(update_jacobian(genome, rule.rules, synapses, x, y), np.float64)

    single, double = jacobian(np.float32), jacobian(np.float64)
    largest, relative = map(float, curl(double))
    error = float(np.max(np.abs(single - double)))
    path = _jacobian_path(folder.path, name)
    path.parent.mkdir(exist_ok=True)
    np.save(path, double.astype(np.float32))
    console.print(f"    {name}: curl {largest:.2g}, numerical error {error:.2g}")
    design = {"states": rule.rules.states, "layers": 1, "normalisation": rule.rules.normalise}
    return [{**design, "curl": largest, "relative_curl": relative, "numerical_error": error, "variables": len(double)}]


def _jacobian_path(out: Path, name: str) -> Path:
    return out / "jacobians" / f"{Path(name).stem}.npy"


# --- views ---------------------------------------------------------------------------------------------------------------


def asymmetry(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """`log₁₀ |J - Jᵀ|`, with J the Jacobian of the update by the synapses (paper, Fig. 2)."""
    found = {row["genome"]: np.load(_jacobian_path(results.path, row["genome"])) for row in results.rows}
    return {"": {Path(name).stem: np.log10(np.maximum(np.abs(J - J.T), 1e-8)) for name, J in found.items()}}


_words = [Column(name, name) for name in ("network", "activation", "loss", "precision")]
_found = [Column("after one step", "one_step", ".1e"), Column("after all steps", "max_difference", ".1e")]
DIFFERENCES = Table(
    [*_words, *_found, Column("largest change of a weight", "moved", ".1e")],
    note="Largest difference of a weight from descent with `jax.grad`, each on its own weights.",
)
_curl = [Column("genome", "genome"), Column("variables", "variables"), Column("largest", "curl", ".2e")]
_curl += [Column("relative to J", "relative_curl", ".3f"), Column("numerical error (float32)", "numerical_error", ".1e")]
CURLS = Table(_curl, note="Curl of the update on exclusive or: `J - Jᵀ`, with J the Jacobian of the update by the synapses.")
_image = Images("curl", asymmetry, "magma", size=(4.4, 3.7), options={"vmin": -8, "vmax": 0}, caption="log₁₀ |J - Jᵀ|")
views = [
    Section("Gradient descent as a genome", [DIFFERENCES], {"experiment": "sgd-check"}),
    Section("Not a gradient", [CURLS, _image], {"experiment": "curl"}),
]
EXPERIMENT = Experiment("blur", SgdCheckConfig, measure, views, PRESETS["sgd-check"], ready, title="Descent as a learned rule")
run = EXPERIMENT.run
