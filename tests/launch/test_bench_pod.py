"""The cost of a pod run on paper: by hand, in special cases, and as the page shows it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from launch.bench import hot_functions as hot
from launch.bench import pod
from launch.bench.hlo import Work
from launch.bench.pod import CHIPS, STAGES, TOTAL, TRAINING, Chip, Pod, compiled_work, forecast
from launch.bench.run import main

DOCS = Path(__file__).parents[2] / "docs"
H100, WORKS = CHIPS["h100"], compiled_work("h100")
SIMPLE = Chip(memory=1e12, bandwidth=1000.0, per_host=2, fabric=10.0, link=5.0, price=3600.0)  # a dollar a second
UNIT = {name: Work(7, size) for name, size in pod._sizes.items()}  # a byte for a pair, a cell or an entry
JOB = Pod(tokens=10**12, vocab_size=1024, radius=2, chips=8, evaluated=1 << 20, kernel_start=0.5, sector=4)


def stages(*args):
    return {row["stage"]: row for row in forecast(*args)}


def test_a_run_by_hand():
    found, T, V, K = stages(JOB, SIMPLE, UNIT), 10**12, 1024, 2
    pairs = K * T // 8
    calls = math.ceil(T / 8 / hot.CHUNK)
    assert found["count"]["memory_bytes"] == pairs
    assert found["count"]["kernels"] == math.ceil(7 * calls * K / hot.K)  # half as many tables as were compiled
    assert found["count"]["seconds"] == pytest.approx(pairs / 1000 + 0.5 * found["count"]["kernels"])
    assert found["tokenise"]["seconds"] == pytest.approx(T / 4 / 100e6)  # four hosts
    assert found["read"]["seconds"] == pytest.approx(2 * T / (4 * 2e9)) and found["read"]["host_bytes"] == 2 * T / 4
    # 2.5e11 positions of a host: 117 times before 2^31 more; then cells of 8 bytes, of which a chip sends its half
    size, merges = 4 * K * V**2, math.ceil(T / 4 / 2**31)
    assert merges == 117 and found["reduce"]["host_bytes"] == merges * size
    inside, across = merges * 2 * size / 2, 2 * (2 * size / 2) * 3 / 4
    assert found["reduce"]["link_bytes"] == inside + across
    assert found["reduce"]["seconds"] == pytest.approx(merges * size / 25e9 + inside / 10 + across / 5)
    assert found["smooth"]["memory_bytes"] == 3 * K * V**2 and found["smooth"]["kernels"] == 3 * 7 * K
    assert found["evaluate"]["memory_bytes"] == (1 << 17) * K * V and found["evaluate"]["kernels"] == 7 * 4
    assert found["fit"]["memory_bytes"] == 4 * 15_000 * 11 * V and found["fit"]["kernels"] == 7 * math.ceil(60_000 / 64)
    assert sum(found[name]["seconds"] for name in STAGES) - found[TOTAL]["seconds"] == pytest.approx(found["read"]["seconds"])
    assert all(row["dollars"] == pytest.approx(8 * row["seconds"]) for row in found.values())


def test_training_by_hand():
    # a step of 8 replicas takes 8 * 1024 positions; of columns split over 8 chips, 1024 of them, and an eighth of the bytes
    found, T, cells = stages(JOB, SIMPLE, UNIT), 10**12, 2 * 1024**2
    replicas, columns = (found[name] for name in TRAINING)
    steps = math.ceil(T / 8192)
    assert (replicas["memory_bytes"], replicas["kernels"]) == (steps * cells, 7 * steps)
    assert replicas["link_bytes"] == steps * 2 * 4 * cells * 7 / 8
    assert (columns["memory_bytes"], columns["kernels"]) == (T // 1024 * cells // 8, 7 * T // 1024)
    assert columns["link_bytes"] == 2 * 8 * T * 7 / 8 + 2 * T * 7 / 8  # two float32 of a position, and two bytes of a token


def test_tables_that_no_chip_holds_are_split_by_columns():
    # 8 MB of counts: half of them fit, so pairs of chips see the same positions and hold half of the cells each
    chip = SIMPLE._replace(memory=6e6)
    whole, split = stages(JOB, SIMPLE, UNIT), stages(JOB, chip, UNIT)
    assert {row["split"] for row in split.values()} == {2}
    assert split["count"]["memory_bytes"] == 2 * whole["count"]["memory_bytes"]  # every pair is tested by both
    assert split["count"]["link_bytes"] == 2 * 10**12 / 8 and whole["count"]["link_bytes"] == 0
    assert split["smooth"]["memory_bytes"] == whole["smooth"]["memory_bytes"] / 2
    assert split["evaluate"]["memory_bytes"] == whole["evaluate"]["memory_bytes"]
    assert split["reduce"]["host_bytes"] == whole["reduce"]["host_bytes"]  # a whole set of tables on every host
    beside = split[TRAINING[0]]  # three times the memory: 25 MB over 8 chips, one group, nothing to reduce
    assert beside["link_bytes"] == 0 and beside["memory_bytes"] == split[TRAINING[1]]["memory_bytes"]


def test_one_chip_sends_nothing():
    found = stages(replace(JOB, chips=1), SIMPLE, UNIT)
    assert all(row["link_bytes"] == 0 for row in found.values())


def test_a_chip_without_limits_waits_for_its_host():
    endless = Chip(math.inf, math.inf, 8, math.inf, math.inf, price=1.0)
    found = stages(replace(JOB, kernel_start=0.0), endless, UNIT)
    assert [name for name in (*STAGES, *TRAINING) if found[name]["seconds"]] == ["tokenise", "read", "reduce"]
    assert {row["limit"] for name, row in found.items() if name != TOTAL} == {"host", ""}


def test_twice_the_text_takes_twice_as_long_but_for_what_is_done_once():
    text = 10**12
    one, two = (stages(Pod(tokens=n), H100, WORKS) for n in (text, 2 * text))
    for name in ("tokenise", "read", "count", *TRAINING):
        assert two[name]["seconds"] == pytest.approx(2 * one[name]["seconds"], rel=1e-3), name  # the last call is not full
    for name in ("smooth", "evaluate", "fit"):
        assert two[name] == {**one[name], "tokens": 2 * text}


def test_twice_the_chips_count_twice_as_fast_and_solve_no_faster():
    one, two = (stages(Pod(chips=n), H100, WORKS) for n in (64, 128))
    assert one["count"]["seconds"] == pytest.approx(2 * two["count"]["seconds"], rel=1e-3)
    assert two["smooth"]["seconds"] == one["smooth"]["seconds"] and two["fit"]["seconds"] == one["fit"]["seconds"]


@pytest.mark.parametrize("platform", CHIPS)
def test_a_call_of_a_compiled_function_takes_what_was_compiled(platform):
    works = compiled_work(platform)
    job = Pod(tokens=hot.CHUNK, vocab_size=hot.N, chips=1, evaluated=hot.CONTEXTS, fitted=hot.BLOCK, passes=1, sector=4)
    found = stages(job, CHIPS[platform], works)
    for name, function in (("count", "counting"), ("evaluate", "log partition functions"), ("fit", "moments of a mixture")):
        assert (found[name]["kernels"], found[name]["memory_bytes"]) == works[function], name
    step = found[TRAINING[0]]  # 512 steps of 8192 positions
    assert (step["kernels"], step["memory_bytes"]) == works["Adagrad step"].times(hot.CHUNK // hot.N)


def test_a_cell_that_no_cache_holds_moves_a_sector_in_each_direction():
    near, far = (stages(Pod(tokens=10**9, chips=1, sector=sector), H100, WORKS)["count"] for sector in (4, 32))
    assert far["memory_bytes"] - near["memory_bytes"] == 4 * 10**9 * 2 * 28


def test_rows_of_a_run_of_compile_stand_in_for_those_kept(tmp_path):
    rows = [{"function": name, "platform": "h100", **work._asdict()} for name, work in WORKS.items()]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"rows": [*rows, {"function": "counting", "platform": "v5e", "kernels": 1, "bytes": 1}]}))
    assert compiled_work("h100", str(file)) == WORKS
    with pytest.raises(ValueError, match="no counting by columns, noisy .* for v5e; give a run that compiled all functions"):
        compiled_work("v5e", str(file))
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"results.json: TypeError.*give results.json of a run of launch.bench compile"):
        compiled_work("h100", str(file))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--chips 0", "--chips 0:"),
        ("--chips 12", "--chips 12: a host has 8 chips; use a multiple of that"),
        ("--chips 8 --vocab-size 300000", "tables of 1,440 GB do not fit into 8 x 80 GB"),
        ("--tokens 0", "--tokens 0:"),
        ("--read 0", "--read 0"),
        ("--link 0", "--link 0"),
        ("--sector 3", "--sector 3:"),
        ("--price -1", "--price -1"),
        ("--compiled nothing.json", "--compiled nothing.json: FileNotFoundError"),
    ],
)
def test_bad_flags_name_the_value_and_write_nothing(flags, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["pod", *flags.split()]) == 2
    assert named in " ".join(capsys.readouterr().err.split()) and not list(tmp_path.iterdir())


def test_the_page_shows_what_the_command_prints(tmp_path, capsys):
    page = (DOCS / "trillion_tokens.md").read_text()
    for platform in CHIPS:
        out = tmp_path / platform
        assert main(["pod", "--platform", platform, "--out", str(out), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["rows"]) == len(STAGES) + 1 + len(TRAINING)
        table = [line for line in (out / "report.md").read_text().splitlines() if line.startswith("|")]
        assert "\n".join(table) in page
        assert (out / "figures" / "pod.png").stat().st_size > 0
    assert "](trillion_tokens.png)" in page
