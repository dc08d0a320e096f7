"""Devices as one axis, how many fit in memory, and two processes joined through the distributed runtime."""

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from files import shards_of
from jax.sharding import AxisType
from reference import random_documents, stream_of

from jexplicit.counts.pairs import count
from jexplicit.runs import devices as module
from jexplicit.runs.devices import (
    AXIS,
    check_memory,
    compile_quickly,
    data_mesh,
    default_mesh,
    slurm_gpus,
    use_devices,
    within_memory,
)
from jexplicit.runs.files import host_bytes, load_arrays, parse_bytes


@pytest.mark.parametrize("devices", [None, 1, 2, 8])
def test_a_mesh_has_the_devices_asked_for_on_one_axis(devices):
    mesh = data_mesh(devices)
    assert (mesh.axis_names, mesh.axis_types) == ((AXIS,), (AxisType.Auto,))  # auto: unsharded arrays are accepted
    assert mesh.devices.tolist() == jax.devices()[: devices or 8]


@pytest.mark.parametrize("devices", [-1, 0, 9])
def test_more_devices_than_present_or_none_are_refused(devices):
    with pytest.raises(ValueError, match=f"{devices} devices requested, 8 available: use --devices 8 or fewer"):
        data_mesh(devices)


def test_functions_take_all_accelerators_and_one_cpu(monkeypatch):
    assert default_mesh().size == 1
    monkeypatch.setattr(module, "on_accelerator", lambda: True)
    assert default_mesh() == data_mesh(8)
    stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
    np.testing.assert_array_equal(
        count(stream, radius=2, vocab_size=3), count(stream, radius=2, vocab_size=3, mesh=data_mesh(1))
    )


@pytest.mark.parametrize("devices, size", [(None, 8), (3, 3)])
def test_a_command_inside_a_running_jax_takes_the_devices_that_there_are(devices, size):
    jax.devices()  # JAX runs from here on
    assert use_devices(devices).size == size


def printed(program, given):
    """The words that a process prints whose environment says nothing of devices but this."""
    chosen = {"NPROC", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"}
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("given, threads", [({}, "8"), ({"NPROC": "3"}, "3")])
def test_a_command_gets_virtual_devices_with_threads_to_spare_unless_the_user_says_otherwise(given, threads):
    program = "import os; from jexplicit.runs.devices import use_devices; print(use_devices(2).size, os.environ['NPROC'])"
    assert printed(program, {"JAX_PLATFORMS": "cpu", **given}) == ["2", threads]


# As on a machine with a GPU and the package to use it.
WITH_GPU = """
import glob, os
import jax
from jexplicit.runs import devices
glob.glob = lambda pattern: ["/dev/nvidia3"] if pattern == "/dev/nvidia[0-9]*" else []
devices.find_spec = lambda name: name if name == "jax_plugins" else None
devices.request_devices(2)
print(jax.config.values["jax_num_cpu_devices"] == 2, "NPROC" in os.environ)
"""


@pytest.mark.parametrize(
    "given, split",
    [({}, False), ({"JAX_PLATFORMS": "cuda"}, False), ({"JAX_PLATFORMS": "cpu"}, True), ({"CUDA_VISIBLE_DEVICES": ""}, True)],
    ids=str,
)
def test_the_cpu_is_split_only_where_it_computes(given, split):
    assert printed(WITH_GPU, given) == [str(split), str(split)]


@pytest.mark.parametrize(
    "tasks, local, shown, on_node, expected",
    [
        ("1(x4)", 0, "0,1,2,3,4,5,6,7", 8, [0, 1, 2, 3, 4, 5, 6, 7]),  # alone on its node: JAX took the first
        ("1", 0, None, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("4(x2)", 3, "0,1,2,3", 4, [3]),  # --gres=gpu:4 --ntasks-per-node=4
        ("4(x2)", 3, "4,5,6,7", None, [3]),  # numbers are among those shown
        ("2(x2)", 1, "0,1,2,3", 4, [2, 3]),
        ("4(x2)", 3, "0", 4, [0]),  # --gpus-per-task=1: JAX asked for GPU 3 of one
        ("4(x2)", 3, "GPU-5d1e", None, [0]),
        ("2", 1, "0,1", 4, [0, 1]),  # --gpus-per-task=2
        ("3,2(x2)", 1, "0,1", 2, [1]),  # the last nodes run two
        ("1", 0, None, None, None),
        ("1", 0, "", None, None),
    ],
)
def test_processes_of_slurm_share_the_gpus_of_their_node(tasks, local, shown, on_node, expected):
    given = {"CUDA_VISIBLE_DEVICES": shown, "SLURM_GPUS_ON_NODE": on_node}
    environment = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_LOCALID": str(local), "SLURM_NODEID": "0"}
    environment |= {name: str(value) for name, value in given.items() if value is not None}
    if tasks.startswith("3,"):
        environment["SLURM_NODEID"] = "2"
    assert slurm_gpus(environment) == expected
    assert slurm_gpus({**environment, "JAX_LOCAL_DEVICE_IDS": "0"}) is None
    assert slurm_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) is None
    node = {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    with pytest.raises(ValueError, match="3 processes on a node of 8 GPUs: use --ntasks-per-node 1, 2, 4, 8"):
        slurm_gpus(node | {"SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_GPUS_ON_NODE": "8"})


@pytest.mark.parametrize("given", [None, "--xla_cpu_use_fusion_emitters=true"])
def test_short_runs_compile_with_the_older_code_unless_the_user_says_otherwise(given, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS") if given is None else monkeypatch.setenv("XLA_FLAGS", given)
    for _ in range(2):  # asked for again, nothing is added
        compile_quickly()
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "fusion_emitters" in flag]
    assert flags == ["--xla_cpu_use_fusion_emitters=false", *([given] if given else [])]  # XLA takes the last


ROOT = Path(__file__).parents[2]
MB, GB = 10**6, 10**9


@pytest.mark.parametrize(
    "size, expected", [("2GB", 2 * GB), ("1.5 GiB", 3 * 2**29), ("512mib", 2**29), (".5MB", MB // 2), ("10.KB", 10_000)]
)
def test_a_size_is_a_number_and_a_unit(size, expected):
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "2", "2 elephants", "0GB", "-1GB", "1.2.3GB", "٢GB"])
def test_any_other_size_is_refused(size):
    with pytest.raises(ValueError, match="memory .*: give a number and a unit, such as 2GB"):
        parse_bytes(size)


@pytest.mark.parametrize("budget, devices", [(3.7, 1), (4.5, 1), (4.7, 2), (9.7, 7), (100, 8)])
def test_as_many_devices_count_as_have_room_for_tables(budget, devices):
    # D + 1 + 2 / K GB of tables and 0.6 GB for the runtime: at K = 2, D devices take D + 2.6 GB
    assert within_memory(data_mesh(8), int(budget * GB), GB, 2).size == devices


def test_a_budget_for_no_device_at_all_is_refused():
    with pytest.raises(ValueError, match="--memory 2.0GB: counting with tables of 1.0 GB takes .* use a smaller --vocab-size"):
        within_memory(data_mesh(2), 2 * GB, GB, 2)


def test_devices_of_a_cpu_share_the_memory_of_the_host():
    per_device = int(host_bytes() // 4)
    check_memory(data_mesh(2), per_device, "tables")
    with pytest.raises(ValueError, match="tables take 8 x .* use fewer --devices"):
        check_memory(data_mesh(8), per_device, "tables")


GROWTH = f"""
import os, sys
from jexplicit.runs.files import peak_bytes
if child := os.fork():  # a process that is started has the peak of the one that starts it; one that is forked, its size
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
before = peak_bytes()
block = bytearray((before or 0) + {50 * MB})
print(before, peak_bytes())
"""


def test_the_peak_grows_with_what_is_allocated():
    printed = subprocess.run([sys.executable, "-c", GROWTH], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before, after = map(ast.literal_eval, printed.split())
    assert before is after is None or before + 50 * MB < after


SCORES = """
import sys, jax, jexplicit
from jexplicit.runs.files import peak_bytes
compiled, words = [], ("the cat sat on the mat and the dog sat on the log " * 20).split()
model = jexplicit.fit([" ".join(words[:13])] * 20, sys.argv[1], tokenizer="word")
jax.monitoring.register_event_duration_secs_listener(lambda name, s, **_: compiled.append(name) if "backend" in name else None)
for n in range(1, 201):
    model.score([" ".join(words[:n])])
    model.perplexity([" ".join(words[:n])])
    before = before if n > 1 else peak_bytes()
print(len(compiled), (peak_bytes() or 0) - (before or 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["context-mixing", "ngram", "explicit"])
def test_texts_of_200_lengths_compile_few_programs_and_leave_nothing(method):
    script = [sys.executable, "-c", SCORES, method]
    printed = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    programs, grown = map(int, printed.split())
    assert programs <= 8 and grown <= 20 * MB


N = 7
PROGRAM = Path(__file__).with_name("counting_process.py")
DOCUMENTS = random_documents(seed=7, number=3000, vocab_size=N, longest=9)


def free_port() -> int:
    """A port below those that the system gives away, of ten that no other process of tests tries."""
    first = 20_000 + 10 * (os.getpid() % 1_200)
    for port in range(first, first + 10):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", port))
            return port
    raise OSError(f"ports {first} to {first + 9} are taken")


def environment() -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PROGRAM.parents[2])}


PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def python(*arguments: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, *arguments], env={**environment(), **variables}, **PIPES)


def start(folder: Path, number: int = 2, seconds: float = 1e9) -> list[subprocess.Popen]:
    """All processes of a count of the shards in a folder."""
    port, places = free_port(), [str(folder / name) for name in ("shards", "saved", "out.npz")]
    return [python(str(PROGRAM), f"localhost:{port}", str(number), str(n), *places, str(seconds)) for n in range(number)]


def ended(started: list[subprocess.Popen]) -> list[str]:
    """What processes that end well have printed."""
    answers = [(process, *process.communicate(timeout=300)) for process in started]
    for process, _, errors in answers:
        assert process.returncode == 0, errors
    return [answer for _, answer, _ in answers]


def check_counts(folder: Path, documents: list[list[int]], started: list[subprocess.Popen]) -> None:
    ended(started)
    found, stream = load_arrays(folder / "out.npz"), stream_of(documents)
    for k, C in enumerate(count(stream, radius=2, vocab_size=N), 1):
        assert found[f"C_{k}"].dtype == C.dtype
        np.testing.assert_array_equal(found[f"C_{k}"], C)
    np.testing.assert_array_equal(found["numbers"], stream[:7])


def test_two_processes_count_and_gather_what_one_does(tmp_path):
    shards_of(tmp_path / "shards", DOCUMENTS, vocab_size=N, shard_tokens=2000)
    check_counts(tmp_path, DOCUMENTS, start(tmp_path))


@pytest.mark.slow
def test_one_of_two_processes_killed_again_and_again_leaves_exact_counts(tmp_path):
    documents, rng = random_documents(seed=7, number=20_000, vocab_size=N, longest=9), np.random.default_rng(0)
    shards_of(tmp_path / "shards", documents, vocab_size=N, shard_tokens=2000)
    for victim in (0, 1):
        started = start(tmp_path, seconds=0.0)
        time.sleep(rng.uniform(4, 8))
        started[victim].send_signal(signal.SIGKILL)
        for process in started:
            process.communicate(timeout=120)  # the other one ends too
    check_counts(tmp_path, documents, start(tmp_path, seconds=0.0))


def test_of_one_process_nothing_changes():
    table = np.arange(4).reshape(2, 2)
    assert module.part_of_process(3, 8) == (3, 8)
    assert module.sum_over_processes((table,))[0] is table and module.gather_over_processes(table) is table
    module.check_equal_across_processes("anything", "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("localhost:1234", 2, None), "--coordinator localhost:1234 without --num-processes and --process-id"),
        (("localhost:1234", 2, 2), "--process-id 2 of 2 processes: give 0 to 1"),
        (("localhost:port", 2, 0), "--coordinator localhost:port: give HOST:PORT"),
        (("localhost:99999", 2, 0), "--coordinator localhost:99999: give HOST:PORT"),
    ],
)
def test_a_process_that_cannot_join_says_why(arguments, message):
    with pytest.raises(ValueError, match=message):
        module.join(*arguments)


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
    answers = ended([python("-c", LATE, address, number) for number in "01"])
    assert all(answer.endswith("met\n") for answer in answers)  # Gloo prints, too


def test_a_process_alone_on_its_node_takes_all_gpus_that_slurm_shows_it(monkeypatch):
    started = {}
    node = {"LOCALID": "0", "NODEID": "1", "STEP_TASKS_PER_NODE": "1(x2)", "GPUS_ON_NODE": "4"}
    for name, value in node.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    monkeypatch.setattr(module.jax.distributed, "initialize", lambda *_, **given: started.update(given))
    module.join("auto", None, None)
    assert started["local_device_ids"] == [0, 1, 2, 3]


def test_processes_that_slurm_starts_join_by_themselves():
    program = "from jexplicit.runs.devices import barrier, join; import jax; join('auto', None, None); barrier('end'); print("
    program += "jax.process_index(), jax.process_count())"
    node = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "NODEID": "0", "STEP_TASKS_PER_NODE": "2"}
    given, port = {f"SLURM_{name}": value for name, value in node.items()}, str(free_port())
    started = [python("-c", program, **given, SLURM_PROCID=n, SLURM_LOCALID=n, JAX_COORDINATOR_PORT=port) for n in "01"]
    assert [answer.split() for answer in ended(started)] == [["0", "2"], ["1", "2"]]


def test_processes_meet_before_each_collective(monkeypatch):
    called = []
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(module, "barrier", lambda what: called.append("barrier"))
    monkeypatch.setattr(module, "_sum", lambda table: called.append("sum") or table)
    monkeypatch.setattr(module.multihost_utils, "process_allgather", lambda x: called.append("gather") or np.stack([x, x]))
    module.check_equal_across_processes("anything", "x")
    module.sum_over_processes([np.zeros(2, np.int32), np.zeros(2, np.int32)])
    module.gather_over_processes(np.zeros(2, np.int64))
    assert called == ["barrier", "gather", "barrier", "sum", "sum", "barrier", "gather", "gather"]


LOCKING = """
import sys
from jexplicit.runs.devices import lock_run_folder
for process_id in map(int, sys.stdin):
    try:
        lock_run_folder(sys.argv[1], process_id).release()
        print("free", flush=True)
    except ValueError as error:
        print(*str(error).split(), flush=True)
"""


def test_a_folder_is_locked_against_other_processes_with_the_same_id(tmp_path):
    with python("-c", LOCKING, str(tmp_path)) as elsewhere:
        asked: Any = elsewhere.stdin
        answers: Any = elsewhere.stdout

        def lock_elsewhere(process_id: int) -> str:
            print(process_id, file=asked, flush=True)
            return answers.readline().strip()

        first, second = module.lock_run_folder(tmp_path, 0), module.lock_run_folder(tmp_path, 1)
        assert module.lock_run_folder(tmp_path, 1) is second is not first
        refused = lock_elsewhere(1)
        assert "process 1 of another run is active in" in refused and "choose another --out" in refused
        assert lock_elsewhere(2) == "free"
        second.release()
        assert lock_elsewhere(1) == "free"
        assert module.lock_run_folder(tmp_path, 1).is_locked and "process 1 of another run" in lock_elsewhere(1)
        del second
        assert lock_elsewhere(1) == "free"  # nothing refers to that lock any more
        assert "process 0 of another run" in lock_elsewhere(0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        module.lock_run_folder(tmp_path / "file" / "run", 0)


def test_a_coordinator_that_never_answers_is_given_up_in_time():
    process = python("-c", f"from jexplicit.runs.devices import join; join('localhost:{free_port()}', 2, 1, seconds=2)")
    message = " ".join(process.communicate(timeout=240)[1].split())
    assert process.returncode == 2
    assert "error: process 1 of 2: not all processes have joined at localhost:" in message and "within 2 s" in message
