"""The solutions that generalise, end to end: calibrated, scaling, joint, joint+cache and bitcipher on a small text.

Tolerances: the same tables and positions give the same perplexity up to the order of a float32 sum, 1e-6.
"""

import functools
import json
import re

import numpy as np
import pytest

from jexplicit import encode_documents, evaluate, load_model
from jexplicit.lm.checkpoints import export_model
from jexplicit.lm.iterative_scaling import token_scaling_sweeps
from jexplicit.lm.ngram_mixture import CACHES, CHAIN, GAPS, RADIUS
from launch.lm import bitcipher as lm_bitcipher
from launch.lm import joint as lm_joint
from launch.lm import run as lm
from launch.lm import scaling as lm_scaling
from launch.lm.report import write_language_model_report
from launch.lm.report_generalising import METHODS, generalising_section

WORDS = "the cat sat on a mat while some dogs ran over one hill and two birds flew past".split()
ALL = "--methods explicit calibrated scaling bitcipher joint joint+cache --bits 12 --sweeps 2".split()


def small_text(lines: int, seed: int) -> list[str]:
    """Lines of a chain whose next step depends on the last two, so that joint contexts help."""
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
        patch.setattr(lm_joint, "_train_sample", 500)
        assert lm.main(flags(files, folder / "run", *ALL)) == 0
    return folder / "run"


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


def by_model(out) -> dict[tuple, dict]:
    return {(r["method"], r["features"], r["radius"]): r for r in rows(out)}


def without_seconds(out) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in rows(out)]


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


# Rows


@pytest.mark.slow
def test_every_model_has_its_row_with_the_promised_fields(finished):
    models = list(by_model(finished))
    tokens = [(features, radius) for features in ("sum", "cat") for radius in (1, 2)]
    assert models[:2] == [("unigram", "none", 0), ("bigram", "none", 1)]
    assert models[2:18] == [(method, *m) for method in ("explicit", "calibrated", "scaling", "bitcipher") for m in tokens]
    assert models[18:] == [("5-gram", "none", len(CHAIN)), ("joint", "cat", RADIUS), ("joint+cache", "cat", RADIUS)]
    assert len(models) == len(rows(finished)) == 21
    promised = {"method", "features", "radius", "scalars", "bytes", "seconds", "train_perplexity", "dev_perplexity"}
    for row in rows(finished):
        assert promised <= set(row)
        assert 1 < row["dev_perplexity"] < 50 and 1 < row["train_perplexity"] < 50 and row["seconds"] >= 0 < row["bytes"]


@pytest.mark.slow
def test_scalars_are_the_numbers_that_were_fitted(finished):
    of = by_model(finished)
    for method, scalars in (("explicit", 0), ("bitcipher", 0)):
        assert all(row["scalars"] == scalars for model, row in of.items() if model[0] == method)
    for features in ("sum", "cat"):
        assert [of["calibrated", features, K]["scalars"] for K in (1, 2)] == [2, 3]
    assert [of["scaling", "sum", 2]["scalars"], of["scaling", "cat", 2]["scalars"]] == [2, 3]  # the plain Sum has one table
    tables = 1 + RADIUS + len(CHAIN) + len(GAPS)
    assert of["joint", "cat", RADIUS]["scalars"] == tables
    assert of["joint+cache", "cat", RADIUS]["scalars"] == tables + len(CACHES)
    for row in rows(finished):
        if "exponents" in row:
            assert len(row["exponents"]) == row["scalars"] and np.isfinite(row["exponents"]).all()


@pytest.mark.slow
def test_bytes_are_those_of_the_tables(finished):
    of, N = by_model(finished), rows(finished)[0]["vocab_size"]
    for method, tables in (("explicit", 1), ("scaling", 1), ("calibrated", 2)):  # attention makes two tables of Sum's one
        assert of[method, "sum", 2]["bytes"] == tables * 4 * N * N
        assert of[method, "cat", 2]["bytes"] == 2 * 4 * N * N
    assert of["bitcipher", "cat", 2]["bytes"] < 4 * N * N
    assert of["joint", "cat", RADIUS]["bytes"] == of["joint+cache", "cat", RADIUS]["bytes"] > (RADIUS + 1) * 4 * N * N


@pytest.mark.slow
def test_models_that_generalise_do(finished):
    dev = {model: row["dev_perplexity"] for model, row in by_model(finished).items()}
    assert dev["calibrated", "cat", 2] < dev["explicit", "cat", 2]
    assert dev["calibrated", "cat", 2] < dev["bigram", "none", 1] < dev["unigram", "none", 0]
    assert dev["joint", "cat", RADIUS] < 0.9 * dev["calibrated", "cat", 2]  # the chain is of two tokens
    # at K = 1 Sum is Cat, and so is everything fitted: rounding of one path
    for method in ("calibrated", "scaling", "bitcipher"):
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
            assert [e["sweep"] for e in sweeps] == [0, 1, 2]
            row = by_model(finished)["scaling", features, radius]
            assert np.log(sweeps[2]["train_perplexity"]) + row["penalty"] <= np.log(sweeps[0]["train_perplexity"]) + 1e-6
            assert sweeps[2]["dev_perplexity"] == pytest.approx(row["dev_perplexity"], rel=1e-6)
            assert row["discount"] > 0 and row["penalty"] > 0


@pytest.mark.slow
def test_steps_say_what_each_kind_of_table_buys(finished):
    steps = events(finished, "step")
    assert [e["scalars"] for e in steps] == [0, 5, 13, 17, 21]
    assert steps[0]["step"] == "Kneser-Ney 5-gram" and steps[-1]["step"] == "joint+cache"
    found = [e["held_out_perplexity"] for e in steps]
    # each model contains the one before; each fit is at its minimum to the penalty of 1e-4 on exponents of order 1
    assert np.all(np.diff(found) < 1e-3 * found[0])
    of = by_model(finished)
    assert found[3] == of["joint", "cat", RADIUS]["held_out_perplexity"]
    assert found[4] == of["joint+cache", "cat", RADIUS]["held_out_perplexity"]


# The report


@pytest.mark.slow
def test_the_report_shows_all_of_it(finished):
    report = (finished / "report.md").read_text()
    assert "## Solutions that generalise" in report and "What each step buys" in report and "Fitted exponents" in report
    for row in rows(finished):
        name = f"bitcipher, {row['bits']} bits" if row["method"] == "bitcipher" else row["method"]
        assert f"| {name} | {row['features']} | {row['radius']} | {row['scalars']} |" in report
    for step in events(finished, "step"):
        assert f"| {step['step']} | {step['scalars']} | {step['held_out_perplexity']:.2f} |" in report
    assert linked_figures(finished) == {"perplexity", "scaling", "methods", "exponents", "sweeps", "bits"}


@pytest.mark.slow
def test_the_report_can_be_rebuilt_from_the_run_folder_alone(finished):
    before = (finished / "report.md").read_text()
    (finished / "report.md").unlink()
    write_language_model_report(finished)
    assert (finished / "report.md").read_text() == before


# Saved models


@pytest.mark.parametrize("method", ["calibrated", "scaling"])
@pytest.mark.parametrize("features", ["sum", "cat"])
@pytest.mark.slow
def test_a_saved_model_scores_as_the_run_did_and_so_does_its_export(finished, files, tmp_path, method, features):
    row = by_model(finished)[method, features, 2]
    loaded = load_model(finished, method=method, features=features, radius=2)
    export_model(tmp_path / "model.safetensors", loaded)
    exported = load_model(tmp_path / "model.safetensors")
    tables = 1 if (method, features) == ("scaling", "sum") else 2
    for model, tokenizer in (loaded, exported):
        assert (model.features, model.radius, model.eos) == (features, 2, False)
        assert len({id(table) for table in model.tables}) == tables  # a weighted Sum keeps its tables apart
        assert evaluate(model, dev_stream(files, tokenizer)).perplexity == pytest.approx(row["dev_perplexity"], rel=1e-6)
    for one, other in zip(loaded.tables.tables, exported.tables.tables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tables == 1) == np.array_equal(loaded.tables.tables[0], loaded.tables.tables[1])


@pytest.mark.slow
def test_the_model_loaded_by_default_has_the_lowest_dev_perplexity_of_those_with_tables(finished):
    with_tables = [row for row in rows(finished) if row["method"] in ("explicit", "calibrated", "scaling")]
    best = min(with_tables, key=lambda row: row["dev_perplexity"])
    model, _ = load_model(finished)
    wanted, _ = load_model(finished, method=best["method"], features=best["features"], radius=best["radius"])
    for one, other in zip(model.tables, wanted.tables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", ["joint", "joint+cache", "bitcipher"])
@pytest.mark.slow
def test_models_without_tables_cannot_be_loaded(finished, method):
    with pytest.raises(ValueError, match="has no model with method"):
        load_model(finished, method=method)


# Interruptions

every_sweep_checkpointed = functools.partial(token_scaling_sweeps, checkpoint_seconds=0.0)


@pytest.mark.parametrize(
    ("module", "name", "stop"),
    [(lm_scaling, "evaluate", 8), (lm_bitcipher, "evaluate_coded", 4), (lm_joint, "joint_log_probabilities", 2)],
)
@pytest.mark.slow
def test_a_run_interrupted_anywhere_resumes_to_the_same_rows(finished, files, tmp_path, monkeypatch, module, name, stop):
    whole, calls = getattr(module, name), 0

    def interrupted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == stop:  # in the middle of a model
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    method = module.__name__.split("_")[-1]
    wanted = {"unigram", "bigram", method} | ({"5-gram"} if method == "joint" else set())
    mine = [row for row in without_seconds(finished) if row["method"] in wanted]
    monkeypatch.setattr(lm_joint, "_train_sample", 500)
    monkeypatch.setattr(lm_scaling, "token_scaling_sweeps", every_sweep_checkpointed)
    monkeypatch.setattr(module, name, interrupted)
    more = ["--methods", method, *ALL[-4:]]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 130
    before = len(rows(tmp_path / "run")) if (tmp_path / "run" / "results.json").exists() else 0
    monkeypatch.setattr(module, name, whole)
    assert lm.main(["--out", str(tmp_path / "run"), "--resume"]) == 0
    resumed = without_seconds(tmp_path / "run")
    assert before < len(resumed)
    if method == "scaling":  # it went on from the sweep that was done, not from the start
        assert [e["sweep"] for e in events(tmp_path / "run", "sweep") if (e["features"], e["radius"]) == ("cat", 1)] == [
            0,
            1,
            2,
        ]
    assert resumed == (mine[2:] if method == "bitcipher" else mine)  # a run of codes alone has no baselines


@pytest.mark.slow
def test_a_step_that_a_resumed_run_repeated_is_in_the_report_once(finished, tmp_path):
    first = events(finished, "step")[0]
    lines = [json.dumps({**first, "held_out_perplexity": p}) + "\n" for p in (9.5, 12.25)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    joint = [row for row in rows(finished) if row["method"] == "joint"]
    section = "\n".join(generalising_section(tmp_path, joint))
    assert section.count("Kneser-Ney 5-gram |") == 1 and "| 12.25 |" in section


# Runs of one kind


def test_a_run_of_codes_alone_counts_no_pairs(files, tmp_path):
    assert lm.main(flags(files, tmp_path / "run", "--methods", "bitcipher", "--bits", "6", "12", "--features", "cat")) == 0
    assert not (tmp_path / "run" / "checkpoints" / "counts").exists()
    assert [(row["method"], row["radius"], row["bits"]) for row in rows(tmp_path / "run")] == [
        ("bitcipher", 1, 6),
        ("bitcipher", 1, 12),
        ("bitcipher", 2, 6),
        ("bitcipher", 2, 12),
    ]
    assert linked_figures(tmp_path / "run") == {"bits"}
    assert json.loads((tmp_path / "run" / "samples.json").read_text()) == []  # no tables to generate from


@pytest.mark.slow
def test_exponents_from_counted_positions_each_left_out(finished, files, tmp_path):
    more = ["--methods", "calibrated", "--features", "cat", "--calibration", "leave-one-out", "--samples", "0"]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    for radius in (1, 2):
        mine, held_out = (by_model(out)["calibrated", "cat", radius] for out in (tmp_path / "run", finished))
        assert mine["calibration"] == "leave-one-out" and held_out["calibration"] == "held-out"
        # exponents of 300 positions each: their standard errors move the loss by about (scalars / 2) / 300
        assert mine["dev_perplexity"] == pytest.approx(held_out["dev_perplexity"], rel=0.05)
        assert mine["exponents"] != held_out["exponents"]


@pytest.mark.slow
def test_a_discount_of_0_sweeps_the_explicit_solution(finished, files, tmp_path):
    more = ["--methods", "scaling", "--features", "cat", "--radius", "2", "--discount", "0", "--sweeps", "2"]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    first, *_, last = events(tmp_path / "run", "sweep")
    explicit, row = by_model(finished)["explicit", "cat", 2], by_model(tmp_path / "run")["scaling", "cat", 2]
    assert first["dev_perplexity"] == pytest.approx(explicit["dev_perplexity"], rel=1e-5)
    assert last["train_perplexity"] < first["train_perplexity"]
    assert (row["penalty"], row["scalars"], row["discount"]) == (0, 0, 0)


@pytest.mark.slow
def test_ends_of_documents_can_be_predicted_by_all_of_them(files, tmp_path, monkeypatch):
    monkeypatch.setattr(lm_joint, "_train_sample", 200)
    more = ["--methods", "calibrated", "joint+cache", "--features", "cat", "--radius", "1", "--eos", "--smoothing", "dirichlet"]
    assert lm.main(flags(files, tmp_path / "run", *more)) == 0
    for model in (("calibrated", "cat", 1), ("joint+cache", "cat", RADIUS)):
        row = by_model(tmp_path / "run")[model]
        assert row["smoothing"] == "dirichlet" and 1 < row["dev_perplexity"] < 50
    assert load_model(tmp_path / "run", method="calibrated")[0].eos


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--calibration leave-one-out", "--calibration leave-one-out"),
        ("--calibration leave-one-out --features cat --smoothing noise", "--smoothing noise"),
        ("--calibration-positions 0", "--calibration-positions 0"),
        ("--bits 0", "--bits (0,)"),
        ("--bits", "--bits ()"),
        ("--bits 5", "use at least 6"),  # 31 codes of 5 bits
        ("--bits 1000", "1000 bits for a vocabulary of"),
        ("--export model.safetensors", "--export with --methods bitcipher"),
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
def test_every_method_of_the_section_is_one_of_the_launcher_s(finished):
    assert set(METHODS) == {row["method"] for row in rows(finished)} - {"unigram", "bigram", "5-gram", "explicit"}
