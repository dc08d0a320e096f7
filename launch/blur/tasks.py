"""`launch.blur tasks`: learners by a genome on every task of the suite, beside the best of six tuned baselines."""

import functools
import time
from pathlib import Path
from typing import Any

import jax

from icl.blur.data import Sets
from icl.blur.genome_files import LearnedRule, load_genome
from icl.blur.judging.suite import Task, select_tasks, task_sets
from icl.blur.learning import learning_curves
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import show, stage
from launch.blur.measurements import learner_seeds, measure_once
from launch.blur.task_baselines import (
    UPDATES,
    has_baselines,
    mean_and_spread,
    measure_baselines,
    read_baselines,
    task_key,
    write_baselines,
)
from launch.blur.task_config import TasksConfig
from launch.blur.task_report import rates_table, tasks_table, write_task_report

_tie = 1e-9  # between accuracies that are the same fraction


def run(config: TasksConfig) -> dict[str, Any]:
    """The whole subcommand: checks, baselines and learners of every task, report with figures, tables."""
    start = time.perf_counter()
    tasks, rule = select_tasks(config.tasks), load_genome(config.genome)
    use_devices(config.devices)
    with stage("reading"):
        read = functools.cache(functools.partial(task_sets, seed=config.seed, data_dir=config.data_dir))
        sets = {task.name: read(task.data) for task in tasks}
    keys = {task.name: task_key(task, sets[task.name]) for task in tasks}
    baselines = read_baselines(Path(config.baselines), config, keys) if config.baselines else {}
    folder = RunFolder(config.out, config, resume=config.resume)
    if has_baselines(folder.path):
        baselines |= read_baselines(folder.path, config, keys)
    for number, task in enumerate(tasks, 1):
        if task.name not in baselines:
            with stage(f"{number}/{len(tasks)} baselines of {task.name}"):
                rows = measure_baselines(config, task, sets[task.name])
            baselines[task.name] = {"key": keys[task.name], "rows": rows}
            write_baselines(folder.path, config, baselines)
        measure = functools.partial(task_rows, config, rule, task, sets[task.name], baselines[task.name]["rows"])
        measure_once(folder, measure, experiment="tasks", genome=config.genome, task=task.name)
        jax.clear_caches()  # no other task has these shapes, and the programs of all tasks exhaust a process's memory maps
    write_baselines(folder.path, config, baselines)
    report = write_task_report(folder.path)
    folder.log(event="finished", seconds=time.perf_counter() - start)
    show(rates_table(folder.rows()))
    return present_run(folder, tasks_table(folder.rows()), report, start)


def task_rows(
    config: TasksConfig, rule: LearnedRule, task: Task, sets: Sets, baselines: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each number of updates: the rule's accuracy, and that of the baseline which is best on the test part."""
    curves = learning_curves(
        rule.genome,
        rule.rules,
        task.hidden,
        sets.train,
        sets.test,
        steps=UPDATES[-1],
        at=UPDATES,
        batch_size=min(config.batch_size, len(sets.train.X)),
        seeds=learner_seeds(config),
    )
    network = {"layers": task.depth, "width": task.width, "depth": task.depth, "hidden": list(task.hidden)}
    network |= {"data": sets.name, "inputs": sets.inputs, "outputs": sets.outputs, "learners": config.learners}
    network |= {"states": rule.rules.states, "normalisation": rule.rules.normalise, "unroll": rule.provenance.get("unroll")}
    rows = []
    for n, accuracies in zip(UPDATES, curves.accuracy.T, strict=True):
        best = max((row for row in baselines if row["n"] == n), key=lambda row: row["test_accuracy"])
        (ours, spread), theirs = mean_and_spread(accuracies, len(sets.test.X)), best["test_accuracy"]
        compared = {"rule_accuracy": ours, "spread": spread, "test_accuracy": ours}
        compared |= {"best_baseline": theirs, "baseline_spread": best["spread"], "learning_rate": best["learning_rate"]}
        compared |= {"baseline": f"{best['baseline']}, {best['activation']}, rate {best['learning_rate']:g}"}
        compared |= {"wins": ours > theirs + _tie, "tie": abs(ours - theirs) <= _tie}
        rows.append({**network, "n": n, "step": n, **compared})
    return rows
