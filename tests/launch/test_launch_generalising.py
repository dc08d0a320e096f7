"""The solutions that generalise, end to end: log-linear, iterative-scaling, ngram, mixture and bitcipher on a small text.

Tolerances: the same tables and positions give the same perplexity up to the order of a float32 sum, 1e-6.
"""

import contextlib
import functools
import json
import re

import jax
import numpy as np
import pytest

from jexplicit import METHODS, encode_documents, evaluate, load_model
from jexplicit.lm.checkpoints import export_model
from jexplicit.lm.fits import ablation as lm_ablation
from jexplicit.lm.fits import log_linear_fits
from jexplicit.lm.fits.ablation import kind_name
from jexplicit.lm.fits.iterative_scaling import sweep_tables
from jexplicit.lm.fits.mixture_rows import CACHES, CHAIN, GAPS, RADIUS
from jexplicit.runs import figures as runs_figures
from launch import explain, sample, score
from launch.lm import __main__ as lm
from launch.lm import figures
from launch.lm import measure as lm_measure
from launch.lm import report as lm_report
from launch.lm.report import write_report

WORDS = "the cat sat on a mat while some dogs ran over one hill and two birds flew past".split()
ALL = "--methods explicit log-linear iterative-scaling bitcipher ngram mixture --history none all --bits 12 --sweeps 2".split()
ELSEWHERE = {"cold", "warm", "optimum", "delta", "mean-cooccurrence", "intercept", "word-vectors"}  # methods that others test

MIXTURE, WITH_HISTORY = ("mixture", "cat", RADIUS), ("mixture", "cat", RADIUS, "all")


def small_text(lines: int, seed: int) -> list[str]:
    """Lines of a chain whose next step depends on the last two, so that contexts of several tokens help."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(lines):
        words = [int(rng.integers(len(WORDS))), int(rng.integers(len(WORDS)))]
        for _ in range(10):
            words.append((words[-1] + words[-2] * (rng.random() < 0.7) + int(rng.integers(1, 3))) % len(WORDS))
        out.append(" ".join(WORDS[w] for w in words))
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("\n".join(small_text(300, seed=0)) + "\n")
    (folder / "dev.txt").write_text("\n".join(small_text(40, seed=1)) + "\n")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "cache"))


def flags(files, out, *more: str) -> list[str]:
    text = f"--out {out} --train {files}/train.txt --dev {files}/dev.txt --vocab-size 50 --radius 1 2 --samples 1".split()
    return [*text, "--scaling-sample", "200", "--train-sample", "1000", "--calibration-positions", "300", *more]


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A run of all methods that the read-only tests share."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JEXPLICIT_CACHE_DIR", str(folder / "cache"))
        patch.setattr(lm_measure, "_positions_one_by_one", 500)
        assert lm.main(flags(files, folder / "run", *ALL)) == 0
    return folder / "run"


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


def by_model(out) -> dict[tuple, dict]:
    """Rows by method, features and radius, and by history where a model reads the text before."""
    seen = {"none": (), "all": ("all",)}
    return {(r["method"], r["features"], r["radius"], *seen[r["history"]]): r for r in rows(out)}


def without_costs(out) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.endswith(("seconds", "peak_bytes"))} for row in rows(out)]


def events(out, name: str) -> list[dict]:
    every = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [event for event in every if event["event"] == name]


def linked_figures(out) -> set[str]:
    """The figures of a report, all of which are there."""
    names = set(re.findall(r"figures/(\w+)\.png", (out / "report.md").read_text()))
    for name in names:
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return names


def dev_stream(files, tokenizer):
    return encode_documents(tokenizer, (files / "dev.txt").read_text().splitlines())


# Devices


@pytest.mark.slow
def test_mixtures_on_eight_devices_are_those_of_one(files, tmp_path, capsys):
    methods = "--methods ngram mixture --rows offsets contexts-4 classes --history none all".split()
    for devices in (1, 8):
        assert lm.main(flags(files, tmp_path / f"{devices}", *methods, "--devices", f"{devices}")) == 0
        shown = capsys.readouterr().err
        assert ("ngram: fitted on one device" in shown) == (devices == 8)
    one, eight = rows(tmp_path / "1"), rows(tmp_path / "8")
    assert [row["method"] for row in eight] == ["unigram", "bigram", "ngram", "mixture", "mixture"]
    for alone, spread in zip(one, eight, strict=True):
        for name in {"train_perplexity", "dev_perplexity", "held_out_perplexity"} & set(alone):
            # a fit ends where the next step would gain less than 1e-5 nats; log-probabilities are right to 1e-5
            assert spread[name] == pytest.approx(alone[name], rel=5e-5)


# Rows


@pytest.mark.slow
def test_every_model_has_its_row_with_the_promised_fields(finished):
    models = list(by_model(finished))
    tokens = [(features, radius) for features in ("sum", "cat") for radius in (1, 2)]
    assert models[:2] == [("unigram", "none", 1), ("bigram", "none", 1)]
    assert models[2:18] == [
        (method, *m) for method in ("explicit", "log-linear", "iterative-scaling", "bitcipher") for m in tokens
    ]
    assert models[18:] == [("ngram", "none", len(CHAIN)), MIXTURE, WITH_HISTORY]
    assert len(models) == len(rows(finished)) == 21
    promised = {"method", "features", "radius", "history", "scalars", "bytes", "seconds", "train_perplexity", "dev_perplexity"}
    for row in rows(finished):
        assert promised <= set(row)
        assert 1 < row["dev_perplexity"] < 50 and 1 < row["train_perplexity"] < 50 and row["seconds"] >= 0 < row["bytes"]


@pytest.mark.slow
def test_scalars_are_the_numbers_that_were_fitted(finished):
    of = by_model(finished)
    for method, scalars in (("explicit", 0), ("bitcipher", 0)):
        assert all(row["scalars"] == scalars for model, row in of.items() if model[0] == method)
    for method in ("log-linear", "iterative-scaling"):  # the prior's, and one for each offset
        for features in ("sum", "cat"):
            assert [of[method, features, K]["scalars"] for K in (1, 2)] == [2, 3]
    tables = 1 + RADIUS + len(CHAIN) + len(GAPS)
    assert of[MIXTURE]["scalars"] == tables
    assert of[WITH_HISTORY]["scalars"] == tables + len(CACHES)
    for row in rows(finished):
        if "exponents" in row:
            assert len(row["exponents"]) == row["scalars"] and np.isfinite(row["exponents"]).all()
            assert len(row.get("rows", row["exponents"])) == row["scalars"] and row["tables"] == "dense"


@pytest.mark.slow
def test_bytes_are_those_of_the_tables(finished):
    of, N = by_model(finished), rows(finished)[0]["vocab_size"]
    # attention makes two tables of Sum's one; and two exponents
    for method, tables in (("explicit", 1), ("iterative-scaling", 2), ("log-linear", 2)):
        assert of[method, "sum", 2]["bytes"] == tables * 4 * N * N + 2 * 4
        assert of[method, "cat", 2]["bytes"] == 2 * 4 * N * N + 2 * 4
    assert of["bitcipher", "cat", 2]["bytes"] < 4 * N * N
    assert of[WITH_HISTORY]["bytes"] == of[MIXTURE]["bytes"] + 4 * N + len(CACHES) * 4  # which have no table
    assert of[MIXTURE]["bytes"] > of["ngram", "none", len(CHAIN)]["bytes"] + RADIUS * 4 * N


@pytest.mark.slow
def test_models_that_generalise_do(finished):
    dev = {model: row["dev_perplexity"] for model, row in by_model(finished).items()}
    assert dev["log-linear", "cat", 2] < dev["explicit", "cat", 2]
    assert dev["log-linear", "cat", 2] < dev["bigram", "none", 1] < dev["unigram", "none", 1]
    assert dev[MIXTURE] < 0.9 * dev["log-linear", "cat", 2]  # the chain is of two tokens
    # at K = 1 Sum is Cat, and so is everything fitted: rounding of one path
    for method in ("log-linear", "iterative-scaling", "bitcipher"):
        assert dev[method, "sum", 1] == pytest.approx(dev[method, "cat", 1], rel=1e-5)


@pytest.mark.slow
def test_held_out_perplexity_foretells_dev(finished):
    for row in rows(finished):
        if "held_out_perplexity" in row:
            # both from some hundred positions, with a standard error of some 5 %; the train text was known by heart
            assert row["held_out_perplexity"] == pytest.approx(row["dev_perplexity"], rel=0.25)
            assert 0 < row.get("implied_slope", 1) < 2


@pytest.mark.slow
def test_every_sweep_lowers_the_loss_with_its_penalty(finished):
    for features in ("sum", "cat"):
        for radius in (1, 2):
            sweeps = [e for e in events(finished, "sweep") if (e["features"], e["radius"]) == (features, radius)]
            row = by_model(finished)["iterative-scaling", features, radius]
            assert row["sweeps"] == (0 if radius == 1 else 2)  # one token is read best as it was counted, says held-out text
            assert [e["sweep"] for e in sweeps] == [*range(row["sweeps"] + 1)]
            assert np.log(sweeps[-1]["train_perplexity"]) + row["penalty"] <= np.log(sweeps[0]["train_perplexity"]) + 1e-6
            assert sweeps[-1]["dev_perplexity"] == pytest.approx(row["dev_perplexity"], rel=1e-6)
            assert row["discount"] > 0 and (row["penalty"] > 0) == (row["sweeps"] > 0)


@pytest.mark.slow
def test_steps_say_what_each_kind_of_table_buys(finished):
    steps = events(finished, "step")
    assert [e["scalars"] for e in steps] == [0, 5, 13, 17, 25]
    assert steps[0]["step"] == "Kneser-Ney 5-gram" and steps[-1]["step"] == "mixture, history all"
    assert [e["kind"] for e in steps] == [None, None, "offset", "gap", "cache"]
    found = [e["held_out_perplexity"] for e in steps]
    # each model contains the one before; the penalty of 10 / 300, by up to half of it for an exponent that moves by 1
    assert np.all(np.diff(found) < 0.02 * found[0])
    of = by_model(finished)
    for step, model in ((found[3], MIXTURE), (found[4], WITH_HISTORY)):  # the same positions; drawn less to where fits begin
        assert 0.98 * of[model]["held_out_perplexity"] < step <= (1 + 1e-4) * of[model]["held_out_perplexity"]


@pytest.mark.slow
def test_a_kind_is_left_out_of_the_mixture_of_every_history_on_the_positions_of_the_steps(finished):
    kinds, last = {"none": ["offset", "gap"], "all": ["offset", "gap", "cache"]}, {"none": 17, "all": 25}
    steps = {(e["history"], e["kind"]): e["held_out_perplexity"] for e in events(finished, "step")}
    assert {e["positions"] for e in (*events(finished, "step"), *events(finished, "ablation"))} == {300}
    for history, expected in kinds.items():
        whole, *others = [e for e in events(finished, "ablation") if e["history"] == history]
        assert [e["without"] for e in others] == expected and whole["without"] is None and whole["scalars"] == last[history]
        numbers = {"offset": RADIUS, "gap": len(GAPS), "cache": len(CACHES)}
        assert [whole["scalars"] - e["scalars"] for e in others] == [numbers[kind] for kind in expected]
        assert whole["held_out_perplexity"] == steps[history, expected[-1]]
        for event in others:  # a model of fewer rows; each is at its minimum to 1e-4
            assert event["held_out_perplexity"] > (1 - 2e-4) * whole["held_out_perplexity"]
    left_out = {(e["history"], e["without"]): e["held_out_perplexity"] for e in events(finished, "ablation")}
    assert left_out["none", "gap"] == steps["none", "offset"]  # the last kind left out is the step before


@pytest.mark.slow
def test_rows_of_mixtures_say_what_they_took(finished):
    promised = {"method", "history", "dev_loss", "dev_perplexity", "exponents", "tables"}
    promised |= {"table_seconds", "fit_seconds", "eval_seconds", "peak_bytes"}
    for row in rows(finished):
        assert row["peak_bytes"] > row["bytes"] and row["peak_bytes"] > 10**7
        if row["method"] == "mixture":
            assert promised <= set(row) and row["dev_loss"] == pytest.approx(np.log(row["dev_perplexity"]))
            assert 0 < row["table_seconds"] + row["fit_seconds"] < row["solve_seconds"]
    peaks = [row["peak_bytes"] for row in rows(finished)]
    assert peaks == sorted(peaks)


# The report


@pytest.mark.slow
def test_the_report_shows_all_of_it(finished):
    report = (finished / "report.md").read_text()
    assert (
        "## Solutions that generalise" in report and "### What each kind of row buys" in report and "Fitted exponents" in report
    )
    assert "(figures/rows.png)" in report and (finished / "figures" / "rows.png").stat().st_size > 5000
    for row in rows(finished):
        name = f"bitcipher, {row['bits']} bits" if row["method"] == "bitcipher" else row["method"]
        assert f"| {name} | {row['features']} | {row['radius']} | {row['history']} | {row['scalars']} |" in report
    first, second, *others = events(finished, "step")
    for step in (first, second):
        line = f"| none | {step['step']} | {step['scalars']} | {step['held_out_perplexity']:.2f} |  |  |"
        assert line in report
    whole = {e["history"]: e for e in events(finished, "ablation") if not e["without"]}
    added = {(e["history"], e["kind"]): f"{e['held_out_perplexity']:.2f}" for e in others}
    for event in events(finished, "ablation"):
        history, kind, perplexity = event["history"], event["without"], event["held_out_perplexity"]
        scalars = whole[history]["scalars"] - event["scalars"] if kind else event["scalars"]
        increase = f"{perplexity / whole[history]['held_out_perplexity'] - 1:+.1%}" if kind else ""
        cells = (history, kind_name(kind) if kind else "nothing", scalars, added.get((history, kind), ""))
        assert f"| {' | '.join(map(str, cells))} | {perplexity:.2f} | {increase} |" in report
    assert linked_figures(finished) == {"perplexity", "scaling", "methods", "rows", "exponents", "sweeps", "bits"}


@pytest.mark.slow
def test_the_report_can_be_rebuilt_from_the_run_folder_alone(finished):
    before = (finished / "report.md").read_text()
    (finished / "report.md").unlink()
    write_report(finished)
    assert (finished / "report.md").read_text() == before


# Saved models


@pytest.mark.parametrize("method", ["log-linear", "iterative-scaling"])
@pytest.mark.parametrize("features", ["sum", "cat"])
@pytest.mark.slow
def test_a_saved_model_scores_as_the_run_did_and_so_does_its_export(finished, files, tmp_path, method, features):
    row = by_model(finished)[method, features, 2]
    loaded = load_model(finished, method=method, features=features, radius=2)
    export_model(tmp_path / "model.safetensors", loaded)
    exported = load_model(tmp_path / "model.safetensors")
    for model, tokenizer, about in (loaded, exported):
        assert about == row
        assert (model.features, model.radius, model.eos) == (features, 2, False)
        assert len({id(table) for table in model.tables}) == 2  # a weighted Sum keeps its tables apart
        assert evaluate(model, dev_stream(files, tokenizer)).perplexity == pytest.approx(row["dev_perplexity"], rel=1e-6)
    for one, other in zip(loaded.model.tables, exported.model.tables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(*loaded.model.tables)


@pytest.mark.slow
def test_the_model_loaded_by_default_has_the_lowest_dev_perplexity_of_all(finished):
    best = min(rows(finished), key=lambda row: row["dev_perplexity"])
    model, _, about = load_model(finished)
    wanted = load_model(finished, **{name: best[name] for name in ("method", "features", "radius", "history")})
    assert about == wanted.about == best
    assert_same_arrays(model, wanted.model)


def assert_same_arrays(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_every_model_of_a_run_is_loaded_and_exported_with_its_dev_perplexity(finished, files, tmp_path):
    for row in rows(finished):
        name = {field: row[field] for field in ("method", "features", "radius", "history")}
        loaded = load_model(finished, **name)
        export_model(tmp_path / "model.safetensors", loaded)
        exported = load_model(tmp_path / "model.safetensors", **name)
        assert loaded.about == exported.about == row and loaded.model.history == (20003 if row["history"] == "all" else 0)
        assert_same_arrays(loaded.model, exported.model)
        stream = dev_stream(files, loaded.tokenizer)
        assert evaluate(exported.model, stream).perplexity == pytest.approx(row["dev_perplexity"], rel=1e-6)


@pytest.mark.parametrize(
    "wanted", [{"method": "cold"}, {"method": "bitcipher", "radius": 3}, {"method": "ngram", "history": "all"}]
)
@pytest.mark.slow
def test_models_that_a_run_does_not_have_cannot_be_loaded(finished, wanted):
    with pytest.raises(ValueError, match=f"has no model with method {wanted['method']}.*: it has .*mixture_cat_8_all"):
        load_model(finished, **wanted)


@pytest.mark.parametrize("history", ["none", "all"])
@pytest.mark.slow
def test_a_mixture_is_sampled_scored_and_explained_from_its_run(finished, files, tmp_path, capsys, history):
    chosen = ["--run", str(finished), "--method", "mixture", "--history", history]
    assert sample.main([*chosen, "--prompt", "the cat", "--length", "5", "--count", "2"]) == 0
    texts = capsys.readouterr().out.splitlines()
    assert len(texts) == 2 and all(text.startswith("the cat") for text in texts)
    assert score.main([*chosen, "--text", f"{files}/dev.txt"]) == 0
    *documents, total = map(json.loads, capsys.readouterr().out.splitlines())
    row = by_model(finished)[WITH_HISTORY if history == "all" else MIXTURE]
    assert total["history"] == history and len(documents) == 40
    assert total["perplexity"] == pytest.approx(row["dev_perplexity"], rel=1e-5)
    rows = {
        "token": ["1 back", "8 back", "no token", *(["history"] if history == "all" else [])],
        "row": ["unigram", "offset 8", "context 4", "gap 2, 4", *(["cache 400"] if history == "all" else [])],
    }
    for by, names in rows.items():
        flags = ["--text", "the cat sat on", "--by", by, "--figure", str(tmp_path / "map.png")]
        assert explain.main([*chosen, *flags, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert set(names) <= set(found["rows"]) and len(found["predictions"]) >= 4
        assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
        assert explain.main([*chosen, *flags]) == 0
        printed = capsys.readouterr().out
        assert any(name in printed for name in found["rows"])


# Interruptions

every_sweep_checkpointed = functools.partial(sweep_tables, checkpoint_seconds=0.0)


@pytest.mark.parametrize(
    ("method", "where", "name", "stop"),
    [
        ("iterative-scaling", log_linear_fits, "evaluate", 17),  # one for each sweep, twice: the second of the last model
        ("bitcipher", lm_measure, "evaluate", 8),  # two of every row
        ("mixture", lm_ablation, "log_probabilities", 1),
        ("mixture", lm_measure, "evaluate", 7),
    ],
)
@pytest.mark.slow
def test_a_run_interrupted_anywhere_resumes_to_the_same_rows(finished, files, tmp_path, monkeypatch, method, where, name, stop):
    whole, calls = getattr(where, name), 0

    def interrupted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == stop:  # in the middle of a model
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    mine = [row for row in without_costs(finished) if row["method"] in ("unigram", "bigram", method)]
    monkeypatch.setattr(lm_measure, "_positions_one_by_one", 500)
    monkeypatch.setattr(log_linear_fits, "sweep_tables", every_sweep_checkpointed)
    monkeypatch.setattr(where, name, interrupted)
    more = ["--methods", method, "--tables", "dense", *ALL[-4:], *(ALL[-7:-4] if method == "mixture" else [])]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 130
    before = len(rows(tmp_path / "run")) if (tmp_path / "run" / "results.json").exists() else 0
    monkeypatch.setattr(where, name, whole)
    assert lm.main(["--out", str(tmp_path / "run"), "--resume"]) == 0
    resumed = without_costs(tmp_path / "run")
    assert before < len(resumed)
    if method == "iterative-scaling":  # it went on from the sweep that was done, not from the start
        swept = [e["sweep"] for e in events(tmp_path / "run", "sweep") if (e["features"], e["radius"]) == ("cat", 2)]
        assert swept == [0, 1, 2]
    assert resumed == mine


@pytest.mark.slow
def test_a_step_that_a_resumed_run_repeated_is_in_the_report_once(finished, tmp_path):
    first, whole = events(finished, "step")[0], events(finished, "ablation")[0]
    lines = [json.dumps({**first, "held_out_perplexity": p}) + "\n" for p in (9.5, 12.25)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + 2 * (json.dumps(whole) + "\n"))
    mixtures = [row for row in rows(finished) if row["method"] == "mixture"]
    section = "\n".join(lm_report._generalising_section(tmp_path, mixtures))
    assert section.count("Kneser-Ney 5-gram |") == section.count("| nothing |") == 1 and "| 12.25 |" in section


# Runs of one kind


def test_a_run_of_codes_alone_makes_no_dense_tables(files, tmp_path):
    assert lm.main(flags(files, tmp_path / "run", "--methods", "bitcipher", "--bits", "6", "12", "--features", "cat")) == 0
    assert not (tmp_path / "run" / "checkpoints" / "counts").exists()
    baselines, coded = rows(tmp_path / "run")[:2], rows(tmp_path / "run")[2:]
    assert [row["method"] for row in baselines] == ["unigram", "bigram"]
    assert {row["tables"] for row in (*baselines, *coded)} == {"sparse"}
    assert [(row["method"], row["radius"], row["bits"]) for row in coded] == [
        ("bitcipher", 1, 6),
        ("bitcipher", 1, 12),
        ("bitcipher", 2, 6),
        ("bitcipher", 2, 12),
    ]
    assert linked_figures(tmp_path / "run") == {"bits"}
    assert len(json.loads((tmp_path / "run" / "samples.json").read_text())) == 1
    with pytest.raises(ValueError, match="no model with method bitcipher, radius 4"):
        load_model(tmp_path / "run", method="bitcipher", radius=4)


@pytest.mark.slow
def test_exponents_from_counted_positions_each_left_out(finished, files, tmp_path):
    more = ["--methods", "log-linear", "--features", "cat", "--calibration", "leave-one-out", "--samples", "0"]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    for radius in (1, 2):
        mine, held_out = (by_model(out)["log-linear", "cat", radius] for out in (tmp_path / "run", finished))
        assert mine["calibration"] == "leave-one-out" and held_out["calibration"] == "held-out"
        # exponents of 300 positions each: their standard errors move the loss by about (scalars / 2) / 300
        assert mine["dev_perplexity"] == pytest.approx(held_out["dev_perplexity"], rel=0.05)
        assert mine["exponents"] != held_out["exponents"]


@pytest.mark.slow
def test_a_discount_of_0_sweeps_the_explicit_solution(finished, files, tmp_path):
    more = ["--methods", "iterative-scaling", "--features", "cat", "--radius", "2", "--discount", "0", "--sweeps", "2"]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    first, *_, last = events(tmp_path / "run", "sweep")
    explicit, row = by_model(finished)["explicit", "cat", 2], by_model(tmp_path / "run")["iterative-scaling", "cat", 2]
    assert first["dev_perplexity"] == pytest.approx(explicit["dev_perplexity"], rel=1e-5)
    assert last["train_perplexity"] < first["train_perplexity"]
    assert (row["penalty"], row["scalars"], row["discount"]) == (0, 0, 0)


@pytest.mark.slow
def test_ends_of_documents_can_be_predicted_by_all_of_them(files, tmp_path, monkeypatch):
    monkeypatch.setattr(lm_measure, "_positions_one_by_one", 200)
    more = "--methods log-linear mixture --history all --features cat --radius 1 --eos --smoothing dirichlet".split()
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    for model in (("log-linear", "cat", 1), WITH_HISTORY):
        row = by_model(tmp_path / "run")[model]
        assert row["smoothing"] == "dirichlet" and 1 < row["dev_perplexity"] < 50
    assert load_model(tmp_path / "run", method="log-linear").model.eos


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--calibration leave-one-out", "--calibration leave-one-out"),
        ("--calibration leave-one-out --features cat --smoothing noise", "--smoothing noise"),
        ("--calibration-positions 0", "--calibration-positions 0"),
        ("--bits 0", "--bits 0: use at least 1"),
        ("--bits", "--bits without a value"),
        ("--bits 5", "use at least 6"),  # 31 codes of 5 bits
        ("--bits 1000", "1000 bits for a vocabulary of"),
        ("--history all", "--history all without a mixture"),
        ("--history", "--history without a value"),
        ("--sweeps 0", "--sweeps 0"),
        ("--discount -1", "--discount -1"),
        ("--discount inf", "--discount inf"),
        ("--discount nan", "--discount nan"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(files, tmp_path, capsys, wrong, message):
    assert lm.main(flags(files, tmp_path / "run", "--methods", "bitcipher", *wrong.split())) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run" / "results.json").exists()  # nothing was measured in vain


@pytest.mark.slow
def test_every_method_that_no_other_file_tests_is_in_the_run(finished):
    assert {row["method"] for row in rows(finished)} == set(METHODS) - ELSEWHERE


def test_a_picture_has_a_bar_for_every_kind_left_out_of_every_history(tmp_path):
    def line(history, rows, **increase):
        return {"history": history, "rows": rows, **increase}

    lines = [line("none", "Kneser-Ney 5-gram"), line("none", "gaps", increase=0.02), line("none", "nothing", increase=None)]
    lines += [line("all", "gaps", increase=0.01), line("all", "the text before", increase=0.3)]
    drawn = {}

    @contextlib.contextmanager
    def kept(path, **options):
        with runs_figures.figure(path, **options) as axes:
            yield axes
            drawn["widths"] = sorted(round(bar.get_width(), 6) for bar in axes[0, 0].patches)
            drawn["names"] = [label.get_text() for label in axes[0, 0].get_yticklabels()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "figure", kept)
        figures.row_kinds(lines, tmp_path / "rows.png")
    assert drawn == {"widths": [1, 2, 30], "names": ["the text before", "gaps"]}
    assert (tmp_path / "rows.png").exists()
