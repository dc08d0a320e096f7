"""Memory of the host: sizes, and how many devices fit."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from jexplicit.runs.devices import check_memory, data_mesh, within_memory
from jexplicit.runs.host import host_bytes, parse_bytes

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
from jexplicit.runs.host import peak_bytes
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
from jexplicit.runs.host import peak_bytes
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
