"""Two processes on this machine, joined through JAX's distributed runtime."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import shards_of
from reference import random_documents, stream_of

from jexplicit.counts.dense import count
from jexplicit.runs import processes
from jexplicit.runs.files import load_arrays

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
    assert processes.part_of_process(3, 8) == (3, 8)
    assert processes.sum_over_processes((table,))[0] is table and processes.gather_over_processes(table) is table
    processes.check_equal_across_processes("anything", "x")


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
        processes.join(*arguments)


LATE = """
import sys, time
import numpy as np
from jexplicit.runs.processes import barrier, gather_over_processes, join
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
    monkeypatch.setattr(processes, "runs_on_cpu", lambda: False)
    monkeypatch.setattr(processes.jax.distributed, "initialize", lambda *_, **given: started.update(given))
    processes.join("auto", None, None)
    assert started["local_device_ids"] == [0, 1, 2, 3]


def test_processes_that_slurm_starts_join_by_themselves():
    program = "from jexplicit.runs.processes import barrier, join; import jax; join('auto', None, None); barrier('end'); print("
    program += "jax.process_index(), jax.process_count())"
    node = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "NODEID": "0", "STEP_TASKS_PER_NODE": "2"}
    given, port = {f"SLURM_{name}": value for name, value in node.items()}, str(free_port())
    started = [python("-c", program, **given, SLURM_PROCID=n, SLURM_LOCALID=n, JAX_COORDINATOR_PORT=port) for n in "01"]
    assert [answer.split() for answer in ended(started)] == [["0", "2"], ["1", "2"]]


def test_processes_meet_before_each_collective(monkeypatch):
    called = []
    monkeypatch.setattr(processes.jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "barrier", lambda what: called.append("barrier"))
    monkeypatch.setattr(processes, "_sum", lambda table: called.append("sum") or table)
    monkeypatch.setattr(processes.multihost_utils, "process_allgather", lambda x: called.append("gather") or np.stack([x, x]))
    processes.check_equal_across_processes("anything", "x")
    processes.sum_over_processes([np.zeros(2, np.int32), np.zeros(2, np.int32)])
    processes.gather_over_processes(np.zeros(2, np.int64))
    assert called == ["barrier", "gather", "barrier", "sum", "sum", "barrier", "gather", "gather"]


LOCKING = """
import sys
from jexplicit.runs.processes import lock_run_folder
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

        first, second = processes.lock_run_folder(tmp_path, 0), processes.lock_run_folder(tmp_path, 1)
        assert processes.lock_run_folder(tmp_path, 1) is second is not first
        refused = lock_elsewhere(1)
        assert "process 1 of another run is active in" in refused and "choose another --out" in refused
        assert lock_elsewhere(2) == "free"
        second.release()
        assert lock_elsewhere(1) == "free"
        assert processes.lock_run_folder(tmp_path, 1).is_locked and "process 1 of another run" in lock_elsewhere(1)
        del second
        assert lock_elsewhere(1) == "free"  # nothing refers to that lock any more
        assert "process 0 of another run" in lock_elsewhere(0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        processes.lock_run_folder(tmp_path / "file" / "run", 0)


def test_a_coordinator_that_never_answers_is_given_up_in_time():
    process = python("-c", f"from jexplicit.runs.processes import join; join('localhost:{free_port()}', 2, 1, seconds=2)")
    message = " ".join(process.communicate(timeout=240)[1].split())
    assert process.returncode == 2
    assert "error: process 1 of 2: not all processes have joined at localhost:" in message and "within 2 s" in message
