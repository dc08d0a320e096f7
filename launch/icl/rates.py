"""Experiments of launch.icl on regression: trained and solved layers, Newton's steps, and online estimators."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

from icl import rates, recurrences
from icl.attention import head_maps, interpolate, ridge, softmax_descent_layer, softmax_layers
from icl.rates import Polynomial, context_eigenvalues, evaluate_polynomial, optimal_polynomials
from icl.recurrences import Dynamics, Stream, Streams, delta_losses, hebbian_losses, mesa_recursion
from icl.tasks import Tasks, sample_tasks, vmap_tasks
from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from launch.icl import config as configs
from launch.icl import training
from launch.icl.config import LayerFlags, MultiStepConfig
from launch.icl.training import BY_NAME, LOSS, TEST, VALIDATION, Family, Model, experiment, make_model, measures, random_key
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, figure, means, pivot, pivot_table, where

# Linear attention on linear regression compared with gradient descent (von Oswald 2023).

_penalty = 1e-6  # of ridge regression on tasks without noise


def _regression(config: configs.OneStepConfig | MultiStepConfig, folder: RunFolder) -> list[Row]:
    """Untrained, trained and interpolated predictors; several layers are also trained from the solution."""
    runs, model = {"cold": config.steps}, make_model(config)
    if isinstance(config, MultiStepConfig):
        model = make_model(config, config.layers, recurrent=config.recurrent)
        runs |= {"warm": config.warm_steps} if config.warm_steps else {}
    constructed, families = training.constructed_layers(config, model), training.descent_families(config, model)
    (_, about), *_ = training.descent_family(config, model, "gd++").members
    by_ridge = lambda penalty, batch: vmap_tasks(lambda s: ridge(s, penalty))(batch)  # noqa: E731
    families += [
        Family("constructed", training.make_regression(model).predict, [(constructed, about)]),
        Family("ridge", by_ridge, [(jnp.asarray(_penalty, jnp.zeros(()).dtype), {})]),
    ]
    for start, steps in runs.items():
        trained = training.trained_family(config, folder, model, start=start, steps=steps)
        families.append(training.with_descent_rates(model, trained) if model.recurrent else trained)
        if start == "cold":
            middle = [(interpolate(layers, constructed, dim=model.tasks.dim), entry) for layers, entry in trained.members]
            families.append(trained._replace(name="interpolated", members=middle))
    return training.measure_families(config, model, families)


_panels = {
    "loss": "validation loss", "cosine": "cosine of sensitivities",
    "prediction_difference": "distance of predictions", "model_difference": "distance of sensitivities",
}  # fmt: skip


def _training_curves(results: Results) -> list[str]:
    """The figure of training: loss, agreement and distances by step (paper, Fig. 2)."""
    model = training.model_name(results.rows[0])
    found = training.curves(results, {"trained": f"cold_{model}", "warm": f"warm_{model}"})
    rows = [{**row, "series": row["label"] if "step" in row else row["series"]} for row in found]
    by_panel: dict[str, Any] = {label: {"yscale": "log", "ylim": (1e-3, None)} for label in list(_panels.values())[2:]}
    by_panel |= {_panels["loss"]: {"yscale": "log"}}  # a warm start begins at a distance of 0
    shown: Any = {"axes": {"xlabel": "training step", "ylabel": ""}, "by_panel": by_panel, "size": (3.4, 3.2)}
    return Lines(f"training_{model}", "step", _panels, "series", "measure", lambda _: rows, BY_NAME, **shown)(results)


ONE_STEP = experiment("one-step", _regression, [training.COMPARISON, _training_curves], title="One layer is one step")
MULTI_STEP = experiment(
    "multi-step", _regression, [training.COMPARISON, _training_curves], title="Several layers are steps of GD++"
)


# Softmax attention, in one layer and in several.

_heads = {"1 head": "softmax_1_heads", "2 heads": "softmax_2_heads"}  # names in files and events, by label
_starts = {"cold": "softmax_cold", "warm": "softmax_warm"}
_sharpness = 0.3  # of the scores of the first layer, which are below 1


def _softmax(config: configs.SoftmaxConfig, folder: RunFolder) -> list[Row]:
    """One softmax layer, and the products of its heads in heads.npz."""
    model = make_model(config)
    problem = training.make_regression(model, softmax=True)
    layer = softmax_descent_layer(model.tasks.dim, model.tasks.context, _centred_rate(config, model.tasks))
    trained = partial(training.trained_family, config, folder, model, problem=problem)
    found = [trained(name=name, heads=n) for n, name in enumerate(_heads.values(), 1)]
    found.append(Family("constructed", problem.predict, [(layer, {"heads": 2})]))
    products = {}
    for family, heads in zip(found, (*_heads, "2 heads"), strict=True):
        M, R = head_maps(family.members[0][0])  # [1, heads, width, width]
        products[f"{family.name}, {heads}"] = np.asarray(M[0] * R[0, :, -1:, -1:])
    np.savez_compressed(folder.path / "heads.npz", **products)
    return training.measure_families(config, model, [*training.descent_families(config, model), *found])


@full_precision
def _centred_rate(config: LayerFlags, tasks: Tasks) -> float:
    """The best η on centred inputs, `E tr S / E tr S²`."""
    X = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))


def _deep_softmax(config: configs.DeepSoftmaxConfig, folder: RunFolder) -> list[Row]:
    """Layers with two heads: constructed, and trained from random weights and from these."""
    model = make_model(config, config.layers, recurrent=config.recurrent)
    problem = training.make_regression(model, softmax=True)
    exploding = training.make_regression(model, softmax=True, clip=training.WARM_CLIP)  # constructed layers stay below
    linear, rates = training.constructed_layers(config, model), training.descent(config, model, "gd++")[0].eta
    sharpness = (_sharpness * rates / rates[0])[: len(linear.P)]  # inputs shrink from layer to layer, as rates grow
    layers = softmax_layers(linear, model.tasks.context, sharpness=sharpness)
    trained = partial(training.trained_family, config, folder, model, heads=2)
    families = [Family("constructed", exploding.predict, [(layers, {"heads": 2})])]
    families.append(trained(name=_starts["cold"], problem=problem))
    if config.warm_steps:
        warm: Any = {"start": "warm", "init": lambda key: layers, "steps": config.warm_steps}
        families.append(trained(name=_starts["warm"], problem=exploding, **warm))
    return training.measure_families(config, model, [*training.descent_families(config, model), *families])


def _head_products(results: Results) -> list[str]:
    """The products of heads and their sums, red and blue around 0 (Fig. 12)."""
    path = results.path / "heads.npz"
    if not path.exists():
        return []
    found = {label: [*heads, heads.sum(axis=0)] for label, heads in np.load(path).items()}
    rows, columns = len(found), max(map(len, found.values()))
    with figure(results.path / "figures" / "heads.png", rows, columns, size=(2.6 * columns, 2.6 * rows)) as axes:
        for row, (label, products) in zip(axes, found.items(), strict=True):
            for n, (ax, product) in enumerate(zip(row, products, strict=False), 1):
                limit = max(1e-12, float(np.abs(product).max()))
                image = ax.imshow(product, cmap="RdBu_r", vmin=-limit, vmax=limit)
                ax.figure.colorbar(image, ax=ax, shrink=0.75)
                ax.grid(False)
                ax.set(xticks=[], yticks=[], title=f"head {n}" if n < len(products) else "sum")
            row[0].set_ylabel(label)
    return ["![heads](figures/heads.png)", ""]


_softmax_note = "von Oswald et al. 2023, Fig. 11 and 12 (5000 steps): one head is worse than descent, two come close."
_softmax_views = [measures(note=_softmax_note), training.loss_by_step("softmax", _heads), _head_products]
SOFTMAX = experiment("softmax", _softmax, _softmax_views, title="Softmax")
_deep_views = [measures(), training.loss_by_step("deep_softmax", _starts)]
DEEP_SOFTMAX = experiment("deep-softmax", _deep_softmax, _deep_views, title="Layers of softmax attention")


# GD++ lowers the largest eigenvalues of XᵀX (von Oswald 2023, App. A.10).

_paper_gamma = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}  # of its trained transformers, by N
_most = 10_000  # whose eigenvalues are measured, at most


def _curvature(config: configs.CurvatureConfig, folder: RunFolder, context: int) -> Iterator[Row]:
    """The best layers and trained ones, and eigenvalues before and after a layer."""
    model = make_model(replace(config, context=context), 2)
    rates, seconds = training.descent(config, model, "gd++")
    values = context_eigenvalues(random_key(config, training.SPECTRUM + 100), model.tasks, min(config.test_tasks, _most))
    found: Row = {"loss": rates.loss, "gamma": float(rates.gamma[0]), "eta": float(rates.eta[0]), "seconds": seconds}
    after = values * (1 - found["gamma"] * values) ** 2  # von Oswald et al. 2023, Eq. 23
    for name, part in (("", values), ("_after", after)):
        highest = part.max(axis=1)
        found |= {f"eigenvalue_max{name}": float(highest.max()), f"mean_eigenvalue_max{name}": float(highest.mean())}
        with np.errstate(divide="ignore"):  # fewer pairs than inputs
            found |= {f"condition{name or '_before'}": float(np.median(highest / part.min(axis=1)))}
    yield model.row("closed_form", **found)
    for _, entry in training.with_descent_rates(model, training.trained_family(config, folder, model)).members:
        tied = {name: np.full(2, entry[name]) for name in ("eta", "gamma")}
        yield model.row("trained", **entry, loss=evaluate_polynomial(values, rates._replace(**tied), model.tasks).loss)


def _largest(when: str) -> Callable[[Row], Any]:
    of = f"eigenvalue_max{when}"
    return lambda line: f"{line[f'closed_form {of}']:.2f} ({line[f'closed_form mean_{of}']:.2f})"


CURVATURE_TABLE = Table(
    [
        Column("N", "context"),
        Column("γ: solved", "closed_form gamma", ".4f"),
        Column("trained here", "trained gamma", ".4f"),
        Column("steps", "trained steps"),
        Column("paper, trained", lambda line: _paper_gamma.get(line["context"]), ".3f"),
        Column("largest eigenvalue before", _largest("")),
        Column("after", _largest("_after")),
        Column("median condition number before", "closed_form condition_before", ".3g"),
        Column("after", "closed_form condition_after", ".3g"),
    ],
    lambda results: pivot(means(where(results.rows, experiment="curvature"), ["context", "predictor"]), "context", "predictor"),
    note="Eigenvalues are the largest of all contexts and, in brackets, the mean of a context's largest.",
)
_by_context = lambda config: [{"context": N} for N in config.contexts]  # noqa: E731
CURVATURE = experiment("curvature", _curvature, [CURVATURE_TABLE], title="Curvature", keys=_by_context)


# How the loss of solved layers of GD++ falls with their number.

_bound = "any polynomial of the degree"
_series = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


def _depths(config: configs.DepthsConfig, folder: RunFolder) -> Iterator[Row]:
    """A row for each depth of each series, and each degree bounded."""
    with stage("spectrum of the contexts"):
        law = training.spectrum(config, tasks := make_model(config).tasks)
        fresh = context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    solved, K = {}, config.depths
    for name, tied in _series:
        with stage(f"1 to {K} layers of {_series[name, tied]}"):
            if name == "chebyshev":
                found = [Polynomial(*rates.chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
            else:
                found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        solved[name, tied] = found
        for one in found:  # the expectation of the loss over weights and queries
            about = {"eta": one.eta.tolist(), "gamma": one.gamma.tolist(), "test_tasks": config.test_tasks}
            yield Model(tasks, len(one.eta), tied).row(name, **about, **evaluate_polynomial(fresh, one, tasks)._asdict())
    for n, one in enumerate(solved["gd++", False][:_deepest_bound], 1):  # on the law that the rates were fitted to
        least = rates.least_loss(law, tasks, (3**n - 1) // 2)
        yield Model(tasks, n, False).row("bound", loss=least, above_bound=one.loss / least - 1)


def _depth_series(row: Row) -> str:
    return _bound if row["predictor"] == "bound" else _series[row["predictor"], row["recurrent"]]


DEPTHS_TABLE = Table(
    [
        Column("K", "layers"),
        *(Column(name, f"{name} loss", "#.3g") for name in (*_series.values(), _bound)),
        Column("solved GD++ above it, %", f"{_bound} above_bound", ".1f", 100),
    ],
    lambda results: pivot(results.rows, "layers", _depth_series),
    note="From K = 7 on no separate rates are searched for: they are Chebyshev's. No layers whose residual is a polynomial of "
    "the degree of GD++, (3^K - 1)/2, are below the bound. It and the distance to it are of the law that rates are fitted to, "
    "with its extrapolated tails; the other losses are of fresh contexts.",
)
_dashes: Any = {"Chebyshev rates": (1, 1), _bound: (4, 2)}
_depths_axes = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
_depths_figure = Lines("depths", "layers", "loss", _depth_series, dashes=_dashes, axes=_depths_axes)
DEPTHS = experiment("depths", _depths, [DEPTHS_TABLE, _depths_figure], title="Depth")


# Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023).

_condition = {"well-conditioned": 1.0, "ill-conditioned": 100.0}  # of the covariance of inputs, the latter as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def _newton(config: configs.NewtonConfig, folder: RunFolder, task: str) -> Iterator[Row]:
    """Losses of 1, 2, .. solved layers, with equivalent Newton's steps."""
    tasks, powers = replace(make_model(config).tasks, inputs="normal"), _condition[task] ** -0.5
    if powers < 1:
        tasks = replace(tasks, scales=tuple(np.geomspace(1, powers, config.dim).tolist()))
    N, number = tasks.context, min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(
            training.spectrum(config, tasks), tasks, layers=config.depths, tied=False, seed=config.seed
        )
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, rates.weighted_eigenvalues(random_key(config, TEST), tasks, number))
            each = [(jnp.asarray(p.eta), jnp.asarray(p.gamma)) for p in solved]
            of_layers = jax.jit(lambda values, w, eta, gamma: loss_of(w, rates.residual(values, eta, gamma, N)))
            of_newton = jax.jit(lambda values, w, k: loss_of(w, rates.newton_residual(values, k)))
            layers = [float(of_layers(values, weights, *one)) for one in each]
            steps = [float(of_newton(values, weights, float(k))) for k in range(_steps)]
    folder.log(event="newton", task=task, layers=layers, from_identity=steps)
    for one, loss in zip(solved, layers, strict=True):
        about = {"loss": loss, "eta": one.eta.tolist(), "gamma": one.gamma.tolist(), "test_tasks": number}
        about |= {"newton_steps_identity": rates.equivalent_steps(np.array(steps), loss)}
        yield Model(tasks, len(one.eta), False).row("gd++", **about)


def loss_of(weights: jax.Array, r: jax.Array) -> jax.Array:
    """Half the mean of `sum_i w_i r(λ_i)²` over contexts."""
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


def steps_per_layer(rows: Iterable[Row]) -> float:
    """The slope of Newton's steps by layers, from two layers on; NaN for fewer."""
    fields = ((row["layers"], row["newton_steps_identity"]) for row in rows)
    known = np.array([(K, steps) for K, steps in fields if K > 1 and steps is not None])
    return float(np.polyfit(known[:, 0], known[:, 1], 1)[0]) if len(known) > 1 else np.nan


def _newton_curves(results: Results) -> Iterator[Row]:
    names = {"layers": "layers of GD++, solved", "from_identity": "Newton's steps"}
    for event in results.events("newton", "task"):
        for name, label in names.items():
            drawn = [(step, loss) for step, loss in enumerate(event[name], name == "layers") if loss > _lowest]
            x, y = zip(*drawn, strict=True)
            yield {"series": label, "inputs": f"{event['task']} inputs", "x": x, "y": y}


STEPS = Table(
    [
        Column("inputs", "task"),
        Column("layers K", "layers"),
        Column("loss", "loss", ".3g"),
        Column("Newton's steps", "newton_steps_identity", ".1f"),
    ],
    note="A layer of a trained transformer does the work of about three steps of Newton's iteration, on ill-conditioned inputs "
    "too (Fu et al. 2023); Chebyshev rates predict log₂ 9 = 3.17 steps.",
)
_newton_axes = {"xlabel": "layers or steps", "yscale": "log", "ylabel": LOSS}
_newton_figure = Lines("newton", "x", "y", "series", "inputs", _newton_curves, axes=_newton_axes, sharey=True)
_by_condition = lambda config: [{"task": task} for task in _condition]  # noqa: E731
NEWTON = experiment("newton", _newton, [STEPS, _newton_figure], title="Newton's iteration", keys=_by_condition)


# Layers that estimate a regression online (Wang et al. 2025).

_recursion, _gradients = "mesa, recursion", "mesa, conjugate gradients"
_streams = ("regression", "ill-conditioned", "drift", "dynamics")
_forgetting = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8)  # searched where maps drift
_rates = tuple(np.geomspace(0.1, 1.5, 12).tolist())  # over ||k||²: searched where there is no closed form
_searched = 400  # sequences, at most, for the searches
_at_a_time = 100
Layer = Callable[..., jax.Array]  # of a stream and settings
Batch = tuple[Stream, jax.Array]  # streams with their targets


class Estimator(NamedTuple):
    """A layer with its settings, output factors, and expected loss if known."""

    layer: Layer
    settings: dict[str, Any]
    factor: Any = 1.0
    expected: Any = None


def _mesa(config: configs.MesaConfig, folder: RunFolder, task: str) -> Iterator[Row]:
    """The loss of each estimator at the end; those at every position are events."""
    d, decaying = config.dim, 1 / np.arange(1, config.dim + 1) ** 2
    still = Streams(dim=d, tokens=20 * d, outputs=d)
    streams: Streams | Dynamics = {
        "regression": still,
        "ill-conditioned": replace(still, variances=tuple((d * decaying / decaying.sum()).tolist())),
        "drift": replace(still, memory=1 - 1 / (10 * d)),
        "dynamics": Dynamics(dim=d, tokens=20 * d),
    }[task]

    def sample(stream: int, number: int) -> Batch:
        return jax.jit(jax.vmap(streams.sample))(jax.random.split(random_key(config, stream), number))

    searched, batch = sample(VALIDATION, min(config.test_tasks, _searched)), sample(TEST, config.test_tasks)
    found = _on_dynamics(streams, searched) if isinstance(streams, Dynamics) else _on_streams(streams, searched)
    about = {"layers": 1, "recurrent": True, "dim": config.dim, "context": streams.tokens, "test_tasks": config.test_tasks}
    with stage(f"estimators, {task}"):
        for name, one in found:
            by_token = np.asarray(_losses_by_token(one.layer, one.settings, one.factor, *batch))
            expected = None if one.expected is None else np.asarray(one.expected).tolist()
            folder.log(event="positions", task=task, predictor=name, losses=by_token.tolist(), expected=expected)
            settings = {what: value for what, value in one.settings.items() if isinstance(value, float)}
            ends = {"loss": float(by_token[-1]), "population_loss": expected[-1] if expected else None}
            yield about | {"predictor": name} | settings | ends


@partial(jax.jit, static_argnums=0)
def _losses_by_token(layer: Layer, settings: dict[str, Any], factor: Any, batch: Stream, targets: jax.Array) -> jax.Array:
    """Half the mean squared error of an output at every position."""
    factors = jnp.broadcast_to(jnp.asarray(factor, targets.dtype), targets.shape[1])[:, None]

    def squares(one: Batch) -> jax.Array:
        stream, targets = one
        return jnp.mean((factors * layer(stream, **settings) - targets) ** 2, axis=1)

    return jnp.mean(lax.map(squares, (batch, targets), batch_size=_at_a_time), axis=0) / 2


def _best(values: Iterable[float], loss: Callable[[float], Any]) -> float:
    """The value with the lowest mean loss over positions."""
    return min(values, key=lambda value: float(jnp.mean(loss(value))))


def _forgets(gamma: float) -> dict[str, float]:
    """The forgetting setting, left out at 1 for speed."""
    return {} if gamma == 1 else {"forgetting": gamma}


def _on_streams(streams: Streams, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """Layers at their best factors, rates and forgetting."""
    a, penalty, gammas = streams.memory, streams.penalty, (1.0,) if streams.memory == 1 else _forgetting
    gamma = _best(gammas, jax.jit(lambda gamma: hebbian_losses(streams, forgetting=gamma)[1]))
    factors_and_loss = hebbian_losses(streams, forgetting=gamma)
    yield "linear attention", Estimator(recurrences.linear_attention, _forgets(gamma), *factors_and_loss)
    mean_loss = jax.jit(lambda rate: jnp.mean(delta_losses(streams, rate)[1]))
    highest = np.log(2 / (max(streams.spectrum) * (streams.dim + 2)))  # beyond it descent diverges
    found = scipy.optimize.minimize_scalar(
        lambda log: float(mean_loss(np.exp(log))), bounds=(highest - 7, highest), method="bounded"
    )
    for name, rate in (("delta rule", float(np.exp(found.x))), ("delta rule, best rates", None)):
        best_rates, expected = delta_losses(streams, rate)
        yield name, Estimator(recurrences.delta_rule, {"rate": rate or best_rates} | _forgets(a), a, expected)
    expected = recurrences.ridge_losses(streams) if a == 1 else None
    if a < 1:
        settings = {"penalty": penalty}
        gamma = _best(gammas, lambda g: _losses_by_token(mesa_recursion, settings | {"forgetting": g}, a, *searched))
    yield from _mesa_layers(streams.dim, {"penalty": penalty} | _forgets(gamma), a, expected).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": penalty}, 1.0, expected)
    if a < 1:
        yield "Kalman filter", Estimator(recurrences.kalman_filter, {"noise": streams.noise, "memory": a})


def _on_dynamics(streams: Dynamics, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """The same with searched factors and rates, as keys are dependent."""
    found = jax.jit(jax.vmap(recurrences.linear_attention))(searched[0])
    factors = jnp.sum(found * searched[1], axis=(0, 2)) / jnp.sum(found**2, axis=(0, 2))
    yield "linear attention", Estimator(recurrences.linear_attention, {}, factors)
    rate = _best(_rates, lambda rate: _losses_by_token(_normalised_delta_rule, {"rate": rate}, 1.0, *searched))
    yield "delta rule", Estimator(_normalised_delta_rule, {"rate": rate})
    yield from _mesa_layers(streams.dim, {"penalty": streams.penalty}).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": streams.penalty})


def _mesa_layers(d: int, settings: dict[str, float], *more: Any) -> dict[str, Estimator]:
    """Both forms of the mesa layer."""
    by_gradients = partial(recurrences.mesa_conjugate_gradients, steps=4 * d)
    return {_recursion: Estimator(mesa_recursion, settings, *more), _gradients: Estimator(by_gradients, settings, *more)}


def _normalised_delta_rule(stream: Stream, rate: Any) -> jax.Array:
    """The delta rule with rates β / ||k||², stable for β < 2."""
    return recurrences.delta_rule(stream, rate / jnp.sum(stream.K**2, axis=1))


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


_dotted: Any = {"ridge": (1, 1), _gradients: (1, 1)}
_mesa_axes = {"xlabel": "tokens", "xscale": "log", "yscale": "log", "ylabel": LOSS}
_by_token = lambda results: [  # noqa: E731
    {**e, "x": range(1, len(e["losses"]) + 1)} for e in results.events("positions", "task", "predictor")
]
_mesa_panels: Any = {"rows": _by_token, "dashes": _dotted, "axes": _mesa_axes, "size": (2.8, 2.6)}
_mesa_figure = Lines("mesa", "x", "losses", "predictor", "task", **_mesa_panels)
LOSSES = pivot_table([Column("stream", "task")], "predictor", Column("", _with_expectation), {"task": _streams})
_mesa_note = "Half the mean squared error of an output after the last pair, in brackets its expectation in closed form."
_mesa_views = [LOSSES._replace(note=_mesa_note), _mesa_figure]
_by_stream = lambda config: [{"task": task} for task in _streams]  # noqa: E731
MESA = experiment("mesa", _mesa, _mesa_views, title="Layers as online estimators", keys=_by_stream)
