"""The subcommands of launch.blur, each of which adds rows to results.json and events to metrics.jsonl."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.blur.curl import curl, update_jacobian, xor
from icl.blur.data import Part, Sets
from icl.blur.descent import Loss, sgd_difference, sgd_genome, sgd_rules
from icl.blur.learning import Curves
from icl.blur.rules import init_synapses
from icl.blur.shipped import Learned, load_genome, save_genome
from jexplicit.nn.activations import Activation
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from launch.blur.config import AblationConfig, MetaTraining, SgdCheckConfig, TrainConfig, TransferConfig, designs
from launch.blur.models import (
    Clock,
    Job,
    add_rows,
    descent_rows,
    fare,
    genome_rows,
    has_rows,
    load_sets,
    meta_trained,
    read_sets,
    tuned_descent,
)
from launch.blur.report import jacobian_path

_descents: tuple[tuple[Activation, Activation, Loss], ...] = (
    ("sigmoid", "sigmoid", "squared_error"),
    ("tanh", "tanh", "squared_error"),
    ("relu", "linear", "squared_error"),
    ("sigmoid", "linear", "cross_entropy"),
    ("tanh", "linear", "cross_entropy"),
    ("relu", "linear", "cross_entropy"),
)  # hidden and output activations, and the loss, of the networks that descent is checked on
_transfer_rates = tuple(float(f"{rate:.3g}") for rate in np.geomspace(0.03, 10, 9))


def run_train(config: TrainConfig, folder: RunFolder) -> None:
    """Meta-train a genome; its learners beside descent at every learning rate."""
    job, sets = Job(config, folder), load_sets(config)
    learned = meta_trained(job, config.data, config, sets)
    if not has_rows(job, experiment="train", genome=config.data):
        clock = Clock()
        with stage("learners by the genome"):
            curves = fare(config, learned, sets, config.hidden, steps=max(config.steps, config.far))
        log_curve(job, "train", config.data, curves)
        rows = genome_rows("train", config.data, learned, curves, sets, config.hidden, seconds=clock())
        scores = {str(row["step"]): round(row["test_accuracy"], 4) for row in rows}
        save_genome(folder.path / "genome.json", learned._replace(provenance={**learned.provenance, "test_accuracy": scores}))
        add_rows(job, rows)
    for optimizer in config.baselines:
        for normalised in (False, True):
            name = optimizer + ", normalised" * normalised
            if not has_rows(job, experiment="train", baseline=name):
                clock = Clock()
                with stage(f"descent, {name}"):
                    tuned, every = tuned_descent(
                        config,
                        optimizer,
                        config.rates,
                        config.baseline_activations,
                        sets,
                        config.hidden,
                        normalised=normalised,
                        steps=config.steps,
                    )
                all_rates = every.reshape(-1, every.shape[-1]).round(4).tolist()
                best = {"best": tuned.accuracy.tolist(), "spread": tuned.spread.tolist()}
                folder.log(event="descent", name=name, rates=config.rates, curves=all_rates, **best)
                more = descent_rows("train", name, tuned, sets, config.hidden, normalised=normalised, seconds=clock())
                add_rows(job, more)


def run_transfer(config: TransferConfig, folder: RunFolder) -> None:
    """A genome elsewhere, beside tuned descent there; then genomes of some depths at others."""
    job, sets = Job(config, folder), load_sets(config)
    learned = load_genome(config.genome)
    base = config.hidden
    elsewhere: list[tuple[str, Sets, tuple[int, ...]]] = [("same", sets, base)]
    elsewhere += [(f"width {width}", sets, (width, *base[1:])) for width in config.widths]
    elsewhere += [(f"{side} x {side}", read_sets(config, side=side), base) for side in config.sides]
    elsewhere += [(name, xor_sets() if name == "xor" else read_sets(config, name), base) for name in config.others]
    for name, there, hidden in elsewhere:
        if has_rows(job, experiment="transfer", where=name):
            continue
        with stage(f"the genome at {name}"):
            clock = Clock()
            curves = fare(config, learned, there, hidden, steps=config.steps)
            rows = genome_rows("transfer", config.genome, learned, curves, there, hidden, seconds=clock())
            log_curve(job, "transfer", name, curves)
            for normalised in (False, True):
                clock, what = Clock(), "sgd" + ", normalised" * normalised
                tuned, _ = tuned_descent(
                    config, "sgd", _transfer_rates, ("tanh",), there, hidden, normalised=normalised, steps=config.steps
                )
                folder.log(event="descent", name=f"{name}: {what}", best=tuned.accuracy.tolist(), spread=tuned.spread.tolist())
                rows += descent_rows("transfer", what, tuned, there, hidden, normalised=normalised, seconds=clock())
        add_rows(job, [{**row, "where": name} for row in rows])
    for depth in config.train_depths:
        at = dataclasses.replace(config, hidden=base[:1] * depth)
        name = f"depth {depth}"
        by_depth = meta_trained(job, name, at, sets)
        run_depths(job, name, by_depth, sets)


def run_depths(job: Job, name: str, learned: Learned, sets: Sets) -> None:
    """One genome at several numbers of hidden layers."""
    for depth in job.config.depths:
        if not has_rows(job, experiment="depth", genome=name, layers=depth):
            clock, hidden = Clock(), job.config.hidden[:1] * depth
            with stage(f"{name} at {depth} hidden layers"):
                curves = fare(job.config, learned, sets, hidden, steps=job.config.steps)
            add_rows(job, genome_rows("depth", name, learned, curves, sets, hidden, seconds=clock()))


def run_ablation(config: AblationConfig, folder: RunFolder) -> None:
    """Genomes that differ in one choice, where they were trained, far past it, on larger images and in a deeper network."""
    job, sets = Job(config, folder), load_sets(config)
    wide = read_sets(config, side=2 * round(sets.inputs**0.5))
    for name, design in designs(config).items():
        if has_rows(job, experiment="ablation", genome=name):
            continue
        same = next((old for old, other in designs(config).items() if other == design), name)  # the reference comes twice
        learned = meta_trained(job, same, design, sets, backprop=name == "backprop start")
        measure_design(job, name, design, learned, {"same": sets, "larger images": wide})


def measure_design(job: Job, name: str, design: MetaTraining, learned: Learned, places: dict[str, Sets]) -> None:
    """The rows of one design."""
    rows, hidden = [], design.hidden
    with stage(f"learners, {name}"):
        for where, there, layers in [(place, sets, hidden) for place, sets in places.items()] + [
            ("deeper", places["same"], (*hidden, hidden[-1]))
        ]:
            clock = Clock()
            curves = fare(design, learned, there, layers, steps=design.steps)
            log_curve(job, f"ablation, {where}", name, curves)
            rows += [
                {**row, "where": where, "skipped": learned.provenance["skipped"], "meta_seconds": learned.provenance["seconds"]}
                for row in genome_rows("ablation", name, learned, curves, there, layers, seconds=clock())
            ]
    add_rows(job, rows)


def run_sgd_check(config: SgdCheckConfig, folder: RunFolder) -> None:
    """The genome of descent beside `jax.grad`, in both precisions; and the curl of its update and of a learned one."""
    job = Job(config, folder)
    for sizes in (config.sizes, config.deep_sizes):
        for hidden, output, loss in _descents:
            about = {"layers": len(sizes) - 2, "network": "-".join(map(str, sizes)), "activation": hidden, "loss": loss}
            if not has_rows(job, experiment="sgd-check", **about):
                with stage(f"descent, {about['network']} {hidden}, {loss}"):
                    add_rows(job, _differences(config, sizes, sgd_rules(hidden, loss, output=output), about))
    if not has_rows(job, experiment="curl"):
        with stage("curl on exclusive or"):
            add_rows(job, _curls(config, job))


def _differences(config: SgdCheckConfig, sizes: tuple[int, ...], rules: Any, about: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for dtype in (np.float32, np.float64):
        clock = Clock()
        with jax.enable_x64(dtype == np.float64):
            found = sgd_difference(
                rules,
                sizes,
                rate=config.rate,
                steps=config.steps,
                batch_size=config.batch_size,
                seed=config.seed,
                dtype=dtype,
            )
        rows.append(
            {
                "experiment": "sgd-check",
                "genome": "sgd",
                "states": 2,
                "normalisation": "none",
                "step": config.steps,
                "learning_rate": config.rate,
                "max_difference": found.all_steps,
                "one_step": found.one_step,
                "moved": found.moved,
                "precision": np.dtype(dtype).name,
                "seconds": clock(),
                **about,
            }
        )
    return rows


def _curls(config: SgdCheckConfig, job: Job) -> list[dict[str, Any]]:
    rules = sgd_rules("tanh", "cross_entropy")
    rows = []
    for name, learned in {
        "sgd": Learned(sgd_genome(config.rate), rules, {}),
        config.genome: load_genome(config.genome),
    }.items():
        clock, jacobians = Clock(), []
        first = init_synapses(jax.random.key(config.seed), learned.genome, learned.rules, (2, config.curl_hidden, 2))
        for dtype in (np.float32, np.float64):  # the same synapses; what the precision changes is the numerical error
            with jax.enable_x64(dtype == np.float64):
                genome, synapses = jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), (learned.genome, first))
                x, y = (jnp.asarray(part, dtype) for part in xor())
                jacobians.append(np.asarray(update_jacobian(genome, learned.rules, synapses, x, y), np.float64))
        found = [curl(jacobian) for jacobian in jacobians]
        error = float(np.max(np.abs(jacobians[0] - jacobians[1])))
        np.save(jacobian_path(job.folder.path, name), jacobians[1].astype(np.float32))
        rows.append(
            {
                "experiment": "curl",
                "genome": name,
                "states": learned.rules.states,
                "layers": 1,
                "normalisation": learned.rules.normalise,
                "curl": found[1].largest,
                "relative_curl": found[1].relative,
                "numerical_error": error,
                "variables": len(jacobians[1]),
                "seconds": clock(),
            }
        )
        console.print(f"    {name}: curl {found[1].largest:.2g}, numerical error {error:.2g}")
    return rows


def xor_sets() -> Sets:
    """Exclusive or as data: its four points are train, dev and test."""
    part = Part(*(array.astype(np.float32) for array in xor()))
    return Sets(part, part, part, "xor")


def log_curve(job: Job, experiment: str, name: str, curves: Curves) -> None:
    """Keep a learning curve for the figures."""
    size = curves.size.mean(axis=0)
    job.folder.log(
        event="curve",
        experiment=experiment,
        name=name,
        accuracy=curves.accuracy.mean(axis=0).round(5).tolist(),
        spread=curves.accuracy.std(axis=0).round(5).tolist(),
        size=[float(value) if np.isfinite(value) else None for value in size],
    )
