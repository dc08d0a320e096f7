"""Linear regression tasks as sequences: a context of pairs (x_i, y_i), and a query x_q whose y_q is asked for.

    W ~ N(0, c² I),    y_i = W x_i + noise,    y_q = W x_q

Arrays carry the batch on their *last* axis, so that one task and a batch of tasks are the same code and a batch fills the
vector units: `sample_tasks(key, tasks)` is one sequence, `sample_tasks(key, tasks, 2048)` are 2048 of them.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.linalg import contract, turned

Inputs = Literal["uniform", "normal", "laplace", "exponential", "mixture"]
Scalar = Any  # a number, or an array of one where a sweep is vmapped

# Of symmetric laws with independent coordinates, E[x⁴]/E[x²]².
KURTOSIS: dict[str, float] = {"uniform": 9 / 5, "normal": 3.0, "laplace": 6.0}
MIXED = ("exponential", "normal", "laplace")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["input_range", "weight_scale", "noise"],
    meta_fields=["dim", "context", "outputs", "inputs", "scales"],
)
@dataclasses.dataclass(frozen=True)
class Tasks:
    """A law of regression tasks. Its numbers may be traced; sizes and the name of the law may not.

    dim: d, inputs.
    context: N, pairs in the context.
    outputs: m.
    inputs: the law of a coordinate of x. uniform: U(-r/2, r/2). normal, laplace: of the same variance s = r²/12. exponential:
        the same, not centred. mixture: exponential, normal or laplace by task, X and x_q divided by the Frobenius norm of X
        and multiplied by r (the paper's other inputs).
    input_range: r.
    weight_scale: c.
    noise: standard deviation of what is added to the context's y; an array of one for each task where a batch is sampled.
    scales: what each coordinate of x is multiplied by, d numbers; default, nothing.

    Raises:
        ValueError: a size below 1, a law that is not there, or other than d scales.

    Example:
        >>> tasks = Tasks(dim=3, context=5)
        >>> tasks.variance, sample_tasks(jax.random.key(0), tasks, 4).X.shape
        (0.08333333333333333, (5, 3, 4))

    Source: von Oswald et al. 2023, Sec. 3 and App. A.3 (where the text has U(-1, 1), r = 2; its numbers are those of r = 1).
    """

    dim: int = 10
    context: int = 10
    outputs: int = 1
    inputs: Inputs = "uniform"
    input_range: Scalar = 1.0
    weight_scale: Scalar = 1.0
    noise: Scalar = 0.0
    scales: tuple[float, ...] | None = None

    def __post_init__(self):
        if min(self.dim, self.context, self.outputs) < 1:
            raise ValueError(f"dim {self.dim}, context {self.context}, outputs {self.outputs}: each is at least 1")
        if self.inputs not in get_args(Inputs):
            raise ValueError(f"inputs {self.inputs!r}: choose one of {', '.join(get_args(Inputs))}")
        if self.scales is not None and len(self.scales) != self.dim:
            raise ValueError(f"scales {self.scales} of {self.dim} inputs: give one for each")

    @property
    def variance(self) -> Scalar:
        """s = r²/12, the variance of a coordinate; of mixture, r²/(N d), the mean square of the context's.

        Raises:
            ValueError: coordinates of different scales.
        """
        if self.scales is not None:
            raise ValueError(f"scales {self.scales}: there is no one variance; use icl.exact_moments")
        r = self.input_range
        return r**2 / (self.context * self.dim) if self.inputs == "mixture" else r**2 / 12

    @property
    def spreads(self) -> tuple[Scalar, ...]:
        """The standard deviation of each coordinate, those of the exponential about its mean."""
        if self.scales is None:
            return (self.variance**0.5,) * self.dim
        return tuple(dataclasses.replace(self, scales=None).variance ** 0.5 * scale for scale in self.scales)

    @property
    def kurtosis(self) -> float:
        """E[x⁴]/E[x²]² of a coordinate.

        Raises:
            ValueError: a law without independent symmetric coordinates.
        """
        if self.inputs not in KURTOSIS:
            raise ValueError(f"inputs {self.inputs!r} have no such moments: use icl.solvers.closed_form.sampled_moments")
        return KURTOSIS[self.inputs]


class Sequence(NamedTuple):
    """A context, a query and its answer; a batch has one more, last, axis.

    X: [N, d]; Y: [N, m]; x_q: [d]; y_q: [m].
    """

    X: Float[Array, "N d *batch"]
    Y: Float[Array, "N m *batch"]
    x_q: Float[Array, "d *batch"]
    y_q: Float[Array, "m *batch"]


def sample_tasks(key: Array, tasks: Tasks, *batch: int, dtype: Any = None) -> Sequence:
    """Fresh tasks, a sequence of each: `y_i = W x_i + noise`, `W ~ N(0, c² I)`.

    Args:
        key: of jax.random.
        tasks: their law.
        batch: numbers of tasks, the last axes of all arrays; none for a single one.
        dtype: default, JAX's float.

    Example:
        >>> one = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5))
        >>> one.X.shape, one.Y.shape, one.x_q.shape, one.y_q.shape
        ((5, 3), (5, 1), (3,), (1,))

    Source: von Oswald et al. 2023, Sec. 3.
    """
    noisy = not (isinstance(tasks.noise, float | int) and tasks.noise == 0)
    return _drawn(key, tasks, batch, jnp.dtype(dtype or jnp.zeros(()).dtype), noisy)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _drawn(key: Array, tasks: Tasks, batch: tuple[int, ...], dtype: Any, noisy: bool) -> Sequence:
    key_x, key_w, key_noise = jax.random.split(key, 3)
    X, x_q = _inputs(key_x, tasks, batch, dtype)
    if tasks.scales is not None:
        scales = jnp.asarray(tasks.scales, dtype).reshape(-1, *[1] * len(batch))
        X, x_q = X * scales[None], x_q * scales
    W = jnp.asarray(tasks.weight_scale, dtype) * jax.random.normal(key_w, (tasks.outputs, tasks.dim, *batch), dtype)
    Y, y_q = contract(turned(X), turned(W)), contract(turned(W), x_q[:, None])[:, 0]
    if noisy:
        noise = jnp.broadcast_to(jnp.asarray(tasks.noise, dtype), Y.shape)  # one number, or one for each task of a batch
        Y = Y + noise * jax.random.normal(key_noise, Y.shape, dtype)
    return Sequence(X, Y, x_q, y_q)


def sequences(batch: Sequence) -> Sequence:
    """A batch with its batch axis first, for `jax.vmap` over functions of one sequence.

    Example:
        >>> sequences(sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)).X.shape
        (4, 5, 3)
    """
    return Sequence(*(jnp.moveaxis(leaf, -1, 0) for leaf in batch))


def tokens(sequence: Sequence, W0: Float[Array, "m d"] | None = None) -> Float[Array, "tokens width"]:
    """The tokens of one sequence: `e_i = (x_i, y_i)`, and last the query `(x_q, -W0 x_q)`.

    Args:
        sequence: of one task.
        W0: [m, d] the weights that descent starts from; default, zero.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> one = Sequence(jnp.ones((2, 1)), jnp.zeros((2, 1)), jnp.array([3.0]), jnp.zeros(1))
        >>> tokens(one, jnp.array([[0.5]])).tolist()
        [[1.0, 0.0], [1.0, 0.0], [3.0, -1.5]]

    Source: von Oswald et al. 2023, Sec. 2 and App. A.1.
    """
    check_sequence(sequence)
    X, Y, x_q, y_q = sequence
    if W0 is not None and W0.shape != (Y.shape[1], X.shape[1]):
        raise ValueError(f"W0 {W0.shape}: wanted [outputs, inputs] = {(Y.shape[1], X.shape[1])}")
    start = jnp.zeros_like(y_q) if W0 is None else -W0 @ x_q
    return jnp.concatenate([jnp.concatenate([X, Y], axis=1), jnp.concatenate([x_q, start])[None]])


def check_sequence(sequence: Sequence) -> None:
    """Refuse one sequence whose parts do not fit together.

    Raises:
        ValueError: with the shapes.
    """
    X, Y, x_q, y_q = sequence
    fits = X.ndim == Y.ndim == 2 and x_q.ndim == y_q.ndim == 1
    if not (fits and len(X) == len(Y) > 0 and X.shape[1:] == x_q.shape and Y.shape[1:] == y_q.shape):
        shapes = f"X {X.shape}, Y {Y.shape}, x_q {x_q.shape}, y_q {y_q.shape}"
        raise ValueError(f"{shapes}: wanted [N, d], [N, m], [d] and [m] of one task (icl.sequences and jax.vmap for many)")


def _inputs(key: Array, tasks: Tasks, batch: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """X [N, d, *batch] and x_q [d, *batch], drawn apart: slices of one array are slow."""
    shapes, r = ((tasks.context, tasks.dim, *batch), (tasks.dim, *batch)), jnp.asarray(tasks.input_range, dtype)
    key_law, *keys = jax.random.split(key, 3)
    if tasks.inputs == "uniform":
        X, x_q = (r * jax.random.uniform(k, shape, dtype, -0.5, 0.5) for k, shape in zip(keys, shapes, strict=True))
        return X, x_q
    if tasks.inputs != "mixture":
        X, x_q = (r / 12**0.5 * _unit(k, tasks.inputs, shape, dtype) for k, shape in zip(keys, shapes, strict=True))
        return X, x_q
    law = jax.random.randint(key_law, batch, 0, len(MIXED))
    X, x_q = (_mixed(k, law, shape, dtype) for k, shape in zip(keys, shapes, strict=True))
    scale = r / jnp.sqrt(jnp.sum(X**2, axis=(0, 1)))
    return X * scale[None, None], x_q * scale[None]


def _mixed(key: Array, law: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    draws = [_unit(k, name, shape, dtype) for k, name in zip(jax.random.split(key, len(MIXED)), MIXED, strict=True)]
    return jnp.select([jnp.broadcast_to(law == n, shape) for n in range(len(MIXED))], draws)


def _unit(key: Array, inputs: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draws of variance 1; the exponential's mean is 1."""
    if inputs == "laplace":
        return jax.random.laplace(key, shape, dtype) / jnp.asarray(2**0.5, dtype)
    return (jax.random.normal if inputs == "normal" else jax.random.exponential)(key, shape, dtype)
