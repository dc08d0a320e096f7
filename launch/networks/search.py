"""launch.networks lr-search: a range test within one run, then a grid of separate runs around what it picks."""

import jax
import numpy as np

from jexplicit.nn.networks import init_variables
from jexplicit.runs.folder import RunFolder
from launch.networks import images as networks_images
from launch.networks import text as networks_text
from launch.networks.config import RateConfig
from launch.networks.rates import grid_of_rates, sweep
from launch.networks.training import Job, measure, plan_from


def run_lr_search(config: RateConfig, folder: RunFolder) -> None:
    """Range test, grid, and a training run with each of the two rates that they pick."""
    if config.task == "mlp-lm":
        text = networks_text.read_text(config)
        data, about, model = text.data, text.about, networks_text.network(config, text)
        variables = init_variables(model, jax.random.key(config.seed), data.train.X[:2])
    else:
        images = networks_images.read_pictures(config)
        data, about = networks_images.centred_data(images), networks_images.about(images)
        model = networks_images.network(config, data)
        variables = networks_images.start(config, model, data)
    job = Job(config, folder, {"command": "lr-search", **about})
    plan = plan_from(config, name="range test", model=config.task, network=model, variables=variables)
    picked = sweep(job, plan, data)
    measure(job, plan._replace(learning_rate=picked), data, searched="range test")
    rates = np.geomspace(picked / 10, picked * 10, config.grid)
    best = grid_of_rates(job, plan._replace(name="grid"), data, rates, config.grid_steps)
    measure(job, plan._replace(name="grid", learning_rate=best), data, searched="grid")
