"""The whole job of launch.icl: closed forms -> training -> comparison, figures, report."""

import time
from collections.abc import Callable
from typing import Any

from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import console
from launch.icl.config import Config, check, effort, selected_experiments
from launch.icl.experiments.attention_variants import finite_data, layernorm, phase, softmax
from launch.icl.experiments.blocks import blocks
from launch.icl.experiments.copying import copy
from launch.icl.experiments.depths import depths
from launch.icl.experiments.function_classes import compare_on_functions
from launch.icl.experiments.linear_regression import curvature, multi_step, one_step, out_of_distribution, rollout, scaling_n
from launch.icl.experiments.looped import looped
from launch.icl.experiments.markov import markov
from launch.icl.experiments.mesa import mesa
from launch.icl.experiments.newton import newton
from launch.icl.experiments.noise import noisy
from launch.icl.experiments.sine_waves import nonlinear
from launch.icl.experiments.task_diversity import task_diversity
from launch.icl.job import Job
from launch.icl.recipes import make_tasks
from launch.icl.report import write_report
from launch.icl.tables import terminal_table

_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on

# Each adds rows to results.json and events to metrics.jsonl, and skips what the run has rows for.
RUN: dict[str, Callable[[Job], None]] = {
    "one-step": one_step,
    "multi-step": multi_step,
    "depths": depths,
    "out-of-distribution": out_of_distribution,
    "rollout": rollout,
    "curvature": curvature,
    "scaling-N": scaling_n,
    "nonlinear": nonlinear,
    "copy": copy,
    "softmax": softmax,
    "layernorm": layernorm,
    "phase": phase,
    "finite-data": finite_data,
    "noisy": noisy,
    "function-classes": compare_on_functions,
    "looped": looped,
    "newton": newton,
    "markov": markov,
    "mesa": mesa,
    "task-diversity": task_diversity,
    "blocks": blocks,
}


def run(config: Config) -> dict[str, Any]:
    """The whole job: closed forms -> training -> comparison, figures, report."""
    start = time.perf_counter()
    check(config)
    experiments = selected_experiments(config)
    if config.batch_size * max(effort(config, experiment).steps for experiment in experiments) <= _short:
        compile_quickly()
    mesh = use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    job = Job(config, folder, make_tasks(config))
    sizes = f"d = {config.dim}, N = {config.context}, on {mesh.size} x {mesh.devices.flat[0].device_kind}"
    console.print(f"[bold]in-context learning[/] {sizes}")
    for experiment in experiments:
        RUN[experiment](job)
    report = write_report(folder.path)
    folder.log(event="finished", seconds=time.perf_counter() - start)
    # roll-outs and shifted tasks are curves, in the report
    return present_run(folder, terminal_table(folder.rows()), report, start)
