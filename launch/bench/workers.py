"""Processes of the benches: what they inherit, and the handle on those of `launch.bench.counting_worker`."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from launch.bench.counting_worker import Answer, Request, Setting

_root = Path(__file__).parents[2]
_module = "launch.bench.counting_worker"


def worker_environment(*without: str) -> dict[str, str]:
    """This process's environment for a worker, which finds this clone; variables whose names end in `without` are left out."""
    ours = {name: value for name, value in os.environ.items() if not name.endswith(without)}
    return {**ours, "PYTHONPATH": os.pathsep.join(filter(None, (str(_root), ours.get("PYTHONPATH"))))}


class Workers:
    """The processes of one configuration. They are idle between requests.

    Args:
        setting: of process 0; the others differ in their id.

    Raises:
        ValueError: in `ask`, if a process has ended, with the last line of its standard error.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        if setting.processes > 1:
            setting = setting._replace(coordinator=f"localhost:{_free_port()}")
        self._errors: list[BinaryIO] = []
        self._processes = [self._start(setting._replace(process_id=p)) for p in range(setting.processes)]

    def _start(self, setting: Setting) -> subprocess.Popen:
        errors = tempfile.TemporaryFile()
        self._errors.append(errors)
        return subprocess.Popen(
            [sys.executable, "-m", _module, json.dumps(setting._asdict())],
            env={**worker_environment("NPROC", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS"), "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def ask(self, request: Request) -> Answer:
        """One count by all processes together: seconds of the slowest, CPU seconds and memory of all."""
        line = json.dumps(request._asdict()) + "\n"
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # it has ended: reading its answer reports that
                _of(process.stdin).write(line)
                _of(process.stdin).flush()
        answers = [self._answer(process, errors) for process, errors in zip(self._processes, self._errors, strict=True)]
        if len({answer.digest for answer in answers}) > 1:
            raise ValueError(f"the processes of {self.setting} counted different tables: fix it before timing it")
        peaks = [answer.peak_bytes for answer in answers if answer.peak_bytes is not None]
        seconds = max(answer.seconds for answer in answers)
        reduce_seconds = min(answer.reduce_seconds for answer in answers)  # of the last to count: the others wait for it
        return Answer(
            seconds=seconds,
            cpu_seconds=sum(answer.cpu_seconds for answer in answers),
            count_seconds=seconds - reduce_seconds,
            reduce_seconds=reduce_seconds,
            devices=sum(answer.devices for answer in answers),
            peak_bytes=sum(peaks) if len(peaks) == len(answers) else None,
            digest=answers[0].digest,
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                _of(process.stdin).close()
        for process, errors in zip(self._processes, self._errors, strict=True):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _of(process.stdout).close()
            errors.close()

    def _answer(self, process: subprocess.Popen, errors: BinaryIO) -> Answer:
        if line := _of(process.stdout).readline():
            return Answer(**json.loads(line))
        process.wait()
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise ValueError(f"a worker of {self.setting} ended with status {process.returncode}: {last[0]}")


@contextlib.contextmanager
def working(settings: Mapping[Any, Setting]) -> Iterator[dict[Any, Workers]]:
    """Workers of several settings; they end when the block is left, by an exception too."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name, setting in settings.items():
            started[name] = Workers(setting)
            stack.callback(started[name].close)
        yield started


def peak_of(answers: Sequence[Answer]) -> int | None:
    """The largest peak memory of several answers; None if the system does not report it."""
    return max((answer.peak_bytes or 0 for answer in answers), default=0) or None


def _of(pipe: Any) -> Any:
    assert pipe is not None  # every pipe was asked for
    return pipe


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
