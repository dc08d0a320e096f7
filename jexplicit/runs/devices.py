"""Devices and processes as one mesh axis, checks, the loop and its checkpoints.

Of several processes all call `barrier`, `iterate`, `..._across_processes` and `..._over_processes`, or none.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax._src import xla_bridge  # JAX has no public name for whether it runs
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.files import host_bytes, local_path, plain, refuse_errors

if TYPE_CHECKING:
    from filelock import FileLock

AXIS = "data"

full_precision = jax.default_matmul_precision("highest")
"""Decorator: matrix products in the precision of their inputs. By default a GPU rounds float32 to TF32, a TPU to bfloat16."""


threads_lost: list[bool] = []  # whether JAX ran when this process was forked


def check_threads() -> None:
    """Refuse to compute in a forked process, where JAX waits for its parent's threads."""
    if threads_lost:
        raise RuntimeError(
            "this process was forked after JAX had started, and has none of its threads: start it by another method, "
            'multiprocessing.get_context("spawn")'
        )


os.register_at_fork(after_in_child=lambda: threads_lost.extend([True] * bool(xla_bridge._backends)))


def data_mesh(devices: int | None = None) -> Mesh:
    """A one-axis mesh over the first `devices` devices of this process; default, all."""
    check_threads()
    available = jax.local_devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"{devices} devices requested, {len(available)} available: use --devices {len(available)} or fewer")
    # Auto: a scatter on sharded arrays raises with jax.make_mesh's own type, Explicit
    return jax.make_mesh((devices or len(available),), (AXIS,), axis_types=(AxisType.Auto,), devices=available[:devices])


def default_mesh() -> Mesh:
    """The default mesh: all accelerators of this process, or one CPU."""
    return data_mesh(1 if jax.default_backend() == "cpu" else None)


def on_cpu(mesh: Mesh) -> bool:
    """Whether the devices of a mesh are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def replicate(tree: Any, mesh: Mesh) -> Any:
    """The arrays of a pytree, replicated on every device."""
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        return jax.device_put(np.asarray(jax.device_put(leaf)) if on_cpu(mesh) else leaf, whole)

    placed = {id(leaf): place(leaf) for leaf in jax.tree.leaves(tree)}
    return jax.tree.map(lambda leaf: placed[id(leaf)], tree)


def map_rows(
    f: Callable[[Any], Any], xs: Any, mesh: Mesh | None = None, *, cpu: int | None = None, elsewhere: int | None = None
) -> Any:
    """f of all rows: `cpu` (one) at a time there, `elsewhere` (all) elsewhere."""
    few = functools.partial(jax.lax.map, f, batch_size=cpu)
    many = functools.partial(jax.lax.map, f, batch_size=elsewhere) if elsewhere else jax.vmap(f)
    if mesh is not None:
        return (few if on_cpu(mesh) else many)(xs)
    return jax.lax.platform_dependent(xs, cpu=few, default=many)


def use_devices(devices: int | None = None) -> Mesh:
    """The mesh of a command: every accelerator, or up to 8 CPU devices."""
    request_devices(devices)
    return data_mesh(devices)


def request_devices(devices: int | None = None) -> None:
    """Split the CPU into several devices, which accelerators take precedence over."""
    # A device that waits for the others holds one of XLA's threads (NPROC): without spare ones a collective can deadlock.
    os.environ.setdefault("NPROC", str(4 * (devices or os.cpu_count() or 1)))
    with contextlib.suppress(RuntimeError):  # JAX already runs (in a notebook, in a test): its devices are unchanged
        jax.config.update("jax_num_cpu_devices", devices or min(os.cpu_count() or 1, 8))


RUNTIME_BYTES = 600 * 10**6  # Python, its libraries, XLA and compiled code


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Refuse arrays on CPU devices that exceed the host's memory."""
    present = host_bytes()
    if on_cpu(mesh) and mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --context"
        )


def within_memory(mesh: Mesh, budget: int, table_bytes: int, offsets: int) -> Mesh:
    """A mesh of as many devices as the memory budget allows."""
    if not on_cpu(mesh):
        return mesh
    host = RUNTIME_BYTES + table_bytes + 2 * table_bytes // offsets  # the sum of all devices, one offset in 8-byte integers
    devices = min(mesh.size, (budget - host) // table_bytes)
    if devices < 1:
        raise ValueError(
            f"--memory {budget / 1e9:.1f}GB: counting with tables of {table_bytes / 1e9:.1f} GB takes "
            f"{(host + table_bytes) / 1e9:.1f} GB; allow that, or use a smaller --vocab-size or --context"
        )
    return data_mesh(int(devices))


AUTOMATIC = "auto"
_longest_wait_seconds = 7 * 24 * 3600  # for the work of another process; its death is detected by the heartbeat
_waits = itertools.count()
_cells_per_exchange = 1 << 24


def join(coordinator: str, num_processes: int | None, process_id: int | None, *, seconds: int = 60) -> None:
    """Join the other processes at HOST:PORT of process 0, or "auto", before JAX computes."""
    check_process(coordinator, num_processes, process_id)

    def give_up() -> None:  # the main thread waits inside the runtime, which exceptions do not interrupt
        from jexplicit.runs.progress import console  # rich is not for every program

        what = f"process {process_id} of {num_processes}: not all processes have joined at {coordinator} within {seconds} s"
        remedy = "Process 0 must run on that host, with the port open to the others; start each id from 0 once, all with the "
        console.print(f"[bold red]error:[/] {what}. {remedy}same --num-processes, or raise --join-seconds.", soft_wrap=True)
        os._exit(2)

    late = threading.Timer(seconds, give_up)
    late.start()
    try:
        jax.distributed.initialize(
            *((None, None, None) if coordinator == AUTOMATIC else (coordinator, num_processes, process_id)),
            initialization_timeout=seconds + 30,  # JAX aborts the process; `late` ends it earlier, with a message
            heartbeat_timeout_seconds=30,  # after the death of a process the others end
            shutdown_timeout_seconds=_longest_wait_seconds,  # the first process writes the report after the others
        )
        jax.devices()  # waits until every process has reported its devices
    except RuntimeError as error:
        remedy = "give --coordinator HOST:PORT, --num-processes and --process-id"
        raise ValueError(f"--coordinator {coordinator}: {error}; {remedy}") from error
    finally:
        late.cancel()
    if num_processes not in (None, P := jax.process_count()):
        raise ValueError(f"--num-processes {num_processes}, and {coordinator} was started with {P}: give all the same")


def message_of_process(error: Exception) -> str | None:
    """The message of an error caused by other processes, or None."""
    lost = isinstance(error, jax.errors.JaxRuntimeError)
    if not jax.distributed.is_initialized() or isinstance(error, RuntimeError) and not lost:
        return None
    remedy = ": another process has ended; start all of them again with --resume" * lost
    return f"process {jax.process_index()}: {str(error).splitlines()[0]}{remedy}"


def check_process(coordinator: str, num_processes: int | None, process_id: int | None) -> None:
    """Check the arguments of `join` before JAX starts."""
    if coordinator == AUTOMATIC:
        return
    host, _, port = coordinator.rpartition(":")
    if num_processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} without --num-processes and --process-id: give both")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"--process-id {process_id} of {num_processes} processes: give 0 to {num_processes - 1}")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator {coordinator}: give HOST:PORT of process 0, or auto on SLURM or a TPU pod")


def is_first() -> bool:
    """Whether this is the process that writes results and prints to the terminal."""
    return jax.process_index() == 0


def barrier(what: str) -> None:
    """Wait until every process has called this; a collective would time out."""
    if not jax.distributed.is_initialized():  # one process, or hosts of a slice that have not joined
        return
    from orbax.checkpoint import multihost  # JAX has no public name for this

    wait = multihost.get_barrier_sync_fn()
    wait(key=f"{what} {next(_waits)}", timeout_ms=1000 * _longest_wait_seconds)


def check_equal_across_processes(what: str, value: str) -> None:
    """Check that all processes have the same value, or raise in all."""
    # the AssertionError of multihost_utils.assert_equal prints the arrays instead of the differing processes
    digests = gather_over_processes(np.frombuffer(hashlib.sha256(value.encode()).digest(), np.int32)[None])
    others = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
    if others:
        raise ValueError(f"processes {others} have another {what} than process 0: start all with the same flags and files")


def part_of_process(first: int, last: int) -> tuple[int, int]:
    """This process's part of the range first .. last - 1."""
    P, p = jax.process_count(), jax.process_index()
    return first + (last - first) * p // P, first + (last - first) * (p + 1) // P


def sum_over_processes(table: np.ndarray) -> np.ndarray:
    """The exact sum over processes of an integer table, in a wide type."""
    if jax.process_count() == 1:
        return table
    flat, total = table.ravel(), np.empty(table.size, np.int64)
    for start in range(0, table.size, _cells_per_exchange):
        part = slice(start, start + _cells_per_exchange)
        total[part] = gather_over_processes(flat[None, part].astype(np.int64)).sum(axis=0)
    return total.astype(np.int32 if total.max(initial=0) < 2**31 else np.int64, copy=False).reshape(table.shape)


def gather_over_processes(part: np.ndarray) -> np.ndarray:
    """The parts [n_p, ...] of all processes, concatenated, on every host."""
    if jax.process_count() == 1:
        return part
    barrier("gather")
    rows = np.ascontiguousarray(part)[..., None].view(np.uint8)  # bytes: JAX without x64 would truncate numbers of 8
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(rows)))).tolist()
    padded = np.zeros((max(lengths), *rows.shape[1:]), np.uint8)
    padded[: len(rows)] = rows
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return np.concatenate([own[:n] for own, n in zip(gathered, lengths, strict=True)]).view(part.dtype)[..., 0]


def lock_run_folder(out: str | os.PathLike, process_id: int) -> "FileLock":
    """Lock a run folder against other processes; one lock in each process."""
    from filelock import FileLock, Timeout  # not for every program

    path = local_path(out, "--out") / f".process_{process_id}.lock"
    taken = f"process {process_id} of another run is active in {out}"
    remedy = "wait for its end, or choose another --out; processes of one run have different --process-id"
    with refuse_errors(f"run folder {out} cannot be written", "choose another --out", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True)
        with refuse_errors(taken, remedy, Timeout):
            if not lock.is_locked:
                lock.acquire()
        return lock


def check_seed(seed: Any) -> None:
    """Refuse a seed that is no whole number 0 .. 2^63 - 1."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed!r}: use a whole number from 0 to 2^63 - 1")


def key_of_seed(seed: int | np.integer | Array) -> Array:
    """The random key of a seed below 2^63; a key stays itself."""
    if isinstance(seed, Array):
        return jax.random.key(seed) if seed.ndim == 0 and jnp.issubdtype(seed.dtype, jnp.integer) else seed
    check_seed(seed)
    check_threads()
    high, low = divmod(int(seed), 2**32)
    return jax.random.fold_in(jax.random.key(low), high) if high else jax.random.key(low)


def is_concrete(*trees: Any) -> bool:
    """Whether all arrays of some pytrees are concrete."""
    return not any(isinstance(leaf, Tracer) for leaf in (_zero(), *jax.tree.leaves(trees)))


@jax.jit
def _zero() -> Array:
    """A number that is traced under jit, whatever the arguments are."""
    return jnp.zeros(())


def as_float(x: Any) -> Array:
    """An array in floats that sum without wrapping or stalling."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    return x.astype(jnp.zeros(()).dtype)


def check_labels_of(labels: Any, shape: tuple[int, ...]) -> None:
    """Refuse labels that are not M integers 0 .. N - 1."""
    M, N = shape
    if jnp.shape(labels) != (M,):
        remedy = "give one number each (of one-hot rows, Y.argmax(axis=1))"
        raise ValueError(f"labels {jnp.shape(labels)} for {M} examples: {remedy}")
    if is_concrete(labels):
        known = np.asarray(labels)
        wrong = ~((known >= 0) & (known < N) & (known % 1 == 0))
        if wrong.any():
            raise ValueError(f"label {known[wrong][0]} for {N} outputs: labels are the numbers 0 .. {N - 1}; renumber them")


def checked(
    before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None, *, static: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """A decorator: the function under `jax.jit`, and checks of concrete values outside of it.

    before, after: called with the arguments, or the result and the arguments; raise ValueError.
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(f, static_argnames=static)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_threads()
            known = is_concrete(args, kwargs)
            if before and known:
                before(*args, **kwargs)
            result = compiled(*args, **kwargs)
            if after and known:
                after(result, *args, **kwargs)
            return result

        cast(Any, call).lower = compiled.lower
        return call

    return decorate


_empty = (1,) * 7  # represents an empty vector, which orbax does not save
_series_name = re.compile(r"\d+(\.orbax-checkpoint-tmp.*)?")  # checkpoints, finished or interrupted


@functools.cache
def orbax() -> Any:
    """Orbax, imported when it is first needed: it takes a third of a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports its own deprecated names
        from orbax.checkpoint import v1
    return v1


def save_checkpoint(path: str | os.PathLike, tree: Any) -> None:
    """Write a pytree of arrays, whole or not at all, over an earlier one."""
    with refuse_errors(f"checkpoint {path} cannot be written", "choose another --out", OSError):
        orbax().save(os.path.abspath(path), tree, overwrite=True)


def load_checkpoint(path: str | os.PathLike) -> Any:
    """Read a pytree of arrays; tuples become lists."""
    path = os.path.abspath(path)
    if not is_checkpoint(path):
        raise ValueError(f"no checkpoint at {path}: finish the run first (--resume continues an interrupted one)")
    with refuse_errors(f"checkpoint {path} cannot be read", "delete it and run again"):
        return orbax().load(path)


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Whether there is a finished checkpoint at a path."""
    return os.path.isdir(path) and orbax().is_orbax_checkpoint(os.path.abspath(path))


def as_json(value: Any) -> Any:
    """A value as JSON; a tree with arrays as a hash."""
    if not any(map(np.ndim, leaves := jax.tree.leaves(value))):
        return json.loads(json.dumps(value, default=plain))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()[:12]


def save_latest(folder: str | os.PathLike, number: int, tree: Any, known: Mapping[str, Any] | None = None) -> None:
    """Write checkpoint `number` of a series, then remove the others."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf if leaf.size else np.zeros(_empty, leaf.dtype) for leaf in leaves]
    about = np.frombuffer(json.dumps(known or {}).encode(), np.uint8)
    save_checkpoint(os.path.join(folder, str(number)), {"leaves": leaves, "written_for": about})
    for entry in list(os.scandir(folder)):
        if entry.is_dir() and _series_name.fullmatch(entry.name) and entry.name != str(number):
            shutil.rmtree(entry.path)


def load_latest(folder: str | os.PathLike, like: Any, known: Mapping[str, Any] | None = None) -> Any | None:
    """The last checkpoint of a series; an empty vector in `like` has any length."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [int(name) for name in names if name.isdigit() and is_checkpoint(os.path.join(folder, name))]
    if not numbers:
        return None
    path, remedy = os.path.join(folder, str(max(numbers))), "choose another folder for checkpoints, or delete this one"
    stored, (wanted, structure) = load_checkpoint(path), jax.tree.flatten(like)
    about = json.loads(stored["written_for"].tobytes()) if "written_for" in stored else {}
    for name, value in (known or {}).items():
        if about.get(name) != value:
            raise ValueError(f"checkpoint {path} was written for {name} {about.get(name)!r}, not {value!r}: {remedy}")
    leaves = [np.zeros(0, leaf.dtype) if np.shape(leaf) == _empty else leaf for leaf in stored["leaves"]]
    shapes, wanted_shapes = [np.shape(leaf) for leaf in leaves], [np.shape(leaf) for leaf in wanted]
    fits = (a == b or (b == (0,) and len(a) == 1) for a, b in zip(shapes, wanted_shapes, strict=False))
    if len(leaves) != len(wanted) or not all(fits):
        raise ValueError(f"checkpoint {path} holds arrays {shapes}, wanted {wanted_shapes}: it is another model's; delete it")
    pairs = zip(leaves, wanted, strict=True)
    placed = [jax.device_put(leaf, w.sharding) if isinstance(w, jax.Array) else np.asarray(leaf) for leaf, w in pairs]
    return jax.tree.unflatten(structure, placed)


Entry = dict[str, Any]
History = Sequence[Mapping[str, Any]]
_clocks = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}


def iterate(
    step: Callable[[Any, History], tuple[Any, Mapping[str, Any]]],
    state: Any,
    *,
    done: Callable[[History], bool],
    checkpoints: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    known: Mapping[str, Any] | None = None,
    callback: Callable[[Entry], Any] | None = None,
) -> tuple[Any, list[Entry]]:
    """Repeat `state, entry = step(state, history)` until the history is complete.

    A step depends on state and history only, so an interrupted run resumes from its last checkpoint bit for bit.

    step: `(state, history) -> (state, entry)`; the entry is a JSON object, which gets `seconds` and `cpu_seconds`.
    state: pytree of arrays; an empty vector in it may grow.
    checkpoints: folder, from which the iteration resumes; the last checkpoint has the final state.
    known: values that the steps depend on besides the state, such as a seed and the text: another run's checkpoint is refused.

    >>> step = lambda x, history: (x / 2, {"x": float(x)})
    >>> state, history = iterate(step, np.array(8.0), done=lambda history: len(history) == 3)
    >>> float(state), [entry["x"] for entry in history]
    (1.0, [8.0, 4.0, 2.0])
    """
    check_threads()
    history: list[Entry] = []
    types = {str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in jax.tree.leaves(state)}
    own = {**(known or {}), "dtype": sorted(types)} if checkpoints is not None else {}
    of = {name: as_json(value) for name, value in own.items()}
    if checkpoints is not None and (found := load_latest(checkpoints, _tree(state, history), of)):
        state, history = found["state"], json.loads(found["history"].tobytes())
    before = {name: history[-1].get(name, 0.0) if history else 0.0 for name in _clocks}
    started, saved = {name: clock() for name, clock in _clocks.items()}, time.perf_counter()
    while not done(history):
        state, entry = step(state, history)
        history.append({**entry, **{name: before[name] + clock() - started[name] for name, clock in _clocks.items()}})
        if callback:
            callback(history[-1])
        due = time.perf_counter() - saved > checkpoint_seconds
        if checkpoints is not None and (due or done(history)):
            save_latest(checkpoints, len(history), _tree(state, history), of)
            saved = time.perf_counter()
    return state, history


def _tree(state: Any, history: list[Entry]) -> dict[str, Any]:
    """The arrays of a checkpoint."""
    return {"state": state, "history": np.frombuffer(json.dumps(history).encode() if history else b"", np.uint8)}
