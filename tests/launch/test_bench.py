"""The benches: what they time is equal first, and their rows say what they should. No speed is asserted."""

import functools
import importlib.util
import math
import os
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jexplicit.counts.dense import _blocks, _sum_devices, count, counting_step, zero_table
from jexplicit.data.contexts import PAD
from jexplicit.data.corpus.shards import ShardWriter, read_shards
from jexplicit.experiments.results import read_events, read_rows
from jexplicit.experiments.rows import where
from jexplicit.runs.devices import data_mesh
from launch.bench import counting, evaluation, icl, scaling, streaming, training
from launch.bench.__main__ import main
from launch.bench.config import BenchConfig
from launch.bench.shared.harness import Comparison, bench, check_agreement, losses_differ
from launch.bench.shared.streams import first_positions, zipf_stream
from launch.bench.shared.timing import Timing, interleave_calls, one_thread, paired_ratio, time_call
from launch.bench.shared.workers import Setting, Workers

pytestmark = pytest.mark.slow

has_torch, has_kenlm = (importlib.util.find_spec(name) is not None for name in ("torch", "kenlm"))
TIMED = {"bench", "method", "rounds", "threads", "memory", "cpu_seconds", "wall_seconds", "kernel_seconds"}
FIELDS = {  # of the rows
    "counting": "vocab_size tokens pairs_per_second ratio_to_bincount ratio_to_limit peak_table_bytes stream",
    "icl": "layers dim context batch_size steps steps_per_second cpu_ms_per_step ratio_to_plain ratio_to_sampled",
    "training": "radius batch_size vocab_size steps stream positions_per_second ratio_to_torch",
    "evaluation": "radius vocab_size corpus positions distinct positions_per_second ratio_to_brute_force ratio_to_kenlm "
    "nll_per_token",
    "scaling": "mode devices processes tokens tokens_per_second seconds count_seconds reduce_seconds efficiency efficiency_low "
    "efficiency_high count_efficiency cpu_efficiency limit peak_bytes bytes_reduced bytes_reduce_scattered training_batch "
    "training_steps training_bytes_per_step training_all_reduce_bytes training_sharded_bytes training_touched_bytes "
    "training_columns_bytes experiment counts_equal",
    "streaming": "tokens vocab_size radius devices counts_equal tokens_per_second cpu_ratio_to_memory ratio_to_memory "
    "peak_bytes memory checkpoint_seconds seconds cpu_seconds count_seconds reduce_seconds",
}
FLAGS = {  # beside the tiny preset
    "icl": "--layers 2",
    "evaluation": "--train TEXT --vocab-size 64",
    "streaming": "--rounds 1 --tokens 60000 --checkpoint-seconds 0.001",
    **dict.fromkeys(("training", "scaling"), "--rounds 1"),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 700 documents of 9 subwords."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"the cat number {n % 17} sat on mat {n % 5}\n" for n in range(700)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, text):
    """The folder of one tiny run of a bench."""

    @functools.cache
    def once(name):
        out = tmp_path_factory.mktemp(name) / "run"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
            patch.setattr(evaluation, "MIXTURES", {})  # a few kinds of models: each is compiled for some seconds
            patch.setattr(evaluation, "KINDS", ("unigram", evaluation.NGRAM))
            flags = FLAGS.get(name, "").replace("TEXT", str(text))
            assert main([name, "--preset", "tiny", *flags.split(), "--out", str(out)]) == 0
        return out

    return once


@pytest.mark.parametrize("name", FIELDS)
def test_a_run_has_rows_a_report_and_a_figure(name, run):
    out, fields = run(name), set(FIELDS[name].split())
    rows, report = read_rows(out), (out / "report.md").read_text()
    drawn = re.findall(r"\]\((figures/.*?)\)", report)
    assert len(drawn) == (name != "training" or has_torch) and all((out / path).stat().st_size > 0 for path in drawn)
    assert f"# Bench: {name}" in report and all(f"| {row['method']} |" in report for row in rows)
    assert [event["method"] for event in read_events(out, "timings")] == [row["method"] for row in rows]
    for row in rows:
        assert set(row) >= (fields if "seconds" in fields else fields | TIMED), row["method"]
        for field, value in row.items():
            if field.endswith("per_second") or field in ("cpu_seconds", "wall_seconds", "seconds", "peak_bytes"):
                assert math.isfinite(value) and value > 0, (row["method"], field)
            if (low := row.get(f"{field}_low")) is not None:
                assert low <= value <= row[f"{field}_high"]


PEERS = {
    ("counting", counting.PEER): ["ratio_to_bincount"],
    ("counting", counting.LIMIT): ["ratio_to_limit"],
    ("icl", icl.PEER): ["ratio_to_plain"],
    ("evaluation", evaluation.BRUTE): ["ratio_to_brute_force"],
    ("streaming", streaming.IN_MEMORY): ["ratio_to_memory", "cpu_ratio_to_memory"],
}


@pytest.mark.parametrize(("name", "peer"), PEERS)
def test_a_peer_is_as_fast_as_itself(name, peer, run):
    found = [row[field] for row in where(read_rows(run(name)), method=peer) for field in PEERS[name, peer]]
    assert found and all(ratio == 1 for ratio in found)


def test_rows_of_each_method_and_size(run):
    names = ("counting", "training", "evaluation")
    by = {name: [(row["method"], row.get("radius")) for row in read_rows(run(name))] for name in names}
    whole = [(counting.HOST, None), ("contexts, devices", None)]
    assert by["counting"] == [*[(method, K) for K in (1, 2) for method in counting.METHODS], *whole]
    methods = [name for name in training.METHODS if has_torch or not name.startswith("torch")]
    assert by["training"] == [(name, K) for K in (1, 2) for _ in (64, 256) for name in methods]
    losses = [*[(method, 1) for method in evaluation.METHODS], (evaluation.BRUTE, 2), (evaluation.DISTINCT, 2)]
    assert by["evaluation"] == [*losses, ("unigram", 1), ("ngram", 4), *[(evaluation.KENLM, 4)] * has_kenlm]


def test_ratios_stand_where_there_is_a_peer(run):
    for row in read_rows(run("training")):
        compared = has_torch and row["method"] != training.OTHER_MODEL
        assert (row["ratio_to_torch"] is not None) == (row["ratio_to_fastest_torch"] is not None) == compared
        assert not compared or row["ratio_to_fastest_torch"] <= row["ratio_to_torch"]
    for row in read_rows(run("evaluation")):
        kinds = row["method"] not in evaluation.METHODS
        assert (row["ratio_to_brute_force"] is None) == kinds and (row["ratio_to_kenlm"] is not None) == (kinds and has_kenlm)
        assert row["positions"] == (1_000 if kinds else 5_000) and 1 < row["distinct"] < 5_000


def test_losses_are_those_of_the_models(run):
    nll = {row["method"]: row["nll_per_token"] for row in read_rows(run("evaluation"))}
    assert nll["ngram"] < nll["unigram"]
    assert nll[evaluation.BRUTE] == pytest.approx(nll[evaluation.DISTINCT], rel=1e-6)


def test_scaling_is_against_one_device_with_the_bytes_of_the_formulas(run):
    rows = read_rows(run("scaling"))
    assert [(row["mode"], row["devices"], row["processes"]) for row in rows] == [
        (mode, n, 1) for mode in ("weak", "strong") for n in (1, 2)
    ]
    assert [row["tokens"] for row in rows] == [5_000, 10_000, 10_000, 10_000]
    for row in rows:
        n = row["devices"]
        assert row["limit"] == min(n, row["cores"]) / n and row["training_steps"] == -(-row["tokens"] // 8192)
        assert row["bytes_reduced"] == 2 * 4 * 2 * 100**2 * (n - 1) / n == 2 * row["bytes_reduce_scattered"]
        assert row["training_all_reduce_bytes"] == row["training_steps"] * row["bytes_reduced"]
        # tokens of a byte are gathered, two float32 a position summed
        assert row["training_columns_bytes"] == (16 + 1) * row["tokens"] * (n - 1) / n
        assert n > 1 or row["efficiency"] == row["cpu_efficiency"] == row["count_efficiency"] == 1
    assert scaling.configurations(scaling.Scaling(devices=(2, 3), processes=(2,))) == [(1, 1), (2, 2)]


def test_streaming_counts_within_its_memory_and_leaves_nothing(run):
    streamed, in_memory = read_rows(run("streaming"))
    assert streamed["memory"] == 700_000_000 and in_memory["memory"] is None
    assert streamed["devices"] == in_memory["devices"] == 2
    assert not (run("streaming") / "shards").exists()


def test_a_bench_resumes_and_the_next_free_folder_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("stream.npy", zipf_stream(np.random.default_rng(1), 3000, 50))
    flags = ["counting", "--stream", "stream.npy", "--tokens", "1000", "--vocab-size", "50", "--radius", "3", "--rounds", "1"]
    assert main(flags) == main(flags) == 0
    first, second = (read_rows(tmp_path / "runs" / out) for out in ("bench-counting", "bench-counting-2"))
    assert {row["tokens"] for row in first + second} == {1000}
    assert main(["counting", "--out", "runs/bench-counting", "--resume"]) == 0
    assert read_rows(tmp_path / "runs" / "bench-counting") == first


def test_ratio_is_the_median_of_the_rounds_own_ratios():
    # rounds: 2/1 = 2, 30/60 = 0.5, 4/1 = 4; the ratio of the medians would be 4/1 = 4
    assert paired_ratio([2.0, 30.0, 4.0], [1.0, 60.0, 1.0]) == (2.0, 1.25, 3.0)  # and the quartiles


def test_a_round_calls_every_method_in_an_order_of_its_own():
    calls = []
    methods = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = interleave_calls(methods, rounds=6, seed=0)
    order = [name for n, name in enumerate(calls) if n == 0 or name != calls[n - 1]]  # a fast call is repeated in its turn
    assert {name: len(times) for name, times in timings.items()} == {"a": 6, "b": 6, "c": 6}
    assert set(order[:3]) == {"a", "b", "c"} and order != list("abc") * 6


def test_a_call_is_repeated_until_the_clocks_have_moved():
    calls = []
    timing = time_call(lambda: calls.append(0), at_least=0.02)
    assert len(calls) > 10 and 0 < timing.wall_seconds < 0.02


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_one_thread_pins_and_releases(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)  # launchers of other tests set it
    before = os.sched_getaffinity(0)
    with one_thread() as statement:
        assert len(os.sched_getaffinity(0)) == 1 and "pinned" in statement
    assert os.sched_getaffinity(0) == before and "NPROC" not in os.environ


def test_the_harness_compares_with_the_fastest_peer_and_leaves_out_cases_without_one(tmp_path):
    scripted = {"ours": [1.0, 2.0, 4.0], "slow": [4.0] * 3, "fast": [2.0] * 3, "alone": [1.0] * 3}

    def comparisons(config, folder):
        rounds = {name: iter([Timing(seconds, seconds, 0.0) for seconds in own]) for name, own in scripted.items()}
        yield Comparison({name: functools.partial(next, own) for name, own in rounds.items()}, {"number": 1})

    peers = {"ratio_to_slow": ("vs. slow", ["slow"]), "ratio_to_fastest": ("vs. fastest", ["slow", "fast", "absent"])}
    fake: Any = bench("fake", comparisons, [], sizes=(), peers=peers, without_peer=["alone"], jobs=True)
    fake(BenchConfig(out=str(tmp_path / "run"), rounds=3))
    rows = {row["method"]: row for row in read_rows(tmp_path / "run")}
    # rounds: 4/1, 4/2, 4/4 and 2/1, 2/2, 2/4
    assert [rows["ours"][f"ratio_to_slow{end}"] for end in ("_low", "", "_high")] == [1.5, 2, 3]
    assert rows["ours"]["ratio_to_fastest"] == 1 and rows["fast"]["ratio_to_fastest"] == 1
    assert rows["alone"]["ratio_to_slow"] is rows["alone"]["ratio_to_fastest"] is None and rows["ours"]["cpu_seconds"] == 2
    assert "| ours | 2.00 | 1.50-3.00 |" in (tmp_path / "run" / "report.md").read_text()


def test_a_case_that_disagrees_with_the_reference_is_named():
    cases = {"right": lambda: 1.0, "wrong": lambda: 2.0}
    comparison = Comparison(cases, {}, reference="right", difference=losses_differ(1e-6))
    with pytest.raises(ValueError, match="wrong disagrees with right at K = 3: losses 2.0 instead of 1.0"):
        check_agreement(comparison, "K = 3")
    inspected = check_agreement(comparison._replace(unchecked=("wrong",), inspect=lambda case, result: {"loss": result}))
    assert inspected == {"right": {"loss": 1.0}, "wrong": {"loss": 2.0}}


def counts_one_more(x, K, N):
    return lambda: tuple(C + (np.arange(N * N).reshape(N, N) == 7) for C in counting._bincount(x, K, N)())


def has_another_loss(model, x):
    return lambda: evaluation._distinct(model, x)() * (1 + 1e-5)


def trains_at(rate, batch, task):
    usual, training._rate = training._rate, rate
    try:
        return training.METHODS[training.ROWS](task._replace(batches=[(X[batch], Y[batch]) for X, Y in task.batches]))
    finally:
        training._rate = usual


_trained = "--vocab-size 30 --batch-size 32 --radius 2"
WRONG = [  # module, method, flags, message
    (counting, counts_one_more, "--tokens 1000 --vocab-size 50 --radius 1", "numpy.bincount at K = 1: the counts differ"),
    (evaluation, has_another_loss, "--corpus zipf --positions 500 --vocab-size 64 --radius 2", "brute force at K = 2: loss"),
    (training, functools.partial(trains_at, 0.0101, slice(None)), _trained, "dense at K = 2, batch"),
    (training, functools.partial(trains_at, 0.01, slice(1, None)), _trained, "dense at K = 2, batch"),
]


@pytest.mark.parametrize(("module", "wrong", "flags", "said"), WRONG)
def test_a_method_that_computes_something_else_is_not_timed(module, wrong, flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(module.METHODS, "slightly off", wrong)
    name = module.__name__.rpartition(".")[2]
    assert main([name, *flags.split(), "--out", str(tmp_path / "run")]) == 2
    assert re.search(f"slightly off disagrees with .*{said}", capsys.readouterr().err)
    assert not (tmp_path / "run" / "results.json").exists()


def test_training_batches_are_positions_of_the_stream_each_at_most_once():
    task = training._task(training.Training(vocab_size=50), 2, 40)
    assert [(X.shape, Y.shape) for X, Y in task.batches] == [((40, 2), (40,))] * 3
    X, Y = (np.concatenate(part) for part in zip(*task.batches, strict=True))
    stream = zipf_stream(np.random.default_rng(0), 2 * 3 * 8192, 50)
    triples = np.lib.stride_tricks.sliding_window_view(stream, 3)[:, ::-1]
    assert Y.all() and {*map(tuple, np.column_stack([Y, X])[X.all(axis=1)].tolist())} <= {*map(tuple, triples.tolist())}


@pytest.mark.parametrize(("tokens", "vocab_size"), [(2, 2), (3, 5), (5000, 300)])
def test_zipf_stream_is_documents_between_pads(tokens, vocab_size):
    x = zipf_stream(np.random.default_rng(0), tokens, vocab_size)
    assert len(x) == tokens + 1 and x[0] == x[-1] == 0 and x.max() < vocab_size
    assert not np.any((x[1:] == 0) & (x[:-1] == 0)), "an empty document"


def test_zipf_stream_follows_the_law():
    f = np.bincount(zipf_stream(np.random.default_rng(0), 400_000, 1000), minlength=1000)
    # document ends: 1 of 41 positions; 390,000 draws: each of these counts has a relative deviation below 2 %
    np.testing.assert_allclose(f[0] / 400_000, 1 / 41, rtol=0.05)
    np.testing.assert_allclose(f[1] / f[[2, 4, 10]], [2, 4, 10], rtol=0.06)


def test_first_positions_end_the_document_they_cut():
    stream = np.array([0, 5, 6, 0, 7, 8, 0], np.uint8)
    cut = [first_positions(stream, n) for n in (2, 3, 99)]
    assert [part.tolist() for part in cut] == [[0, 5, 6, 0], [0, 5, 6, 0, 7, 0], stream.tolist()] and cut[1].dtype == np.uint8


def test_rows_that_a_step_touches_are_those_of_a_simulation():
    rng, p = np.random.default_rng(0), 1 / np.arange(1, 501)
    drawn = [len(np.unique(rng.choice(500, 300, p=p / p.sum()))) for _ in range(200)]
    # a draw's number of distinct tokens deviates by at most sqrt(300): 200 of them by 1.2; four of these
    assert abs(float(np.mean(drawn)) - scaling.touched_rows(500, 300)) < 4 * (300 / 200) ** 0.5


def test_devices_exchange_nothing_while_they_count_and_reduce_each_table_once():
    mesh, collective = data_mesh(4), r"= (\S+?)\{.*?\} (all-\w+|reduce-scatter|collective-\w+)\("
    tables = tuple(zero_table(mesh, 100)() for _ in range(2))
    blocks, lengths = _blocks(np.zeros(42, np.uint16), 2, 10, 4)
    step = counting_step(mesh, 2, 10).lower(tables, blocks, lengths).compile().as_text() or ""
    reduction = _sum_devices.lower(tables[0], 100).compile().as_text() or ""
    assert "scatter" in step and re.findall(collective, step) == []
    assert re.findall(collective, reduction) == [("s32[100]", "all-reduce")]


def test_workers_of_two_processes_count_what_one_call_counts(tmp_path):
    x = np.random.default_rng(0).integers(1, 30, 5001).astype(np.uint8)
    x[[0, 70, -1]] = PAD
    np.save(tmp_path / "x.npy", x)
    alone, together = (Workers(Setting(n // P, 30, 2, processes=P)) for n, P in ((1, 1), (4, 2)))
    with alone.pool, together.pool:
        one, two = (workers.ask(str(tmp_path / "x.npy")) for workers in (alone, together))
    assert one.digest == two.digest and two.devices == 4 and two.peak_bytes > 10**7


def test_the_error_of_a_worker_is_that_of_the_count(tmp_path):
    np.save(tmp_path / "x.npy", np.array([0, 5, 0], np.uint8))
    workers = Workers(Setting(1, 30, 0))
    with workers.pool, pytest.raises(ValueError, match="radius K = 0"):
        workers.ask(str(tmp_path / "x.npy"))


def test_a_configuration_that_counts_otherwise_is_not_timed():
    ours, alone = ({"weak, 2 devices": lambda digest=digest: SimpleNamespace(digest=digest)} for digest in "ab")
    with pytest.raises(ValueError, match="weak, 2 devices disagree with one device"):
        scaling.check_counts(ours, alone)  # pyright: ignore[reportArgumentType]


def test_shards_are_the_same_in_any_number_of_goes(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    streaming.write_zipf_shards(whole, 1000, 50, 0, block=300)
    x = read_shards(whole)[:]
    assert len(x) == 1001 and x[0] == x[-1] == PAD and x.max() < 50
    assert not np.any((x[1:] == PAD) & (x[:-1] == PAD)), "an empty document"

    def kill(done: int, total: int) -> None:
        if done >= 600:
            raise InterruptedError

    monkeypatch.setattr(streaming, "ShardWriter", functools.partial(ShardWriter, shard_tokens=300))
    with pytest.raises(InterruptedError):
        streaming.write_zipf_shards(broken, 1000, 50, 0, kill, block=300)
    for _ in range(2):  # the second time they are there already
        streaming.write_zipf_shards(broken, 1000, 50, 0, block=300)
    assert len(read_shards(broken).shards) > 1
    np.testing.assert_array_equal(read_shards(broken)[:], x)
    with pytest.raises(ValueError, match="another tokenizer"):
        streaming.write_zipf_shards(broken, 1000, 50, 1, block=300)
    assert count(read_shards(broken), radius=1, vocab_size=50)[0].sum() == 1000


def test_every_kind_of_model_is_scored_beside_kenlm(tmp_path, monkeypatch):
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "cache"))
    flags = ["--preset", "tiny", "--radius", "2", "--scored", "300", "--rounds", "1"]
    assert main(["evaluation", *flags, "--out", str(tmp_path / "run")]) == 0
    rows = {row["method"]: row for row in read_rows(tmp_path / "run") if row["method"] not in evaluation.METHODS}
    assert set(rows) == {*evaluation.KINDS, *evaluation.MIXTURES, *[evaluation.KENLM] * has_kenlm}
    assert rows["explicit, dense"]["nll_per_token"] == pytest.approx(rows["explicit, sparse"]["nll_per_token"], rel=1e-4)


REFUSED = {
    "counting --tokens 100 --radius": "--radius: give at least one value",
    "counting --tokens 100 --vocab-size 46341": "--vocab-size 46341",
    "counting --tokens 1": "--tokens 1",
    "counting --tokens 100 --stream missing.npy --out run": "--stream missing.npy",
    "counting --tokens 100 --stream large.npy --vocab-size 8 --out run": "ids 0 to 8",
    "training --stream short.npy --vocab-size 9 --batch-size 4 --out run": "fewer than 3 batches of 4",
    "streaming --memory 2": "memory '2'",
    "lm --dev text": "--dev without --train",
    "countin": "countin: choose one of counting, evaluation, training",
    "compile --functions sorting": "sorting: choose from counting",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_bad_flags_name_the_value(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("large.npy", np.array([0, 8, 0]))
    np.save("short.npy", np.array([0, 8, 8, 0]))
    assert main(flags.split()) == 2
    assert REFUSED[flags] in " ".join(capsys.readouterr().err.split())
