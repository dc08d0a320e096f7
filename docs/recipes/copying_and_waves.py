"""Two experiments of von Oswald et al. 2023 in one file: layers that learn to copy (Fig. 5), and sine waves (Fig. 4).

    python docs/recipes/copying_and_waves.py copy --steps 6000 --seeds 5    # 14 minutes on 2 CPU cores
    python docs/recipes/copying_and_waves.py waves --steps 4000 --seeds 2   # 11 minutes

They print losses on fresh tasks, half mean squared errors at the query. `--figure FILE.png` draws all measures by step. Sizes,
rates and random numbers are those of the results in docs/in_context_beyond.md, which follow the paper's code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import seaborn as sns
import tyro
from jaxtyping import Array, Float

import icl
from icl.attention import AttentionLayer, transform_batch
from icl.problems import copying_layers, copying_tokens
from jexplicit.runs.devices import request_devices

VALIDATION, TEST = 101, 102  # streams of tasks that nothing is trained on

# Copying: a layer joins the tokens of x and y, a second performs descent.
#
#     x_1, (0, .., 0, y_1), x_2, (0, .., 0, y_2), .., x_q,    each with a code of its position appended
#
#     e_j <- e_j + P W_V Σ_i softmax_i(e_iᵀ W_Kᵀ W_Q e_j / sqrt(key size)) e_i,    e_q <- e_q + P W_V Σ_i e_i e_iᵀ W_Kᵀ W_Q e_q
#
# The first layer can attend from each x to the next token, and add its y. The prediction is minus the last channel of the last
# token. As in the paper's code this channel belongs to the position code, whose value the layers learn to subtract. With a
# linear first layer training does not succeed, though two linear layers can copy and descend (`icl.problems.copying_layers`).
#
# Source: von Oswald et al. 2023, Sec. 5, Prop. 3 and App. A.6.

CODES = 10  # their width; the paper's text has 20


class Copying(icl.Regression):
    """Two layers on separate tokens of x and y, a problem for `icl.train_layers`. softmax: of the first layer."""

    def tokens(self, batch: icl.Sequence) -> Float[Array, "width n batch"]:
        """The codes are `sin(n / 10000^(2i/width))` and its cosine, interleaved (Vaswani et al. 2017, Sec. 3.5)."""
        E = copying_tokens(batch)[: len(batch.x_q)]  # without their unit codes
        angles = np.arange(E.shape[1]) / 10_000 ** (np.arange(0, CODES, 2) / CODES)[:, None]
        codes = np.stack([np.sin(angles), np.cos(angles)], axis=1).reshape(CODES, -1, 1)
        return jnp.concatenate([E, jnp.broadcast_to(jnp.asarray(codes, E.dtype), (CODES, *E.shape[1:]))])

    def predict(self, params: AttentionLayer, batch: icl.Sequence) -> Float[Array, "1 batch"]:
        first, second = (jax.tree.map(lambda leaf, n=n: leaf[n : n + 1], params) for n in range(2))
        E = self.tokens(batch)
        E = transform_batch(first, E[:, :-1], E, softmax=self.softmax, clip=self.clip)
        return -transform_batch(second, E[:, :-1], E[:, -1:], clip=self.clip)[-1]

    @partial(jax.jit, static_argnums=0)
    def measure(self, params: AttentionLayer, batch: icl.Sequence) -> dict[str, Float[Array, ""]]:
        few = self.tokens(batch)[..., :500]
        return {"loss": self.loss(params, batch), **sensitivities(params, few, self.softmax)}


def sensitivities(layers: AttentionLayer, E: Float[Array, "width n batch"], softmax: bool) -> dict[str, Float[Array, ""]]:
    """`|∂ mean_τ Σ_c e'_cj / ∂ e_i|` of the first layer: means over j of i = j, of i = j + 1 and of all other tokens i.

    j are the context tokens with a next one in the context. In the paper's code *other* includes the next token.
    """
    first, n = jax.tree.map(lambda leaf: leaf[:1], layers), E.shape[1]

    def sums(shift: Float[Array, "width n"]) -> Float[Array, " outputs"]:
        moved = E + shift[..., None]
        return transform_batch(first, moved[:, :-1], moved[:, : n - 2], softmax=softmax).sum(axis=0).mean(axis=-1)

    norms = jnp.linalg.norm(jax.jacrev(sums)(jnp.zeros(E.shape[:2], E.dtype)), axis=1)  # [n - 2, n]
    own, following = jnp.diagonal(norms), jnp.diagonal(norms, 1)
    return {"own": own.mean(), "next": following.mean(), "other": ((norms.sum(axis=1) - own - following) / (n - 2)).mean()}


def copy(steps: int = 6000, seeds: int = 5, figure: Path | None = None, dim: int = 10, context: int = 10, batch: int = 2048):
    """Two layers on tokens of x and of y: the first learns to attend to the next token, then the loss falls."""
    tasks = icl.Tasks(dim=dim, context=context)
    eta = float(icl.optimal_rate(tasks))

    def constructed(batch: icl.Sequence) -> Float[Array, "1 batch"]:
        E = copying_tokens(batch)
        return -transform_batch(copying_layers(dim, context, eta), E[:, :-1], E[:, -1:])[-1]

    descent = partial(icl.predict_batch, icl.descent_layers(dim, context, eta))
    init = partial(icl.init_layers, width=dim + CODES, layers=2, scale=0.02 / 2)
    recipe = icl.Recipe(batch, 1e-3, gradient_clip=10, cooling="constant")
    test, known = fresh(tasks, TEST, 100_000), {"one step of descent": descent, "constructed": constructed}
    softmax = train("softmax, linear", Copying(tasks, softmax=True, clip=10), init, recipe, steps, seeds, test)
    linear = train("linear, linear", Copying(tasks, clip=10), init, recipe, steps, 1, test)
    return report(known, [softmax, linear], test, figure)


# Sine waves: descent on features of an MLP.
#
#     e = E (x, y),    φ = e + W2 gelu(W1 e + b1) + b2,    ŷ = -(last channel of φ_q after a layer of linear attention on φ)
#
# The last channel is `y - f(x)`. The prediction before the layer, `-φ_q[-1]`, is thus a function of the query alone, which
# attention corrects by the context. In the *control* the layer is not trained: it is one step of gradient descent on the other
# channels, and only the features are learned.
#
# Source: von Oswald et al. 2023, Sec. 3, 4 and App. A.12.

CHANNELS, HIDDEN, SCALE, ETA = 40, 160, 0.002, 0.1  # scale: variance of a weight times fan-in; η of the control's step
Network = tuple[tuple[Array, ...], AttentionLayer | None]  # E, W1, b1, W2, b2, and a layer of attention, if not the control


@dataclass(frozen=True)
class Waves:
    """Tasks `y = a sin(x + p)`, x ~ U(-5, 5), for `icl.train_layers`. One random number, u ~ U(0, 1), gives both a and p.

    As in the paper's code; its text has two numbers, and a up to 5.
    """

    context: int = 10

    def sample(self, key: Array, size: int, dtype: Any = None) -> icl.Sequence:
        key_x, key_a, _ = jax.random.split(key, 3)
        x = 10 * jax.random.uniform(key_x, (self.context + 1, 1, size), dtype, minval=-0.5, maxval=0.5)
        u = jax.random.uniform(key_a, (1, 1, size), dtype)
        y = (0.1 + 0.4 * u) * jnp.sin(x + jnp.pi * u)
        return icl.Sequence(x[:-1], y[:-1], x[-1], y[-1])

    def predict(self, network: Network, batch: icl.Sequence, attend: bool = True) -> Float[Array, "1 batch"]:
        weights, attention = network
        phi = features(weights, jnp.stack([batch.X[:, 0], batch.Y[:, 0]]))
        query = features(weights, jnp.stack([batch.x_q, jnp.zeros_like(batch.y_q)]))
        step = attention or icl.descent_layers(len(phi) - 1, self.context, ETA, dtype=phi.dtype)
        return -(transform_batch(step, phi, query) if attend else query)[-1]

    def loss(self, params: Network, batch: icl.Sequence) -> Float[Array, ""]:
        return icl.half_mse(self.predict(params, batch), batch.y_q)

    @partial(jax.jit, static_argnums=0)
    def measure(self, params: Network, batch: icl.Sequence) -> dict[str, Float[Array, ""]]:
        before = self.predict(params, batch, attend=False)
        return {"loss": self.loss(params, batch), "before attention": icl.half_mse(before, batch.y_q)}


@jax.default_matmul_precision("highest")
def features(weights: tuple[Array, ...], tokens: Float[Array, "2 n batch"]) -> Float[Array, "C n batch"]:
    E, W1, b1, W2, b2 = weights  # [C, 2], [H, C], [H], [C, H], [C]
    e = jnp.einsum("ci,inb->cnb", E, tokens)
    h = jax.nn.gelu(jnp.einsum("hc,cnb->hnb", W1, e) + b1[:, None, None])
    return e + jnp.einsum("ch,hnb->cnb", W2, h) + b2[:, None, None]


def init_network(key: Array, attention: bool) -> Network:
    """Random weights of variance scale / fan-in, biases 0."""
    weights = jax.nn.initializers.variance_scaling(SCALE, "fan_in", "truncated_normal", in_axis=1, out_axis=0)
    *keys, last = jax.random.split(key, 4)
    E, W1, W2 = map(weights, keys, [(CHANNELS, 2), (HIDDEN, CHANNELS), (CHANNELS, HIDDEN)])
    layer = icl.init_layers(last, CHANNELS, scale=SCALE) if attention else None
    return (E, W1, jnp.zeros(HIDDEN), W2, jnp.zeros(CHANNELS)), layer


def waves(steps: int = 4000, seeds: int = 2, figure: Path | None = None, batch: int = 2048):
    """Linear attention on learned features, and a control whose layer is a step of descent."""
    problem, recipe = Waves(), icl.Recipe(batch, 1e-3, gradient_clip=100, cooling="constant")
    test, slower = fresh(problem, TEST, 10_000), recipe._replace(learning_rate=3e-4, b2=0.999)
    ours = train("attention", problem, partial(init_network, attention=True), recipe, steps, seeds, test)
    theirs = train("control", problem, partial(init_network, attention=False), slower, steps, seeds, test)
    found = [[icl.predictions(partial(problem.predict, one), test) for one in model.params] for model in (ours, theirs)]
    ours.table["cosine with the control"] = [float(icl.difference(*pair).cosine) for pair in zip(*found, strict=True)]
    return report({}, [ours, theirs], test, figure)


# Both: training, measures on fresh tasks, the table and the figure.
class Trained(NamedTuple):
    params: list[Any]
    table: pd.DataFrame
    curve: pd.DataFrame


def fresh(problem: Any, stream: int, size: int) -> icl.Sequence:
    return problem.sample(jax.random.fold_in(jax.random.key(0), stream), size)


def mean(measure: Callable, batch: icl.Sequence, block: int = 10_000) -> dict[str, float]:
    """Means of measures of blocks of tasks, which take less memory than all at once."""
    blocks = (jax.tree.map(lambda leaf, n=n: leaf[..., n : n + block], batch) for n in range(0, batch.y_q.shape[-1], block))
    return jax.tree.map(lambda *of_blocks: float(np.mean(of_blocks)), *map(measure, blocks))


def train(name: str, problem: Any, init: Callable, recipe: icl.Recipe, steps: int, seeds: int, test: icl.Sequence) -> Trained:
    """Layers of every seed from `init(key)`: parameters, `problem.measure` of test tasks, and of others by step."""
    validation = fresh(problem, VALIDATION, 10_000)
    split = lambda params: [jax.tree.map(lambda leaf, n=n: leaf[n], params) for n in range(seeds)]  # noqa: E731

    def table(params: Any, batch: icl.Sequence) -> pd.DataFrame:
        found = [mean(partial(problem.measure, one), batch) for one in split(params)]
        return pd.DataFrame([{"predictor": name, "seed": seed, **measures} for seed, measures in enumerate(found)])

    trained = icl.train_layers(
        jax.vmap(lambda seed: init(jax.random.fold_in(jax.random.key(seed), 0)))(jnp.arange(seeds)),
        problem,
        recipe,
        steps=steps,
        seeds=list(range(seeds)),
        every=max(1, min(500, steps // 20)),
        evaluate=lambda params: table(params, validation).to_dict("list"),
        on_evaluation=lambda entry: print(f"{name}: step {entry['step']}, loss", np.round(entry["loss"], 4), flush=True),
    )
    curve = pd.concat(map(pd.DataFrame, trained.history)).drop(columns=["seed", "training_loss", "seconds", "cpu_seconds"])
    return Trained(split(trained.params), table(trained.params, test), curve)


def report(known: dict[str, Callable], trained: list[Trained], test: icl.Sequence, figure: Path | None) -> pd.DataFrame:
    known = {"zero": lambda batch: jnp.zeros_like(batch.y_q), **known}
    losses = [mean(jax.jit(lambda b, y=y: {"loss": icl.half_mse(y(b), b.y_q)}), test) for y in known.values()]
    untrained = pd.DataFrame([{"predictor": name, "seed": "", **loss} for name, loss in zip(known, losses, strict=True)])
    table = pd.concat([untrained, *(one.table for one in trained)])
    print(table.to_string(index=False, na_rep="", float_format="{:.4f}".format))
    if figure:
        lines = pd.concat([one.curve for one in trained]).melt(["step", "predictor"], var_name="measure")
        grid = sns.relplot(lines, x="step", y="value", hue="measure", col="predictor", kind="line", errorbar=("pi", 100))
        grid.set_titles("{col_name}").set(yscale="log").savefig(figure)
    return table


if __name__ == "__main__":
    request_devices()  # one for each core, which share the seeds
    try:
        tyro.extras.subcommand_cli_from_dict({"copy": copy, "waves": waves})
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
