"""launch.icl beyond linear layers, mesa layers and Markov chains, end to end on tiny tasks: rows, figures, refusals."""

import json

import pytest

from jexplicit.experiments.rows import where
from launch.icl import __main__ as icl

QUICK = ("copy", "softmax", "finite-data", "noisy")  # these compile fastest
LONG = ("nonlinear", "layernorm", "phase", "blocks", "function-classes", "mesa", "markov")
FLAGS = (
    "--dim 2 --context 3 --seeds 2 --steps 8 --batch-size 16 --validation-tasks 30 --test-tasks 100 --solver-contexts 50 "
    "--wave-layers 1 2 --training-tasks 8 --diagonal-layers 2 --functions linear tree --function-dim 2 --transformer 8 1 2 "
    "--blocks 2 3 --block-kinds softmax linear-layernorm --small-blocks 1 --block-batch-size 8 --block-tasks 24 "
    "--chain-length 8 --tokens 300 --devices 1"
).split()
FIGURES = {
    "nonlinear": ("nonlinear_K1", "nonlinear_K2"),
    "copy": ("copy",),
    "softmax": ("softmax", "heads"),
    "layernorm": ("layernorm", "layernorm_shift_K1", "layernorm_shift_K2"),
    "phase": ("phase",),
    "finite-data": ("finite", "finite_curves"),
    "blocks": ("blocks", "blocks_memory"),
    "noisy": ("noisy",),
    "function-classes": ("function_classes",),
    "mesa": ("mesa",),
    "markov": ("markov", "markov_attention"),
}
PREDICTORS = {
    "nonlinear": {"zero", "trained", "control", "ridge"},
    "copy": {"zero", "gd", "constructed", "trained"},
    "softmax": {"gd", "closed_form", "trained", "constructed"},
    "layernorm": {"gd", "gd++", "closed_form", "trained"},
    "phase": {"gd", "closed_form", "trained"},
    "finite-data": {"gd", "closed_form", "trained"},
    "blocks": {"gd", "gd++", "closed_form", "constructed", "ridge", "trained"},
}
FIELDS = "task heads sensitivity_own sensitivity_next sensitivity_other adjusted_loss prefix".split()
STREAMS = {"regression", "ill-conditioned", "drift", "dynamics"}


def run(out, experiments) -> list[dict]:
    assert icl.main(["--out", str(out), "--experiment", *experiments, *FLAGS]) == 0
    return json.loads((out / "results.json").read_text())["rows"]


def check_run(made, experiments):
    """Every experiment has its predictors, its fields, a section of the report, and its figures."""
    out, rows = made
    report = (out / "report.md").read_text()
    assert {row["experiment"] for row in rows} == set(experiments) and all(set(FIELDS) <= set(row) for row in rows)
    for experiment in experiments:
        own = where(rows, experiment=experiment)
        assert f"## {icl.EXPERIMENTS[experiment].title}\n\n| " in report
        assert {row["predictor"] for row in own} == PREDICTORS.get(experiment, {row["predictor"] for row in own})
        assert {row["seed"] for row in where(own, predictor="trained")} in ({0, 1}, set())
        for name in FIGURES[experiment]:
            assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG") and f"figures/{name}.png" in report


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that the quick tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, run(out, QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A run that the long tests share."""
    out = tmp_path_factory.mktemp("runs") / "others"
    return out, run(out, LONG)


def test_every_experiment_has_its_rows_and_figures(finished):
    check_run(finished, QUICK)


@pytest.mark.slow
def test_the_other_experiments_have_their_rows_and_figures(others):
    check_run(others, LONG)
    assert {row["layers"] for row in where(others[1], experiment="nonlinear")} == {1, 2}
    functions = where(others[1], experiment="function-classes")
    assert {row["prefix"] for row in functions} >= {0, 1, 2, 4} and len({row["shift"] for row in functions}) == 12


def test_constructions_are_what_they_construct(finished):
    loss = {(row["task"], row["layers"], row["predictor"]): row["loss"] for row in finished[1]}
    assert loss["tokens apart", 2, "constructed"] == pytest.approx(loss["tokens apart", 1, "gd"], rel=1e-9)
    solved = loss["anisotropic, noisy", 1, "closed_form"]
    assert loss["anisotropic, noisy", 1, "constructed"] == pytest.approx(solved, rel=1e-9)
    assert loss["mixed noise", 2, "constructed"] == pytest.approx(loss["mixed noise", 2, "diagonal"], rel=1e-9)


def test_adjusted_losses_are_above_those_of_the_oracle(finished):
    mixed = where(finished[1], task="mixed noise")
    (oracle,) = where(mixed, predictor="oracle")
    for row in mixed:
        assert row["adjusted_loss"] == pytest.approx(row["loss"] - oracle["loss"], abs=1e-12)


def test_rows_tell_models_and_seeds_apart(finished):
    trained = where(finished[1], predictor="trained")
    copies = where(trained, experiment="copy")
    assert {(row["attention"], row["seed"]) for row in copies} == {("softmax", 0), ("softmax", 1), ("linear", 0)}
    assert {row["heads"] for row in where(trained, experiment="softmax")} == {1, 2}
    assert all(row["train_loss"] > 0 for row in where(trained, experiment="finite-data"))


@pytest.mark.slow
def test_blocks_are_told_apart_and_constructed_ones_are_gd_plus_plus(others):
    blocks = where(others[1], experiment="blocks")
    trained = where(blocks, predictor="trained")
    assert {(r["layers"], r["heads"], r["attention"], r["layernorm"], r["training_tasks"], r["seed"]) for r in trained} == {
        (*sizes, seed)
        for seed in (0, 1)
        for sizes in ((2, 3, "softmax", False, None), (2, 3, "linear", True, None), (1, 3, "softmax", False, 24))
    }
    assert all(row["train_loss"] > 0 for row in trained if row["training_tasks"])
    row = {row["predictor"]: row for row in where(blocks, layers=2, start=None)}
    assert set(row) == {"gd", "gd++", "closed_form", "constructed", "ridge"}
    assert row["constructed"]["loss"] == pytest.approx(row["gd++"]["loss"], rel=1e-9)
    assert row["constructed"]["cosine"] == pytest.approx(1, abs=1e-6)  # 1e-8 is added to norms of order 0.1


@pytest.mark.slow
def test_mesa_layers_are_ridge_and_stay_exact_in_float32(others):
    told = where(others[1], experiment="mesa")
    assert {row["task"] for row in told} == STREAMS | {"rounding"}
    for task in STREAMS:
        loss = {row["predictor"]: row["loss"] for row in where(told, task=task)}
        mesa = [loss["mesa, recursion"], loss["mesa, conjugate gradients"]]
        assert mesa[0] == pytest.approx(mesa[1], rel=1e-9)
        assert (mesa[0] == pytest.approx(loss["ridge"], rel=1e-9)) == (task != "drift")
        assert mesa[0] < loss["linear attention"]
    rounding = {(row["inputs"], row["forgetting"], row["predictor"]): row for row in where(told, task="rounding")}
    assert len(rounding) == 3 * 2 * 3 + 2
    for (_, _, predictor), row in rounding.items():
        assert predictor == "mesa, Sherman-Morrison" or (row["float32_error"] < 1e-3 and row["fails_at"] is None)


@pytest.mark.slow
def test_constructed_layers_are_the_posterior_mean_of_a_chain(others):
    rows = where(others[1], experiment="markov")
    by_name = {row["predictor"]: row for row in rows}
    assert list(by_name) == ["uniform", "unigram", "bigram", "cache row", "constructed", "trained"]
    trained = where(rows, predictor="trained")
    assert [(row["symbols_before"], row["seed"]) for row in trained] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert by_name["constructed"]["loss"] == pytest.approx(by_name["bigram"]["loss"], rel=1e-5)
    assert by_name["constructed"]["max_difference"] < 1e-12 and by_name["cache row"]["max_difference"] < 1e-12
    assert by_name["cache row"]["count_difference"] < 1e-11  # read back through a logarithm
    assert abs(by_name["bigram"]["kl_bigram"]) < 1e-6 < by_name["unigram"]["kl_bigram"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--training-tasks 0", "--training-tasks"),
        ("--diagonal-layers 0", "--diagonal-layers"),
        ("--experiment noisy --noise-levels -1.0", "levels"),
        ("--experiment function-classes --transformer 9 1 2", "--transformer 9 1 2"),
        ("--experiment function-classes --function-dim 0", "dim 0"),
        ("--steps 0", "--steps 0"),
        ("--blocks 12 0", "--blocks"),
        ("--block-scale -1.0", "--block-scale"),
        ("--block-kinds", "--block-kinds without a value"),
        ("--block-tasks 0", "--block-tasks"),
        ("--experiment blocks --block-tasks 1000", "use a multiple of --block-batch-size"),
        ("--block-rate 0", "--block-rate"),
        ("--wave-layers 0", "--wave-layers"),
        ("--chain-states 1", "--chain-states 1"),
        ("--chain-length 1", "--chain-length 1"),
        ("--chain-alpha 0", "--chain-alpha 0"),
        ("--tokens 0", "--tokens 0"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert icl.main(["--out", str(tmp_path / "run"), *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_figures_and_experiments_are_those_of_the_groups():
    assert set(FIGURES) == {*icl.GROUPS["beyond"], "mesa", "markov"} == {*QUICK, *LONG}
