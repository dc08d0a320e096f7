"""The benches: what they time is equal first, and their rows say what they should. No speed is asserted."""

import importlib.util
import json
import math
import os

import numpy as np
import pytest

from jexplicit.runs.timing import Timing, interleave_calls, one_thread, paired_ratio, time_call
from launch.bench import counting, evaluation, icl, model_kinds, streams, training
from launch.bench.harness import (
    METHOD,
    Bench,
    BenchConfig,
    Comparison,
    check_agreement,
    losses_differ,
    ratio_columns,
    run_bench,
)
from launch.bench.run import main

COUNTING_FIELDS = {
    *("bench", "method", "radius", "vocab_size", "tokens", "pairs_per_second", "cpu_seconds", "wall_seconds"),
    *("kernel_seconds", "ratio_to_bincount", "ratio_to_limit", "peak_table_bytes", "rounds", "threads", "memory"),
}
EVALUATION_FIELDS = {
    *("bench", "method", "radius", "positions", "distinct", "positions_per_second", "cpu_seconds", "wall_seconds"),
    *("kernel_seconds", "ratio_to_brute_force", "ratio_to_kenlm", "nll_per_token", "corpus", "rounds", "threads", "memory"),
}
TRAINING_FIELDS = {
    *("bench", "method", "radius", "batch_size", "vocab_size", "steps", "positions_per_second", "cpu_seconds", "wall_seconds"),
    *("kernel_seconds", "ratio_to_torch", "ratio_to_fastest_torch", "stream", "rounds", "threads", "memory"),
}
has_torch, has_kenlm = (importlib.util.find_spec(name) is not None for name in ("torch", "kenlm"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def rows_of(out, without_peer=(training.OTHER_MODEL,)):
    rows = json.loads((out / "results.json").read_text())["rows"]
    figure = f"figures/bench_{rows[0]['bench']}.png"
    has_peer = any(value for row in rows for field, value in row.items() if field.startswith("ratio"))
    assert (figure in (out / "report.md").read_text()) == has_peer
    for name in ("config.json", "environment.json", "metrics.jsonl", "report.md", *[figure] * has_peer):
        assert (out / name).stat().st_size > 0
    for row in rows:
        for field, value in row.items():
            if value is None:
                no_peer = not has_torch or row["method"] in without_peer or row["bench"] == "evaluation"
                assert field.startswith("ratio") and no_peer, (row["method"], field)
            elif field.startswith("ratio") or field.endswith("per_second") or field in ("cpu_seconds", "wall_seconds"):
                assert math.isfinite(value) and value > 0, (row["method"], field, value)
        for field in (field for field in row if field.startswith("ratio") and f"{field}_low" in row):
            assert row[field] is None or row[f"{field}_low"] <= row[field] <= row[f"{field}_high"]
    return rows


def test_ratio_is_the_median_of_the_rounds_own_ratios():
    # rounds: 2/1 = 2, 30/60 = 0.5, 4/1 = 4; the ratio of the medians would be 4/1 = 4
    assert paired_ratio([2.0, 30.0, 4.0], [1.0, 60.0, 1.0]) == (2.0, 1.25, 3.0)  # and the quartiles


def test_a_round_calls_every_method_in_an_order_of_its_own():
    calls = []
    methods = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = interleave_calls(methods, rounds=6, seed=0)
    order = [name for n, name in enumerate(calls) if n == 0 or name != calls[n - 1]]  # a fast call is repeated in its turn
    assert {name: len(times) for name, times in timings.items()} == {"a": 6, "b": 6, "c": 6}
    assert set(order[:3]) == {"a", "b", "c"}
    assert order != list("abc") * 6


def test_a_call_is_repeated_until_the_clocks_have_moved():
    calls = []
    timing = time_call(lambda: calls.append(0), at_least=0.02)
    assert len(calls) > 10
    assert 0 < timing.wall_seconds < 0.02


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_one_thread_pins_and_releases(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)  # launchers of other tests set it
    before = os.sched_getaffinity(0)
    with one_thread() as statement:
        assert len(os.sched_getaffinity(0)) == 1
        assert "pinned" in statement
    assert os.sched_getaffinity(0) == before
    assert "NPROC" not in os.environ


@pytest.mark.parametrize(("tokens", "vocab_size"), [(2, 2), (3, 5), (5000, 300)])
def test_zipf_stream_is_documents_between_pads(tokens, vocab_size):
    x = streams.zipf_stream(np.random.default_rng(0), tokens, vocab_size)
    assert len(x) == tokens + 1 and x[0] == x[-1] == 0 and x.max() < vocab_size
    assert not np.any((x[1:] == 0) & (x[:-1] == 0)), "an empty document"


def test_zipf_stream_follows_the_law():
    x = streams.zipf_stream(np.random.default_rng(0), 400_000, 1000)
    f = np.bincount(x, minlength=1000)
    # document ends: 1 of 41 positions; 390,000 draws: each of these counts has a relative deviation below 2 %
    np.testing.assert_allclose(f[0] / 400_000, 1 / 41, rtol=0.05)
    np.testing.assert_allclose(f[1] / f[[2, 4, 10]], [2, 4, 10], rtol=0.06)


def test_first_positions_end_the_document_they_cut():
    stream = np.array([0, 5, 6, 0, 7, 8, 0], np.uint8)
    cut = streams.first_positions(stream, 3)
    assert cut.tolist() == [0, 5, 6, 0, 7, 0] and cut.dtype == np.uint8
    assert streams.first_positions(stream, 2).tolist() == [0, 5, 6, 0]
    assert streams.first_positions(stream, 99).tolist() == stream.tolist()


def test_counting_rows(tmp_path):
    assert main(["counting", "--preset", "tiny", "--out", str(tmp_path / "run")]) == 0
    rows = rows_of(tmp_path / "run")
    assert {(row["method"], row["radius"]) for row in rows} >= {
        (method, K) for method in ("jexplicit", "numpy.bincount", "numpy.bincount, ids given") for K in (1, 2)
    }
    for row in rows:
        assert set(row) >= COUNTING_FIELDS
        assert row["bench"] == "counting" and row["tokens"] == 20_000
        assert row["peak_table_bytes"] > 0
        if row["method"] == counting.PEER:
            assert row["ratio_to_bincount"] == 1
        if row["method"] == counting.LIMIT:
            assert row["ratio_to_limit"] == 1


def test_icl_rows(tmp_path):
    assert main(["icl", "--preset", "tiny", "--layers", "2", "--out", str(tmp_path / "run")]) == 0
    rows = rows_of(tmp_path / "run")
    assert {(row["method"], row["layers"]) for row in rows} == {(method, 2) for method in icl.METHODS}
    for row in rows:
        assert row["bench"] == "icl" and row["steps"] == 3 and row["batch_size"] == 64
        assert row["cpu_ms_per_step"] * row["steps_per_second"] == pytest.approx(1000)
        if row["method"] == icl.PEER:
            assert row["ratio_to_plain"] == 1


def cat_text(folder):
    """A file of 700 documents of 9 subwords."""
    text = folder / "text.txt"
    text.write_text("".join(f"the cat number {n % 17} sat on mat {n % 5}\n" for n in range(700)))
    return text


def test_evaluation_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(model_kinds, "MIXTURES", {})  # a few kinds of models: each is compiled for some seconds
    monkeypatch.setattr(model_kinds, "KINDS", {name: model_kinds.KINDS[name] for name in ("unigram", model_kinds.NGRAM)})
    flags = ["--preset", "tiny", "--train", str(cat_text(tmp_path)), "--vocab-size", "64"]
    assert main(["evaluation", *flags, "--out", str(tmp_path / "run")]) == 0
    rows = rows_of(tmp_path / "run")
    assert {(row["method"], row["radius"]) for row in rows} == {
        *(("brute force", 1), ("distinct contexts", 1), ("counts", 1), ("counting + counts", 1)),
        *(("brute force", 2), ("distinct contexts", 2), ("unigram", 1), ("ngram", 4)),
        *([(model_kinds.KENLM, 4)] if has_kenlm else []),
    }
    for row in rows:
        assert set(row) >= EVALUATION_FIELDS
        kinds = "ratio_to_brute_force" in row and row["ratio_to_brute_force"] is None
        assert kinds == (row["method"] not in evaluation.METHODS)
        assert row["positions"] == (1_000 if kinds else 5_000) and 1 < row["distinct"] < 5_000
        assert (row["ratio_to_kenlm"] is not None) == (kinds and has_kenlm)
        if row["method"] == evaluation.BRUTE:
            assert row["ratio_to_brute_force"] == 1
    nll = {row["method"]: row["nll_per_token"] for row in rows}
    assert nll["ngram"] < nll["unigram"]
    assert not (tmp_path / "run" / "ngram.arpa").exists()


@pytest.mark.slow
def test_every_kind_of_model_is_scored_beside_kenlm(tmp_path):
    flags = ["--preset", "tiny", "--radius", "2", "--scored", "300", "--rounds", "1"]
    assert main(["evaluation", *flags, "--out", str(tmp_path / "run")]) == 0
    rows = {row["method"]: row for row in rows_of(tmp_path / "run") if row["method"] not in evaluation.METHODS}
    assert set(rows) == {*model_kinds.KINDS, *model_kinds.MIXTURES} | ({model_kinds.KENLM} if has_kenlm else set())
    assert rows["explicit, dense"]["nll_per_token"] == pytest.approx(rows["explicit, sparse"]["nll_per_token"], rel=1e-4)


def test_evaluation_of_own_text_and_of_zipf(tmp_path):
    text = cat_text(tmp_path)
    small = ["--positions", "500", "--vocab-size", "64", "--radius", "2", "--rounds", "1", "--scored", "0"]
    assert main(["evaluation", "--train", str(text), *small, "--out", str(tmp_path / "text")]) == 0
    assert main(["evaluation", "--corpus", "zipf", *small, "--out", str(tmp_path / "zipf")]) == 0
    assert [rows_of(tmp_path / run)[0]["corpus"] for run in ("text", "zipf")] == [str(text), "zipf"]


def test_counting_a_stream_from_a_file_into_the_next_free_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("stream.npy", streams.zipf_stream(np.random.default_rng(1), 3000, 50))
    flags = ["counting", "--stream", "stream.npy", "--tokens", "1000", "--vocab-size", "50", "--radius", "3", "--rounds", "1"]
    assert main(flags) == main(flags) == 0
    for out in ("bench-counting", "bench-counting-2"):
        assert {row["tokens"] for row in rows_of(tmp_path / "runs" / out)} == {1000}


def test_a_method_that_counts_wrongly_is_not_timed(tmp_path, monkeypatch, capsys):
    def off_by_one(x, K, N):
        return lambda: tuple(C + (np.arange(N * N).reshape(N, N) == 7) for C in counting._bincount(x, K, N)())

    monkeypatch.setitem(counting.METHODS, "off by one", off_by_one)
    assert main(["counting", "--preset", "tiny", "--out", str(tmp_path / "run")]) == 2
    assert "off by one disagrees with numpy.bincount at K = 1: the counts differ" in capsys.readouterr().err
    assert not (tmp_path / "run" / "results.json").exists()


def test_training_rows(tmp_path):
    # every method is one of those whose tables are equal after three steps, or it would not be time_call
    assert main(["training", "--preset", "tiny", "--out", str(tmp_path / "run")]) == 0
    rows = rows_of(tmp_path / "run")
    methods = [name for name in training.METHODS if has_torch or not name.startswith("torch")]
    assert [(row["radius"], row["batch_size"], row["method"]) for row in rows] == [
        (K, B, name) for K in (1, 2) for B in (64, 256) for name in methods
    ]
    for row in rows:
        assert set(row) >= TRAINING_FIELDS
        compared = has_torch and row["method"] != training.OTHER_MODEL
        assert (row["ratio_to_torch"] is not None) == (row["ratio_to_fastest_torch"] is not None) == compared
        if compared:
            assert row["ratio_to_fastest_torch"] <= row["ratio_to_torch"]
        if row["method"] in training.TORCH + training.STRICTER:
            assert row["ratio_to_fastest_torch"] <= 1


@pytest.mark.parametrize(("rate", "batch"), [(0.0101, slice(None)), (0.01, slice(1, None))])
def test_a_method_with_other_tables_is_not_timed(rate, batch, tmp_path, monkeypatch, capsys):
    def slightly_off(task):
        usual = training._rate
        training._rate = rate
        try:
            return training.METHODS[training.ROWS](task._replace(batches=[(X[batch], Y[batch]) for X, Y in task.batches]))
        finally:
            training._rate = usual

    monkeypatch.setitem(training.METHODS, "slightly off", slightly_off)
    flags = ["--vocab-size", "30", "--batch-size", "32", "--radius", "2"]
    assert main(["training", *flags, "--out", str(tmp_path / "run")]) == 2
    assert "slightly off disagrees with jexplicit, dense at K = 2, batch size 32: tables are" in capsys.readouterr().err
    assert not (tmp_path / "run" / "results.json").exists()


def test_training_batches_are_positions_of_the_stream_each_at_most_once():
    task = training._task(training.Training(vocab_size=50), 2, 40)
    assert [(X.shape, Y.shape) for X, Y in task.batches] == [((40, 2), (40,))] * 3
    X, Y = (np.concatenate(part) for part in zip(*task.batches, strict=True))
    stream = streams.zipf_stream(np.random.default_rng(0), 2 * 3 * 8192, 50)
    triples = np.lib.stride_tricks.sliding_window_view(stream, 3)[:, ::-1]
    assert Y.all() and {*map(tuple, np.column_stack([Y, X])[X.all(axis=1)].tolist())} <= {*map(tuple, triples.tolist())}


def test_a_method_with_another_loss_is_not_timed(tmp_path, monkeypatch, capsys):
    def slightly_off(model, x):
        return lambda: evaluation._distinct(model, x)() * (1 + 1e-5)

    monkeypatch.setitem(evaluation.METHODS, "slightly off", slightly_off)
    flags = ["--corpus", "zipf", "--positions", "500", "--vocab-size", "64", "--radius", "2"]
    assert main(["evaluation", *flags, "--out", str(tmp_path / "run")]) == 2
    assert "slightly off disagrees with brute force at K = 2: loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("counting --tokens 1", "--tokens 1:"),
        ("counting --tokens 100 --rounds 0", "--rounds 0:"),
        ("counting --tokens 100 --radius", "--radius: give at least one value"),
        ("counting --tokens 100 --radius 0", "--radius 0:"),
        ("counting --tokens 100 --vocab-size 46341", "--vocab-size 46341:"),
        ("counting --tokens 100 --vocab-size 1", "--vocab-size 1:"),
        ("counting --tokens 100 --stream missing.npy --out run", "--stream missing.npy:"),
        ("counting --tokens 100 --stream large.npy --vocab-size 8 --out run", "ids 0 to 8"),
        ("counting --preset tin", "preset 'tin'"),
        ("evaluation --positions 0", "--positions 0:"),
        ("evaluation --corpus zipf --positions 100 --vocab-size 1", "--vocab-size 1:"),
        ("training --batch-size 0", "--batch-size 0:"),
        ("training --vocab-size 1", "--vocab-size 1:"),
        ("training --stream short.npy --vocab-size 9 --batch-size 4 --out run", "fewer than 3 batches of 4"),
    ],
)
def test_bad_flags_name_the_value(flags, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("large.npy", np.array([0, 8, 0]))
    np.save("short.npy", np.array([0, 8, 8, 0]))
    assert main(flags.split()) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "explained"),
    [
        ("--help", {"counting", "evaluation", "training"}),
        ("counting --help", {"--out", "--stream", "--tokens", "--vocab-size", "--radius", "--rounds", "--seed", "--preset"}),
        (
            "evaluation --help",
            {"--out", "--corpus", "--train", "--positions", "--vocab-size", "--radius", "--rounds", "--seed"},
        ),
        (
            "training --help",
            {"--out", "--stream", "--batch-size", "--radius", "--vocab-size", "--rounds", "--seed", "--preset"},
        ),
    ],
)
def test_help(flags, explained, capsys):
    with pytest.raises(SystemExit) as stop:
        main(flags.split())
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert {name for name in explained if name not in shown} == set()


def test_a_bench_that_is_not_there(capsys):
    assert main(["countin"]) == 2
    assert "countin: choose one of counting" in " ".join(capsys.readouterr().err.split())


def test_without_a_bench_all_are_listed(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "counting" in "".join(capsys.readouterr())


def test_the_harness_compares_with_the_fastest_peer_and_leaves_out_cases_without_one(tmp_path):
    scripted = {"ours": [1.0, 2.0, 4.0], "slow": [4.0] * 3, "fast": [2.0] * 3, "alone": [1.0] * 3}
    seconds = {name: iter(rounds) for name, rounds in scripted.items()}

    def timer(call):
        spent = next(seconds[call()])
        return Timing(spent, spent, 0.0)

    def comparisons(config, folder):
        cases = {name: lambda name=name: name for name in seconds}
        yield Comparison(cases=cases, fields={}, row=lambda case, timings: {})

    bench = Bench(
        name="fake",
        config=BenchConfig,
        comparisons=comparisons,
        methods=dict.fromkeys(seconds, "A fake."),
        columns=[METHOD, *ratio_columns("vs. slow", "ratio_to_slow")],
        presets={},
        sizes=(),
        peers={"ratio_to_slow": ("slow",), "ratio_to_fastest": ("slow", "fast", "absent")},
        without_peer=("alone",),
        timer=timer,
    )
    run_bench(bench, BenchConfig(out=str(tmp_path / "run"), rounds=3))
    rows = {row["method"]: row for row in rows_of(tmp_path / "run", without_peer=("alone",))}
    # rounds: 4/1, 4/2, 4/4 and 2/1, 2/2, 2/4
    assert [rows["ours"][f"ratio_to_slow{end}"] for end in ("_low", "", "_high")] == [1.5, 2, 3]
    assert rows["ours"]["ratio_to_fastest"] == 1 and rows["fast"]["ratio_to_fastest"] == 1
    assert rows["alone"]["ratio_to_slow"] is rows["alone"]["ratio_to_fastest"] is None and rows["ours"]["cpu_seconds"] == 2
    assert "| ours | 2.00 | 1.50-3.00 |" in (tmp_path / "run" / "report.md").read_text()


def test_a_case_that_disagrees_with_the_reference_is_named():
    cases = {"right": lambda: 1.0, "wrong": lambda: 2.0}
    comparison = Comparison(cases, {}, lambda case, timings: {}, reference="right", difference=losses_differ(rtol=1e-6))
    with pytest.raises(ValueError, match="wrong disagrees with right at K = 3: losses 2.0 instead of 1.0"):
        check_agreement(comparison, "K = 3")
    inspected = check_agreement(comparison._replace(unchecked=("wrong",), inspect=lambda case, result: {"loss": result}))
    assert inspected == {"right": {"loss": 1.0}, "wrong": {"loss": 2.0}}
