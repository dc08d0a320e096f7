"""The bench of jexplicit.lm.fits.gradient: one Adagrad step of the single-layer softmax model, against PyTorch's."""

import functools
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.experiments.tables import Column
from jexplicit.lm.core.smoothing import Noise, noise_model
from jexplicit.lm.fits.gradient import cold_start, initial_state, make_batch, training_step
from jexplicit.nn.optimizers import adagrad
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.progress import console
from launch.bench.config import Training
from launch.bench.shared.harness import Comparison, bench
from launch.bench.shared.streams import load_stream

_rate = 0.01
_steps = 3  # per call, each on its own batch: a step touches other rows than the one before
_tolerance = 1e-6


class Task(NamedTuple):
    """Initial tables, and the batches of a call.

    tables: K arrays [N, N].
    batches: contexts [B, K] and targets [B] in host memory, in the stream's integer type.
    noise: the noise model of the stream.
    """

    tables: Sequence[np.ndarray]
    batches: Sequence[tuple[np.ndarray, np.ndarray]]
    noise: Noise


# A method does what is off the clock and returns the call to time: a step on every batch, from contexts and targets in host
# memory, starting from the tables of the previous call. It returns the tables.


def _jexplicit(task: Task, *, sparse: bool = False, exact_noise: bool = False) -> Callable[[], Sequence[Any]]:
    mesh = data_mesh(1)
    optimizer = adagrad(_rate)
    step = training_step(optimizer, features="cat", noise=task.noise if exact_noise else None, mesh=mesh)
    state = initial_state(tuple(map(jnp.asarray, task.tables)), optimizer, mesh)
    N, B = len(task.tables[0]), len(task.batches[0][1])
    batch = functools.partial(make_batch, features="cat", vocab_size=N, size=B, sparse=sparse)

    def call():
        nonlocal state
        for X, Y in task.batches:
            state, _ = step(state, batch(X, Y))
        return jax.block_until_ready(state).params

    return call


def _torch(task: Task, *, bag: bool = False, sparse: bool = False, fused: bool = False) -> Callable[[], Sequence[Any]]:
    torch = importlib.import_module("torch")  # optional
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns unless it is set
    K, N = len(task.tables), len(task.tables[0])
    tables = [torch.from_numpy(U.copy()) for U in ([np.concatenate(task.tables)] if bag else task.tables)]
    own = {"mode": "sum"} if bag else {}
    layer = torch.nn.EmbeddingBag if bag else torch.nn.Embedding
    layers = [layer.from_pretrained(U, freeze=False, sparse=sparse, **own) for U in tables]
    first = torch.arange(K) * N if bag else 0  # row of each offset's table
    weights = [layer.weight for layer in layers]
    optimizer = torch.optim.Adagrad(weights, lr=_rate, initial_accumulator_value=0, eps=1e-10, fused=fused or None)

    def call():
        for X, Y in task.batches:
            x, y = (torch.from_numpy(a.astype(np.int64)) for a in (X, Y))
            read = [layers[0](x + first)] if bag else [layer(x[:, k]) for k, layer in enumerate(layers)]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(functools.reduce(torch.add, read), y, reduction="sum").backward()
            optimizer.step()
        return [U for weight in weights for U in weight.detach().reshape(-1, N, N)]

    return call


REFERENCE, ROWS, OTHER_MODEL = "jexplicit, dense", "jexplicit, rows", "jexplicit, exact noise"
TORCH, STRICTER = ("torch dense", "torch sparse"), ("torch bag, fused", "torch bag, sparse")
METHODS: dict[str, Callable[[Task], Callable[[], Sequence[Any]]]] = {
    REFERENCE: _jexplicit,
    ROWS: functools.partial(_jexplicit, sparse=True),
    OTHER_MODEL: functools.partial(_jexplicit, exact_noise=True),
    TORCH[0]: _torch,
    TORCH[1]: functools.partial(_torch, sparse=True),
    STRICTER[0]: functools.partial(_torch, bag=True, fused=True),
    STRICTER[1]: functools.partial(_torch, bag=True, sparse=True),
}


def comparisons(config: Training, folder: Path) -> Iterator[Comparison]:
    """* **jexplicit, dense**: `jexplicit.lm.fits.gradient.make_batch` and `training_step`, passes over whole tables; partition
      functions only of the distinct contexts, as in all methods of jexplicit.
    * **jexplicit, rows**: the same with `sparse=True`: only the rows that a batch touches, unless they are a large part of the
      table.
    * **jexplicit, exact noise**: the same for tables read through the noise model, whose gradient touches every row: no peer.
    * **torch dense**: one `torch.nn.Embedding` per offset, their rows summed, `cross_entropy`, `torch.optim.Adagrad`.
    * **torch sparse**: the same with `Embedding(sparse=True)`.
    * **torch bag, fused**: the stricter peer, the K tables as one `torch.nn.EmbeddingBag(mode="sum")`, and Adagrad with
      `fused=True`.
    * **torch bag, sparse**: the stricter peer for few rows, `EmbeddingBag(mode="sum", sparse=True)` and Adagrad, which has no
      fused version of it.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        console.print("PyTorch is not installed: nothing to compare with; install the extra torch")
    methods = {name: make for name, make in METHODS.items() if has_torch or name not in TORCH + STRICTER}
    for K, B in itertools.product(config.radius, config.batch_size):
        task, steps = _task(config, K, B), {"vocab_size": config.vocab_size, "steps": _steps, "stream": config.stream}
        yield Comparison(
            cases={name: make(task) for name, make in methods.items()},
            fields={"radius": K, "batch_size": B, **steps},
            row=lambda case, timings, B=B: {"positions_per_second": _steps * B / timings.median(case, "cpu_seconds")},
            reference=REFERENCE,
            difference=_difference,
            unchecked=[OTHER_MODEL],
        )


def _task(config: Training, K: int, B: int) -> Task:
    """Random tables, and batches of different positions in random order."""
    # documents of 40 tokens, each with one position that is not predicted
    stream = load_stream(config.stream, 2 * _steps * max(config.batch_size), config.vocab_size, config.seed)
    X, Y = contexts(stream, K)
    if len(Y) < _steps * B:
        raise ValueError(f"--stream {config.stream}: {len(Y)} positions, fewer than {_steps} batches of {B}")
    drawn = np.random.default_rng(config.seed).permutation(len(Y))[: _steps * B]
    tables = cold_start(jax.random.key(config.seed), features="cat", radius=K, vocab_size=config.vocab_size)
    noise = noise_model(np.bincount(stream, minlength=config.vocab_size))
    return Task([np.asarray(U) for U in tables], [(X[part], Y[part]) for part in np.split(drawn, _steps)], noise)


def _difference(tables: Sequence[Any], reference: Sequence[Any]) -> str:
    """Compare tables after one call.

    It takes several steps: the first from an empty accumulator is `rate * sign(gradient)` and would hide the gradient's size. A
    gradient is a sum of at most B float32 terms, accurate to some 1e-6 of the terms' size, and a step changes a cell by at most
    rate = 0.01 times its gradient over the root of the squares so far: an error of 1e-8, while 1e-6 is a ten-thousandth of a
    step.
    """
    error = max(float(np.abs(np.asarray(U) - np.array(V)).max()) for U, V in zip(tables, reference, strict=True))
    return "" if error <= _tolerance else f"tables are {error:.1g} apart"


COLUMNS = [Column("k pos. / CPU s", "positions_per_second", ",.1f", 1e-3)]
PEERS = {"ratio_to_torch": ("vs. torch", TORCH), "ratio_to_fastest_torch": ("vs. fastest", TORCH + STRICTER)}
run = bench(
    "training",
    comparisons,
    COLUMNS,
    sizes=["radius", "batch_size"],
    ours=[REFERENCE, ROWS, OTHER_MODEL],
    peers=PEERS,
    without_peer=[OTHER_MODEL],
)
