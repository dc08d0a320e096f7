"""Devices as one axis, checkpoints, processes joined through the distributed runtime, and forked ones."""

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from files import shards_of
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference import random_documents, stream_of
from refusals import refused

import jexplicit
from jexplicit.counts import count
from jexplicit.runs import devices as module
from jexplicit.runs.devices import AXIS, data_mesh, iterate, load_checkpoint, load_latest, save_checkpoint, save_latest
from jexplicit.runs.files import host_bytes

GB = 10**9
ON_CPUS = {"JAX_PLATFORMS": "cpu"}
PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def python(*arguments: str, **variables: str) -> subprocess.Popen:
    """A process whose environment says nothing of devices but this."""
    chosen = {"NPROC", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"}
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **PIPES)


def ended(started: list[subprocess.Popen]) -> list[str]:
    """What processes that end well have printed."""
    answers = [(process, *process.communicate(timeout=300)) for process in started]
    for process, _, errors in answers:
        assert process.returncode == 0, errors
    return [answer for _, answer, _ in answers]


def test_a_mesh_has_the_devices_asked_for_on_one_axis_and_functions_take_all_accelerators_and_one_cpu(monkeypatch):
    for devices in (None, 1, 8):
        mesh = data_mesh(devices)
        assert (mesh.axis_names, mesh.axis_types) == ((AXIS,), (AxisType.Auto,))  # auto: unsharded arrays are accepted
        assert mesh.devices.tolist() == jax.devices()[: devices or 8]
        assert module.use_devices(devices).size == (devices or 8)  # a command inside a running JAX
    for devices in (0, 9):
        refused(f"{devices} devices requested, 8 available: use --devices 8 or fewer", data_mesh, devices)
    assert module.default_mesh().size == 1
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    assert module.default_mesh() == data_mesh(8)


def test_a_command_gets_virtual_devices_on_a_cpu_with_threads_to_spare_unless_the_user_says_otherwise():
    program = "import os; from jexplicit.runs.devices import use_devices; print(use_devices(2).size, os.environ['NPROC'])"
    given: list[dict[str, str]] = [{}, {"NPROC": "3"}]
    answers = ended([python("-c", program, **ON_CPUS, **variables) for variables in given])
    assert [answer.strip() for answer in answers] == ["2 8", "2 3"]


def test_as_many_devices_count_as_have_room_for_tables():
    # D + 1 + 2 / K GB of tables and 0.6 GB for the runtime: at K = 2, D devices take D + 2.6 GB
    for budget, devices in ((3.7, 1), (4.5, 1), (4.7, 2), (9.7, 7), (100, 8)):
        assert module.within_memory(data_mesh(8), int(budget * GB), GB, 2).size == devices
    said = "--memory 2.0GB: counting with tables of 1.0 GB takes .* use a smaller --vocab-size"
    refused(said, module.within_memory, data_mesh(2), 2 * GB, GB, 2)
    per_device = int(host_bytes() // 4)  # devices of a CPU share the memory of the host
    module.check_memory(data_mesh(2), per_device, "tables")
    refused("tables take 8 x .* use fewer --devices", module.check_memory, data_mesh(8), per_device, "tables")


# Checkpoints


class State(NamedTuple):
    tables: tuple
    steps: Any


def a_tree(seed=0, devices=1):
    """Leaves of every kind that a run keeps: sharded, scalar, on the host, text."""
    rng = np.random.default_rng(seed)
    sharding = NamedSharding(data_mesh(devices), PartitionSpec(None, AXIS))
    tables = tuple(jax.device_put(jnp.asarray(rng.normal(size=(3, 8)), dtype), sharding) for dtype in ("float32", "float64"))
    state = State(tables, jnp.array(seed, jnp.int32))
    return {"state": state, "best": rng.normal(size=5), "text": np.frombuffer(b"position", np.uint8)}


def like(devices=1):
    return a_tree(99, devices) | {"text": np.zeros(0, np.uint8)}


def assert_equal(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype and isinstance(leaf, jax.Array) == isinstance(other, jax.Array)
        np.testing.assert_array_equal(leaf, other)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_checkpoint_alone_is_left_and_what_is_not_of_the_series_stays(tmp_path):
    refused("no checkpoint at .*counts: finish the run first", load_checkpoint, tmp_path / "counts")
    save_checkpoint(tmp_path / "counts", {"C": [np.arange(3)]})
    assert load_checkpoint(tmp_path / "counts")["C"][0].tolist() == [0, 1, 2]
    (tmp_path / "7.txt").write_text("a note")
    (tmp_path / "8").write_text("a file")
    assert load_latest(tmp_path / "new", like()) is None and load_latest(tmp_path, like()) is None
    for number, seed in ((9, 9), (10, 10), (10, 7)):  # as text, 9 is the last; one is written again
        save_latest(tmp_path, number, a_tree(seed))
        assert names(tmp_path) == sorted([str(number), "7.txt", "8", "counts"])
        assert_equal(load_latest(tmp_path, like()), a_tree(seed))


def test_leaves_are_placed_as_their_likeness_whatever_devices_they_came_from(tmp_path):
    for before, after in ((8, 1), (1, 8)):
        save_latest(tmp_path, 1, a_tree(0, before))
        found: Any = load_latest(tmp_path, like(after))
        assert_equal(found, a_tree())
        for leaf, other in zip(jax.tree.leaves(found["state"]), jax.tree.leaves(like(after)["state"]), strict=True):
            assert leaf.sharding == other.sharding


def test_a_crash_leaves_two_whose_newer_counts_and_neither_an_interrupted_write_nor_one_that_fails(tmp_path, monkeypatch):
    save_latest(tmp_path, 9, a_tree(9))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        save_latest(tmp_path, 10, a_tree(10))
    assert names(tmp_path) == ["10", "9"]
    with monkeypatch.context() as patch:
        patch.setattr(module.orbax(), "save", Mock(side_effect=OSError("No space left on device")))
        refused("cannot be written .No space left.*: choose another", save_latest, tmp_path, 11, a_tree(2))
    assert_equal(load_latest(tmp_path, like()), a_tree(10))
    save_latest(tmp_path, 12, a_tree(12))
    assert names(tmp_path) == ["12"]


def test_a_checkpoint_of_other_shapes_and_damaged_files_are_named(tmp_path):
    save_latest(tmp_path, 4, a_tree())
    others: list[dict[str, Any]] = [
        {"state": State((np.zeros((3, 8)), np.zeros((4, 8))), np.array(0))},  # a larger table
        {"state": State((np.zeros((3, 8)),), np.array(0))},  # fewer
        {"best": np.zeros((5, 1))},
    ]
    shapes = r"\[\(5,\), \(3, 8\), \(3, 8\), \(\), \(8,\)\]"
    for other in others:
        said = rf"4 holds arrays {shapes}, wanted \[.*\]: it is another model's; delete it"
        refused(said, load_latest, tmp_path, like() | other)
    table = np.random.default_rng(0).normal(size=(50, 50))  # one array: orbax leaves threads behind where several reads fail
    save_latest(tmp_path, 5, table)
    data = {path: path.read_bytes() for path in (tmp_path / "5/state").rglob("d/*") if path.is_file()}
    assert data
    for damage in (lambda data: data[: len(data) // 2], lambda data: b"x" * len(data), None):
        for path, whole in data.items():
            path.write_bytes(damage(whole)) if damage else path.unlink()
        refused(r"(?s)5 cannot be read .*: delete it and run again", load_latest, tmp_path, table)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    def once(x, **known):
        return iterate(lambda s, h: (s, {}), (x, np.zeros(0)), done=bool, checkpoints=tmp_path, known=known)

    known = {"seed": 1, "text": np.array([0, 2])}
    first = once(np.zeros(3), **known)
    for start, changed, message in [
        (np.zeros(4), {}, "holds arrays .*: it is another model's; delete it"),
        (np.zeros(3, np.float16), {}, r"was written for dtype \['float64'\], not \['float16', 'float64'\]"),
        (np.zeros(3), {"seed": np.int64(2)}, "was written for seed 1, not 2: choose another folder for checkpoints, or delete"),
        (np.zeros(3), {"text": np.array([0, 1])}, "was written for text '[0-9a-f]{12}', not '[0-9a-f]{12}': choose another"),
        (np.zeros(3), {"context": 1}, "was written for context None, not 1: choose another folder"),
    ]:
        refused(message, once, start, **known | changed)
    assert once(np.zeros(3), text=np.array([0, 2]), seed=np.int32(1))[1] == first[1]


# Several processes

N = 7


def free_port() -> int:
    """A port below those that the system gives away, of ten that no other process of tests tries."""
    first = 20_000 + 10 * (os.getpid() % 1_200)
    for port in range(first, first + 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", port))
            return port
    raise OSError(f"ports {first} to {first + 9} are taken")


COUNTING = """
import sys
import numpy as np
from jexplicit.counts import count
from jexplicit.data.streams import read_shards
from jexplicit.runs.devices import check_equal_across_processes, data_mesh, gather_over_processes, is_first, join
from jexplicit.runs.devices import part_of_process, request_devices
request_devices(2)
join("auto", None, None)
stream = read_shards(sys.argv[1])
check_equal_across_processes("shards", stream.sha256)
counts = count(stream, context=2, vocab_size=stream.vocab_size, mesh=data_mesh(2), chunk=50)
first, last = part_of_process(0, 7)
numbers = gather_over_processes(stream[first:last])
if is_first():
    np.savez(sys.argv[2], C_1=counts[0], C_2=counts[1], numbers=numbers)
"""


def test_two_processes_that_slurm_starts_count_and_gather_what_one_does(tmp_path):
    documents = random_documents(seed=7, number=3000, vocab_size=N, longest=9)
    shards_of(tmp_path / "shards", documents, vocab_size=N, shard_tokens=2000)
    node = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "NODEID": "0", "STEP_TASKS_PER_NODE": "2"}
    given, port = {f"SLURM_{name}": value for name, value in node.items()} | ON_CPUS, str(free_port())
    line = ["-c", COUNTING, str(tmp_path / "shards"), str(tmp_path / "out.npz")]
    ended([python(*line, **given, SLURM_PROCID=n, SLURM_LOCALID=n, JAX_COORDINATOR_PORT=port) for n in "01"])
    found, stream = np.load(tmp_path / "out.npz"), stream_of(documents)
    for k, C in enumerate(count(stream, context=2, vocab_size=N), 1):
        assert found[f"C_{k}"].dtype == C.dtype
        np.testing.assert_array_equal(found[f"C_{k}"], C)
    np.testing.assert_array_equal(found["numbers"], stream[:7])


LATE = """
import sys, time
import numpy as np
from jexplicit.runs.devices import barrier, gather_over_processes, join
join(sys.argv[1], 2, int(sys.argv[2]))
time.sleep(35 * int(sys.argv[2]))  # reading, say; what gathers then connects the processes, which XLA tries for 30 s on a CPU
assert gather_over_processes(np.arange(2)).tolist() == [0, 1, 0, 1]
barrier("end")
barrier("end")  # names of barriers may be used again
print("met")
"""


@pytest.mark.slow
def test_a_process_that_is_late_is_waited_for():
    address = f"localhost:{free_port()}"
    answers = ended([python("-c", LATE, address, number, **ON_CPUS) for number in "01"])
    assert all(answer.endswith("met\n") for answer in answers)  # Gloo prints, too


def test_a_process_that_cannot_join_says_why_and_one_whose_coordinator_never_answers_gives_up_in_time():
    for arguments, message in [
        (("localhost:1234", 2, None), "--coordinator localhost:1234 without --num-processes and --process-id"),
        (("localhost:1234", 2, 2), "--process-id 2 of 2 processes: give 0 to 1"),
        (("localhost:99999", 2, 0), "--coordinator localhost:99999: give HOST:PORT"),
    ]:
        refused(message, module.join, *arguments)
    program = f"from jexplicit.runs.devices import join; join('localhost:{free_port()}', 2, 1, seconds=2)"
    process = python("-c", program, **ON_CPUS)
    message = " ".join(process.communicate(timeout=240)[1].split())
    assert process.returncode == 2
    assert "error: process 1 of 2: not all processes have joined at localhost:" in message and "within 2 s" in message


LOCKING = """
import sys
from jexplicit.runs.devices import lock_run_folder
for process_id in map(int, sys.argv[2:]):
    try:
        lock_run_folder(sys.argv[1], process_id).release()
        print("free")
    except ValueError as error:
        print(error)
"""


def test_a_folder_is_locked_against_other_processes_with_the_same_id(tmp_path):
    def elsewhere(*ids: str) -> list[str]:
        return ended([python("-c", LOCKING, str(tmp_path), *ids)])[0].splitlines()

    first, second = module.lock_run_folder(tmp_path, 0), module.lock_run_folder(tmp_path, 1)
    assert module.lock_run_folder(tmp_path, 1) is second is not first
    taken, free = elsewhere("1", "2")
    assert "process 1 of another run is active in" in taken and "choose another --out" in taken and free == "free"
    del second
    assert elsewhere("1") == ["free"]  # nothing refers to that lock any more
    (tmp_path / "file").write_text("")
    refused("cannot be written", module.lock_run_folder, tmp_path / "file" / "run", 0)


# A forked process has none of JAX's threads

TEXTS = ["the cat sat on the mat", "the dog sat on the log"] * 10
QUESTIONS: list[Callable[[], object]] = []


def ask(n: int) -> object:
    return QUESTIONS[n]()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_counted_model_reads_in_a_forked_process_where_jax_is_refused_and_its_parent_goes_on():
    model, ngram = (jexplicit.fit(TEXTS, method, tokenizer="word") for method in (None, "ngram"))
    expected = ngram.perplexity(TEXTS[:2])
    QUESTIONS[:] = [lambda: model.perplexity(TEXTS[:2]), lambda: model.tokenizer.encode(TEXTS[0]).tolist()]
    QUESTIONS[2:] = [lambda: ngram.perplexity(TEXTS[:2]), lambda: jexplicit.fit(TEXTS, "explicit", tokenizer="word")]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        answers = [pool.apply_async(ask, (n,)) for n in range(4)]
        assert [answer.get(timeout=20) for answer in answers[:2]] == [question() for question in QUESTIONS[:2]]
        for answer in answers[2:]:
            with pytest.raises(RuntimeError, match=r'get_context\("spawn"\)'):
                answer.get(timeout=20)
    module.check_threads()
    assert ngram.perplexity(TEXTS[:2]) == expected
