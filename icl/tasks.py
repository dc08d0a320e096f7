"""Linear regression tasks as sequences; the batch is the last axis of all arrays.

`W ~ N(0, c² I), y_i = W x_i + noise, y_q = W x_q`, so that one task and a batch of many share the same code.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.names import Inputs
from jexplicit.runs.devices import full_precision


def draw(sampler: Callable[..., Array], key: Array, shape: tuple[int, ...], **options: Any) -> Array:
    """`sampler(key, shape=shape, **options)`, drawn as one vector for faster compilation."""
    return sampler(key, shape=(math.prod(shape),), **options).reshape(shape)


def truncated_weights(key: Array, shape: tuple[int, ...], std: Any, dtype: Any) -> Array:
    """`std` times numbers from N(0, 1) truncated at -2 and 2."""
    return std * draw(jax.random.truncated_normal, key, shape, lower=-2, upper=2, dtype=dtype)


def truncated_std(variance: float, dtype: Any) -> Any:
    """The factor of `truncated_weights` for a given variance, as in flax and haiku."""
    return np.sqrt(dtype.type(variance)) / dtype.type(0.87962566103423978)  # the standard deviation of those numbers


# Products of small matrices, batch last: sums of outer products of rows, each one contiguous pass over the batch. On a CPU
# batched products of 11 x 11 matrices are three to ten times slower; on an accelerator the sum is one fused kernel, as a
# matrix product would round to TF32 or bfloat16.


@jax.custom_vjp
def contract(A: Float[Array, "k i *batch"], B: Float[Array, "k j *batch"]) -> Float[Array, "i j *batch"]:
    """`Σ_k A[k, i] B[k, j]` for every task of a batch."""

    def by_rows(A: Array, B: Array) -> Array:
        zero = jnp.zeros((A.shape[1], *B.shape[1:]), A.dtype)
        return lax.scan(lambda total, rows: (total + rows[0][:, None] * rows[1][None], None), zero, (A, B))[0]

    return lax.platform_dependent(A, B, cpu=by_rows, default=lambda A, B: jnp.sum(A[:, :, None] * B[:, None], axis=0))


def _contract_backward(saved: tuple[Array, Array], G: Array) -> tuple[Array, Array]:
    A, B = saved
    return contract(transpose(B), transpose(G)), contract(transpose(A), G)


contract.defvjp(lambda A, B: (contract(A, B), (A, B)), _contract_backward)


def transpose(A: Float[Array, "i j *batch"]) -> Float[Array, "j i *batch"]:
    """The transpose of every task's matrix."""
    return jnp.swapaxes(A, 0, 1)


Scalar = Any  # a number, or a scalar array where a sweep is vmapped

KURTOSIS: dict[str, float] = {"uniform": 9 / 5, "normal": 3.0, "laplace": 6.0}  # E[x⁴]/E[x²]² of a coordinate


class Sequence(NamedTuple):
    """A context, a query and its target; a batch has an additional last axis.

    X: [N, d]; Y: [N, m]; x_q: [d]; y_q: [m].
    """

    X: Float[Array, "N d *batch"]
    Y: Float[Array, "N m *batch"]
    x_q: Float[Array, "d *batch"]
    y_q: Float[Array, "m *batch"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["input_range", "weight_scale", "noise"],
    meta_fields=["dim", "context", "outputs", "inputs", "scales"],
)
@dataclasses.dataclass(frozen=True)
class Tasks:
    """A distribution of regression tasks; sizes and kinds of inputs are static.

    dim: d, inputs.
    context: N, pairs in the context.
    outputs: m.
    inputs: distribution of a coordinate of x. uniform: U(-r/2, r/2). normal, laplace: with the same variance s = r²/12.
    input_range: r.
    weight_scale: c.
    noise: standard deviation of the noise on the context's y; one number, or one per task of a batch.
    scales: d factors, one for each coordinate of x; default, none.

    Raises:
        ValueError: a size below 1, a range, scale or noise that is negative or not finite, an unknown kind of inputs, or a
            number of scales other than d.

    Example:
        >>> tasks = Tasks(dim=3, context=5)
        >>> tasks.variance, tasks.sample(jax.random.key(0), 4).X.shape
        (0.08333333333333333, (5, 3, 4))

    Source: von Oswald et al. 2023, Sec. 3 and App. A.3 (the text has U(-1, 1), r = 2; its numbers are those of r = 1).
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
        sizes = self.dim, self.context, self.outputs
        if not all(isinstance(size, int | np.integer) and size >= 1 for size in sizes):
            raise ValueError(f"dim {self.dim}, context {self.context}, outputs {self.outputs}: use whole numbers of at least 1")
        numbers = {"input_range": self.input_range, "weight_scale": self.weight_scale, "noise": self.noise}
        for name, value in numbers.items():
            if isinstance(value, str) or (isinstance(value, float | int) and not 0 <= value < math.inf):
                raise ValueError(f"{name} {value}: use a finite number of at least 0")
        if self.inputs not in KURTOSIS:
            raise ValueError(f"inputs {self.inputs!r}: choose one of {', '.join(KURTOSIS)}")
        if self.scales is not None and len(self.scales) != self.dim:
            raise ValueError(f"scales {self.scales} for {self.dim} inputs: give one for each")

    def sample(self, key: Array, *batch: int, dtype: Any = None) -> Sequence:
        """Fresh tasks, batch last: `sample_tasks`."""
        return sample_tasks(key, self, *batch, dtype=dtype)

    @property
    def variance(self) -> Scalar:
        """s = r²/12, the variance of a coordinate."""
        if self.scales is not None:
            raise ValueError(f"scales {self.scales}: there is no single variance; use icl.exact_moments")
        return self.input_range**2 / 12

    @property
    def input_stds(self) -> tuple[Scalar, ...]:
        """The standard deviation of each coordinate."""
        std = dataclasses.replace(self, scales=None).variance ** 0.5
        return tuple(std * scale for scale in self.scales or (1.0,) * self.dim)

    @property
    def kurtosis(self) -> float:
        """E[x⁴]/E[x²]² of a coordinate."""
        return KURTOSIS[self.inputs]


@runtime_checkable
class TaskSampler(Protocol):
    """A distribution of sequences, such as `Tasks`; hashable."""

    def sample(self, key: Array, *batch: int, dtype: Any = None) -> Sequence:
        """A sequence, or a batch of them, batch last."""
        ...


@jax.jit
def half_mse(y: Float[Array, "m batch"], y_q: Float[Array, "m batch"]) -> Float[Array, ""]:
    """`½ mean_τ ||ŷ - y_q||²`, summed over outputs.

    Raises:
        ValueError: different shapes, or no tasks.
    """
    if y.shape != y_q.shape or not y.size:
        raise ValueError(f"predictions {y.shape}, targets {y_q.shape}: give one of each for at least one task")
    return jnp.sum((y - y_q) ** 2) / (2 * y.shape[-1])


def sample_tasks(key: Array, tasks: Tasks, *batch: int, dtype: Any = None) -> Sequence:
    """Tasks and sequences: `y_i = W x_i + noise`, `W ~ N(0, c² I)`.

    Args:
        batch: the last axes of all arrays; none for a single task.

    Example:
        >>> sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4).X.shape
        (5, 3, 4)

    Source: von Oswald et al. 2023, Sec. 3.
    """
    if not all(isinstance(size, int | np.integer) and size >= 0 for size in batch):
        raise ValueError(f"a batch of {batch} tasks: give whole numbers of at least 0")
    noisy = not (isinstance(tasks.noise, float | int) and tasks.noise == 0)
    key_x, key_w, key_noise = jax.random.split(key, 3)  # outside jit: not recompiled for every size
    keys = (*jax.random.split(key_x, 3)[1:], key_w, key_noise)
    return _sample(keys, tasks, batch, jnp.dtype(dtype or jnp.zeros(()).dtype), noisy)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _sample(keys: tuple[Array, ...], tasks: Tasks, batch: tuple[int, ...], dtype: Any, noisy: bool) -> Sequence:
    *keys_x, key_w, key_noise = keys
    shapes = (tasks.context, tasks.dim, *batch), (tasks.dim, *batch)  # drawn separately for speed
    X, x_q = (_sample_inputs(key, tasks, shape, dtype) for key, shape in zip(keys_x, shapes, strict=True))
    if tasks.scales is not None:
        scales = jnp.asarray(tasks.scales, dtype).reshape(-1, *[1] * len(batch))
        X, x_q = X * scales[None], x_q * scales
    W = jnp.asarray(tasks.weight_scale, dtype) * draw(jax.random.normal, key_w, (tasks.outputs, tasks.dim, *batch), dtype=dtype)
    Y, y_q = contract(transpose(X), transpose(W)), contract(transpose(W), x_q[:, None])[:, 0]
    if noisy:
        noise = jnp.broadcast_to(jnp.asarray(tasks.noise, dtype), Y.shape)  # one number, or one per task
        Y = Y + noise * draw(jax.random.normal, key_noise, Y.shape, dtype=dtype)
    return Sequence(X, Y, x_q, y_q)


@jax.jit
def sequences(batch: Sequence) -> Sequence:
    """A batch with its batch axis first, for `jax.vmap` over functions of one sequence."""
    return Sequence(*(jnp.moveaxis(leaf, -1, 0) for leaf in batch))


def vmap_tasks(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.vmap` over the last axis, the batch axis of tasks.

    Example:
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> vmap_tasks(lambda sequence: sequence.x_q)(batch).shape
        (3, 4)
    """
    return jax.vmap(function, in_axes=-1, out_axes=-1)


@jax.jit
@full_precision
def tokens(sequence: Sequence, W0: Float[Array, "m d"] | None = None) -> Float[Array, "tokens width"]:
    """The tokens of a sequence: `e_i = (x_i, y_i)`, then `(x_q, -W0 x_q)`.

    Args:
        W0: [m, d] the weights that descent starts from; default, zero.

    Raises:
        ValueError: shapes that do not fit.

    Source: von Oswald et al. 2023, Sec. 2 and App. A.1.
    """
    W0 = initial_weights(sequence, W0)
    X, Y, x_q, _ = sequence
    return jnp.concatenate([jnp.concatenate([X, Y], axis=1), jnp.concatenate([x_q, -W0 @ x_q])[None]])


def initial_weights(sequence: Sequence, W0: Float[Array, "m d"] | None = None) -> Float[Array, "m d"]:
    """W0, or zeros [m, d]; checks the shapes of one sequence."""
    X, Y, x_q, y_q = sequence
    fits = X.ndim == Y.ndim == 2 and x_q.ndim == y_q.ndim == 1
    if not (fits and len(X) == len(Y) > 0 and X.shape[1:] == x_q.shape and Y.shape[1:] == y_q.shape):
        shapes = f"X {X.shape}, Y {Y.shape}, x_q {x_q.shape}, y_q {y_q.shape}"
        raise ValueError(f"{shapes}: wanted [N, d], [N, m], [d], [m] of one task (for a batch: icl.sequences and jax.vmap)")
    shape = Y.shape[1], X.shape[1]
    if W0 is not None and W0.shape != shape:
        raise ValueError(f"W0 {W0.shape}: wanted [outputs, inputs] = {shape}")
    return jnp.zeros(shape, X.dtype) if W0 is None else W0


def _sample_inputs(key: Array, tasks: Tasks, shape: tuple[int, ...], dtype: Any) -> Array:
    """Coordinates of inputs, before their scales."""
    r = jnp.asarray(tasks.input_range, dtype)
    if tasks.inputs == "uniform":
        return r * draw(jax.random.uniform, key, shape, dtype=dtype, minval=-0.5, maxval=0.5)
    if tasks.inputs == "laplace":
        return r / 12**0.5 * (draw(jax.random.laplace, key, shape, dtype=dtype) / jnp.asarray(2**0.5, dtype))
    return r / 12**0.5 * draw(jax.random.normal, key, shape, dtype=dtype)
