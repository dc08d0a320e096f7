"""The benches that count in processes of their own."""

import json
import os
import re

import numpy as np
import pytest

from jexplicit.counts.dense import _blocks, _counting_step, _sum_devices, _zero_tables, count
from jexplicit.data.contexts import PAD
from jexplicit.data.shards import ShardWriter, read_shards
from jexplicit.runs.devices import data_mesh
from launch.bench import scaling, streaming
from launch.bench.counting_worker import Answer, Setting
from launch.bench.run import main
from launch.bench.scaling import Case, Scaling
from launch.bench.workers import Request, Workers, working

ROW_FIELDS = {"devices", "processes", "tokens", "tokens_per_second", "efficiency", "bytes_reduced", "seconds"}


def rows_of(out):
    return json.loads((out / "results.json").read_text())["rows"]


def test_rows_that_a_step_touches_are_those_of_a_simulation():
    rng, p = np.random.default_rng(0), 1 / np.arange(1, 501)
    drawn = [len(np.unique(rng.choice(500, 300, p=p / p.sum()))) for _ in range(200)]
    # a draw's number of distinct tokens deviates by at most sqrt(300): 200 of them by 1.2; four of these
    assert abs(float(np.mean(drawn)) - scaling.touched_rows(500, 300)) < 4 * (300 / 200) ** 0.5


def test_devices_exchange_nothing_while_they_count_and_reduce_each_table_once():
    mesh, collective = data_mesh(4), r"= (\S+?)\{.*?\} (all-\w+|reduce-scatter|collective-\w+)\("
    tables = _zero_tables(mesh, 2, 10)
    blocks, lengths = _blocks(np.zeros(42, np.uint16), 2, 10, 4)
    step = _counting_step(mesh, 2, 10).lower(tables, blocks, lengths).compile().as_text() or ""
    reduction = _sum_devices.lower(tables[0], 100).compile().as_text() or ""
    assert "scatter" in step and re.findall(collective, step) == []
    assert re.findall(collective, reduction) == [("s32[100]", "all-reduce")]


@pytest.mark.slow
def test_scaling_rows(tmp_path):
    assert main(["scaling", "--preset", "tiny", "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    rows = rows_of(tmp_path / "run")
    assert [(row["mode"], row["devices"], row["processes"]) for row in rows] == [
        (mode, n, 1) for mode in ("weak", "strong") for n in (1, 2)
    ]
    assert [row["tokens"] for row in rows] == [5_000, 10_000, 10_000, 10_000]
    for row in rows:
        n = row["devices"]
        assert row["experiment"] == "measured" and row["counts_equal"] and row["limit"] == min(n, row["cores"]) / n
        assert row["bytes_reduced"] == 2 * 4 * 2 * 100**2 * (n - 1) / n == 2 * row["bytes_reduce_scattered"]
        assert n > 1 or row["efficiency"] == row["cpu_efficiency"] == row["count_efficiency"] == 1
        assert row["training_steps"] == -(-row["tokens"] // 8192)
    for row in rows:
        assert set(row) >= ROW_FIELDS and all(row[field] >= 0 for field in ROW_FIELDS)
    report = (tmp_path / "run" / "report.md").read_text()
    assert "scaling_measured.png" in report and "## Bytes that a device sends" in report
    assert (tmp_path / "run" / "figures" / "scaling_measured.png").stat().st_size > 0


@pytest.mark.slow
def test_streaming_rows(tmp_path):
    out = tmp_path / "run"
    flags = ["--tokens", "60000", "--rounds", "1", "--checkpoint-seconds", "0.001", "--out", str(out)]
    assert main(["streaming", "--preset", "tiny", *flags]) == 0
    streamed, in_memory = rows_of(out)
    assert (streamed["method"], in_memory["method"]) == ("streamed", "in memory")
    assert streamed["memory"] == 700_000_000 and streamed["devices"] == in_memory["devices"] == 2
    assert in_memory["ratio_to_memory"] == in_memory["cpu_ratio_to_memory"] == 1 and streamed["ratio_to_memory"] > 0
    for row in (streamed, in_memory):
        assert row["tokens"] == 60_000 and row["tokens_per_second"] == pytest.approx(60_000 / row["seconds"])
        assert row["counts_equal"] and row["peak_bytes"] > 10**7
    assert "streamed" in (out / "report.md").read_text()
    assert not (out / "shards").exists()


@pytest.mark.slow
def test_workers_of_two_processes_count_what_one_call_counts(tmp_path):
    x = np.random.default_rng(0).integers(1, 30, 5001).astype(np.uint8)
    x[[0, 70, -1]] = PAD
    np.save(tmp_path / "x.npy", x)
    settings = {n: Setting(n // P, 30, 2, processes=P) for n, P in ((1, 1), (4, 2))}
    with working(settings) as workers:
        alone, together = (each.ask(Request(str(tmp_path / "x.npy"))) for each in workers.values())
    assert alone.digest == together.digest and together.devices == 4
    assert together.peak_bytes is None or together.peak_bytes > 10**7


def test_a_worker_that_ends_is_reported_with_its_last_words(tmp_path):
    workers = Workers(Setting(1, 30, 0))
    np.save(tmp_path / "x.npy", np.array([0, 5, 0], np.uint8))
    with pytest.raises(ValueError, match="ended with status 1: .*radius K = 0"):
        workers.ask(Request(str(tmp_path / "x.npy")))
    workers.close()


class Fake:
    """Stands for workers that count something else when they are more than one."""

    def __init__(self, name: str):
        self.name = name

    def ask(self, request: Request) -> Answer:
        return Answer(1.0, 1.0, 1.0, 0.0, 1, None, self.name)


def test_a_configuration_that_counts_otherwise_is_not_timed():
    workers = {(1, 1): Fake("a"), (2, 1): Fake("b")}
    with pytest.raises(ValueError, match="weak, 2 devices of 1 processes disagree with one device"):
        scaling.check_agreement(workers, [(Case("weak", 2, 1), Request("x.npy"))])  # pyright: ignore[reportArgumentType]


def test_a_stream_that_counts_otherwise_is_not_timed(tmp_path):
    workers = {streaming.STREAMED: Fake("a"), streaming.IN_MEMORY: Fake("b")}
    requests = {method: Request("x") for method in workers}
    cases = streaming.agreeing_cases(workers, requests, tmp_path / "saved")  # pyright: ignore[reportArgumentType]
    assert cases[streaming.IN_MEMORY]().digest == cases[streaming.IN_MEMORY]().digest == "b"
    with pytest.raises(ValueError, match="streamed disagrees with in memory"):
        cases[streaming.STREAMED]()


def test_one_device_is_always_measured_and_processes_share_devices_evenly():
    assert scaling.configurations(Scaling(devices=(2, 3), processes=(2,))) == [(1, 1), (2, 2)]


def test_shards_are_the_same_in_any_number_of_goes(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    streaming.write_zipf_shards(whole, 1000, 50, 0, block=300)
    x = read_shards(whole)[:]
    assert len(x) == 1001 and x[0] == x[-1] == PAD and x.max() < 50
    assert not np.any((x[1:] == PAD) & (x[:-1] == PAD)), "an empty document"

    def writer(*args, **kwargs):
        return ShardWriter(*args, **kwargs, shard_tokens=300)

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done >= 600:
            raise Killed

    monkeypatch.setattr(streaming, "ShardWriter", writer)
    with pytest.raises(Killed):
        streaming.write_zipf_shards(broken, 1000, 50, 0, kill, block=300)
    streaming.write_zipf_shards(broken, 1000, 50, 0, block=300)
    assert len(read_shards(broken).shards) > 1
    np.testing.assert_array_equal(read_shards(broken)[:], x)
    streaming.write_zipf_shards(broken, 1000, 50, 0, block=300)  # there already
    with pytest.raises(ValueError, match="another tokenizer"):
        streaming.write_zipf_shards(broken, 1000, 50, 1, block=300)
    assert count(read_shards(broken), radius=1, vocab_size=50)[0].sum() == 1000


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("scaling --rounds 0", "--rounds 0:"),
        ("scaling --radius 0", "--radius 0:"),
        ("scaling --devices 0", "--devices 0:"),
        ("scaling --processes 0", "--processes 0:"),
        ("scaling --tokens 1", "--tokens 1:"),
        ("scaling --vocab-size 1", "--vocab-size 1:"),
        ("streaming --rounds 0", "--rounds 0:"),
        ("streaming --devices 0", "--devices 0:"),
        ("streaming --memory 2", "memory '2'"),
        ("streaming --checkpoint-seconds 0", "--checkpoint-seconds 0"),
        ("streaming --tokens 1", "--tokens 1:"),
    ],
)
def test_bad_flags_name_the_value(flags, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(flags.split()) == 2
    assert named in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["scaling", "streaming"])
def test_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert {
        flag for flag in ("--out", "--tokens", "--vocab-size", "--radius", "--rounds", "--devices") if flag not in shown
    } == set()
