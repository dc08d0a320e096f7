"""Language models trained by gradients: from random tables (cold) and from the explicit solution (warm)."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.smoothing import Noise, noise_model
from jexplicit.lm.core.softmax import map_contexts
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.gradient import cold_start, decoder_model, initial_state, kkt_residual, make_batch, training_step
from jexplicit.lm.rows.explicit import explicit_blocks, token_counts
from jexplicit.nn.optimizers import adagrad, optax_optimizer
from jexplicit.nn.training import train
from jexplicit.solvers.metrics import parameter_closeness

_compared = 10_000  # dev contexts, at most, of which the guesses are compared with those of the explicit solution
_sparse_optimizers = ("adagrad", "sgd")  # these leave a parameter without gradient where it is


def train_language_model(start: str, text: Any, options: Any, watch: Any) -> tuple[LanguageModel, dict[str, Any]]:
    """Train a model from a cold or a warm start, and keep its best epoch on the dev text.

    Args:
        start: "cold" or "warm".
        text, options, watch: see jexplicit.lm.fits.fit; the dev text is that of `watch`.

    Returns:
        the model, and results of its fit by name.

    Raises:
        ValueError: no dev text.
    """
    if watch.dev is None:
        raise ValueError(f"{start} without a dev text: training keeps its best epoch there; pass Watch(dev=stream)")
    K, features, eos = options.radius, options.features, text.eos
    counts, name = text.counts(K), f"{start}, {features}, K = {K}"
    noise = noise_model(token_counts(counts)) if options.parameters == "decoder" else None
    optimizer = make_optimizer(options)
    read = functools.partial(decoder_model, features=features, radius=K, eos=eos, noise=noise)
    X, Y = contexts(text.in_memory, K, eos=eos)
    sparse = noise is None and options.optimizer in _sparse_optimizers
    shape: Any = {"features": features, "vocab_size": text.vocab_size, "size": options.batch_size, "sparse": sparse}
    params = starting_tables(start, text, options, noise)
    goal = read(params if start == "warm" else starting_tables("warm", text, options, noise))
    seen = contexts(watch.dev, K, eos=eos)[0][:_compared]
    guesses, near = _guesses(goal, seen, text.mesh), dict[str, float]()

    def dev_loss(params: Any) -> float:
        model = read(params)
        distance, cosine = parameter_closeness(*(jnp.concatenate(one.rows.tables) for one in (model, goal)))
        agreement = float(np.mean(_guesses(model, seen, text.mesh) == guesses))
        near.update(explicit_distance=distance, explicit_cosine=cosine, explicit_agreement=agreement)
        return evaluate(model, watch.dev, mesh=text.mesh).loss

    def on_epoch(entry: Mapping[str, Any]) -> None:
        epoch = dict(entry)
        if epoch["epoch"] == 0:
            of_start = evaluate(
                read(params), text.stream, counts=counts, sample=options.train_sample, seed=options.seed, mesh=text.mesh
            )
            epoch |= {"train_loss": of_start.loss, "seconds": 0.0, "cpu_seconds": 0.0}
        watch.log(event="epoch", method=start, features=features, radius=K, **_with_perplexities(epoch), **near)

    with watch.stage(f"training {name}", "positions") as progress:
        trained = train(
            initial_state(params, optimizer, text.mesh),
            training_step(optimizer, features=features, noise=noise, mesh=text.mesh),
            lambda drawn: make_batch(X[drawn], Y[drawn], **shape),
            dev_loss,
            params=lambda state: state.params,
            size=len(Y),
            batch_size=options.batch_size,
            epochs=options.epochs,
            seed=options.seed,
            patience=options.patience,
            checkpoints=watch.checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    model = read(trained.params)
    with watch.stage("KKT residual"):
        residual = kkt_residual(model, X, Y, mesh=text.mesh)
    info = {
        "solve_seconds": trained.seconds,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        **{f"last_{name}": value for name, value in _with_perplexities(trained.history[-1]).items() if "perplexity" in name},
        "positions_per_second": trained.epochs * len(Y) / trained.seconds,
        "kkt_residual": residual,
        **{name: getattr(options, name) for name in ("optimizer", "learning_rate", "batch_size", "parameters")},
    }
    return model, info


def _guesses(model: LanguageModel, X: np.ndarray, mesh: Any) -> np.ndarray:
    """The likeliest token after every context."""
    return map_contexts(_guess, model, X, mesh=mesh)


def _guess(model: LanguageModel, x: jax.Array) -> jax.Array:
    return jnp.argmax(model.logits(x))


def make_optimizer(options: Any) -> optax.GradientTransformation:
    """The optimiser of optax, on the gradient of the mean loss of a batch."""
    if options.optimizer == "adagrad":
        chosen = adagrad(options.learning_rate, accumulator=options.accumulator)
    else:
        chosen = optax_optimizer(options.optimizer, options.learning_rate)
    return optax.chain(optax.scale(1 / options.batch_size), chosen)


def starting_tables(start: str, text: Any, options: Any, noise: Noise | None) -> tuple[jax.Array, ...]:
    """Random tables, or the explicit solution: U below the noise, or its noisy rows where these are trained."""
    K, features = options.radius, options.features
    if start == "cold":
        return cold_start(jax.random.key(options.seed), features=features, radius=K, vocab_size=text.vocab_size)
    shape: Any = {"features": features, "radius": K, "eos": text.eos}
    return explicit_blocks(text.counts(K), **shape, read=noise is None)[0]


def _with_perplexities(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An epoch with perplexities in the place of losses."""
    with np.errstate(over="ignore"):  # a diverging run is worth its line: infinite perplexity
        return {
            name.replace("loss", "perplexity"): float(np.exp(value)) if name.endswith("loss") else value
            for name, value in entry.items()
        }
