"""The model of launch.lm with fewer features than tokens: bitcipher."""

import time
from typing import Any

import jax
import numpy as np

from jexplicit.lm.bitcipher import bit_cipher, coded_language_model, evaluate_coded
from jexplicit.lm.explicit import Features
from jexplicit.runs.progress import stage
from launch.lm.models import Job, add_evaluated_row, has_row, label


def measure_coded(job: Job, features: Features, radius: int, bits: int) -> None:
    """Solve and evaluate one model on coded contexts, and add its row."""
    method, config = "bitcipher", job.config
    if has_row(job, method, features, radius, bits=bits):
        return
    name = f"{label(method, features, radius)}, {bits} bits"
    begin = time.perf_counter()
    codes = bit_cipher(np.bincount(job.text.train[1:], minlength=job.about["vocab_size"]), bits)
    with stage(name, "positions") as progress:
        model = coded_language_model(
            job.text.train[:], codes, features=features, radius=radius, eos=config.eos, progress=progress
        )
    jax.block_until_ready(model.tables)
    seconds = time.perf_counter() - begin
    with stage(f"perplexity of {name}", "contexts") as progress:
        start = time.perf_counter()
        shared: Any = {"seed": config.seed, "mesh": job.mesh, "progress": progress}
        train = evaluate_coded(model, job.text.train[:], sample=config.train_sample or None, **shared)
        dev = evaluate_coded(model, job.text.dev, **shared)
        eval_seconds = time.perf_counter() - start
    more = {
        "bits": bits,
        "solve_seconds": seconds,
        "eval_seconds": eval_seconds,
        "bytes": model.nbytes,
    }
    add_evaluated_row(job, method, features, radius, train, dev, more)
