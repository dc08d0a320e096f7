"""launch.digits, end to end on small data: what it writes, what it refuses, and that it resumes exactly."""

import functools
import gzip
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from files import idx_bytes
from PIL import Image

from jexplicit.data.image_files import FILES
from jexplicit.data.images import pixel_features, read_images
from jexplicit.nn import training
from jexplicit.runs.bounds import check_bounds
from jexplicit.runs.checkpoints import load_checkpoint
from jexplicit.runs.results import read_events
from launch.classify import main as classify
from launch.digits import __main__ as digits
from launch.digits import methods as digits_methods
from launch.digits import training as digits_training
from launch.digits.classifiers import load_classifier
from launch.digits.config import Config
from launch.digits.methods import guesses_path
from launch.digits.report import read_scan, row_name, write_report
from launch.digits.run import check
from launch.digits.training import stopping_epoch

SMALL = "--limit 200 --epochs 3 --batch-size 50 --sweeps 8 --feature-sweeps 6 --quadratic-sweeps 4 --filters 6 --directions 12"
KERNEL = "--frequencies 20 --axes 15 --kernel-sweeps 3"
FLAGS = [*SMALL.split(), *KERNEL.split(), "--hidden", "8", "--logistic-iterations", "5", "--patience", "1"]
FIRST = ("cold", "warm", "network")
FIELDS = "method layers test_accuracy train_accuracy epochs seconds priming_number backprop_free".split()


def rows(out) -> list[dict]:
    return json.loads((out / "results.json").read_text())["rows"]


def without_seconds(row: dict) -> dict:
    return {name: value for name, value in row.items() if not name.endswith(("seconds", "peak_bytes"))}


def row(out, method: str, **wanted) -> dict:
    return next(r for r in rows(out) if r["method"] == method and all(r[name] == value for name, value in wanted.items()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that the read-only tests share."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert digits.main(["--out", str(out), *FLAGS]) == 0
    return out


def test_a_run_writes_a_row_per_model_with_the_promised_fields(finished):
    assert [(r["method"], r["layers"], r["features"], r["solver"], r.get("stop")) for r in rows(finished)] == [
        ("explicit", 1, "pixels", "explicit", None),
        ("explicit", 2, "pixels", "explicit", None),
        ("delta", 1, "pixels", "explicit", None),
        ("mean_cooccurrence", 1, "pixels", "explicit", None),
        ("intercept", 1, "pixels", "scaling", None),
        ("scaling", 1, "pixels", "scaling", None),
        ("quadratic", 1, "pixels", "quadratic", None),
        *[
            ("features", 1, kind, solver, None)
            for kind in ("patches", "random")
            for solver in ("explicit", "scaling", "quadratic")
        ],
        *[("kernel", 1, "kernel", solver, None) for solver in ("least_squares", "softmax")],
        ("logistic_regression", 1, "pixels", "lbfgs", None),
        *[("network", 2, "pixels", "adam", stop) for stop in ("patience", "rise")],
        *[("cold", n, "pixels", "adagrad", stop) for n in (1, 2) for stop in ("patience", "rise")],
        *[("warm", n, "pixels", "adagrad", stop) for n in (1, 2) for stop in ("patience", "rise")],
        *[("solved_second", 2, first, solver, None) for first in FIRST for solver in ("explicit", "quadratic")],
    ]
    for r in rows(finished):
        assert {*FIELDS, "sha256", "mean_norm"} <= set(r)
        assert 0 <= r["test_accuracy"] <= 1 and r["seconds"] > 0
        assert r["backprop_free"] == (r["method"] not in ("cold", "warm", "network", "solved_second", "logistic_regression"))


def test_a_run_leaves_the_files_of_the_contract(finished):
    for name in ("config.json", "environment.json", "metrics.jsonl", "report.md", "scan.csv", "checkpoints/warm_1"):
        assert (finished / name).exists(), name
    for name in ("scan", "curves", "columns", "wrong", "methods", "sweeps"):
        assert (finished / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list((finished / "checkpoints").glob("*.partial"))


def test_the_report_is_rebuilt_from_the_run_folder_alone(finished):
    before = (finished / "report.md").read_text()
    assert "| warm | 2 | rise |" in before and "1 layer, rise: warm stops after" in before
    (finished / "report.md").unlink()
    write_report(finished)
    assert (finished / "report.md").read_text() == before


def test_the_scan_has_the_explicit_row_s_accuracy_around_its_k(finished):
    scan, explicit = read_scan(finished), row(finished, "explicit", layers=1)
    np.testing.assert_array_equal(scan["K"], np.arange(1, 65))
    near = scan["test_accuracy"][[int(explicit["priming_number"]) - 1, int(explicit["priming_number"])]]
    # K lies between these two integers, and an image may change sides between them
    assert near.min() - 1 / 200 <= explicit["test_accuracy"] <= near.max() + 1 / 200


def test_sweeps_never_raise_the_loss(finished):
    events = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    sweeps = [e for e in events if e["event"] == "sweep"]
    curves = {(e["features"], e["solver"]) for e in sweeps}
    assert len(curves) == 6
    for curve in curves:
        losses = [e["loss"] for e in sweeps if (e["features"], e["solver"]) == curve]
        assert np.all(np.diff(losses) < 1e-6)  # float32 means of losses of order 1


def test_the_rows_of_the_kernel_say_what_they_took_and_how_calibrated_they_are(finished):
    squares, softmax = (row(finished, "kernel", solver=solver) for solver in ("least_squares", "softmax"))
    for r in (squares, softmax):
        assert r["dimensions"] == 40 and r["peak_bytes"] > 1e8 and r["ridge"] in Config("x").ridges
        assert r["seconds"] == pytest.approx(r["feature_seconds"] + r["solve_seconds"])
        assert 0 < r["calibration_error"] < 1 and 0.01 <= r["temperature"] <= 100
    assert softmax["solve_seconds"] > squares["solve_seconds"]  # which it starts from
    events = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    for part in ("softmax, nine tenths", "softmax, all images"):
        losses = [e["loss"] for e in events if e["event"] == "kernel_sweep" and e["part"] == part]
        assert len(losses) == 4 and np.all(np.diff(losses) < 1e-6)


def test_second_layers_stand_on_the_first_layers_of_the_trained_models(finished):
    """By NumPy: rectified units and a hundredth of their mean, F = H₂ᵀY, and `U = log F - (K - 1)/K log Σ F` (paper, Eq. 5)."""
    data = read_images("digits")
    H, H_test = (np.asarray(pixel_features(X[:200], 17), np.float64) for X in (data.train_images, data.test_images))
    dense = load_checkpoint(finished / "checkpoints" / "network_2")["params"]["hidden_1"]["Dense_0"]
    h, h_test = (np.maximum(x @ np.asarray(dense["kernel"], np.float64) + dense["bias"], 0) for x in (H, H_test))
    floor = 0.01 * h.mean()
    F, K = (h + floor).T @ np.eye(10)[data.train_labels[:200]], (h + floor).sum(axis=1).mean()
    U = np.log(F) - (K - 1) / K * np.log(F.sum(axis=0))
    r = row(finished, "solved_second", features="network", solver="explicit")
    assert r["priming_number"] == pytest.approx(K, rel=1e-4)  # a float32 mean
    guesses = ((h_test + floor) @ U).argmax(axis=1)
    assert (guesses == np.load(guesses_path(finished, r))).mean() >= 0.99  # ties within float32 may fall the other way


def test_one_temperature_calibrates_the_explicit_solution(finished):
    r = row(finished, "explicit", layers=1)
    assert r["temperature"] > 1 and r["calibrated_loss"] < r["test_loss"]  # correlated pixels count as independent evidence
    assert "1 layer, explicit: a temperature of" in (finished / "report.md").read_text()


def test_reliability_is_kept_for_every_model_and_drawn(finished):
    kept = {event["name"]: event for event in read_events(finished, "reliability")}
    models = [r for r in rows(finished) if guesses_path(finished, r).exists()]
    calibrated = {f"explicit, {layers}, one temperature" for layers in ("1 layer", "2 layers")}
    assert set(kept) == calibrated | set(map(row_name, models)) and len(models) == len(rows(finished)) - 5  # not those of rise
    for r in models:
        curve = kept[row_name(r)]
        assert np.dot(curve["accuracy"], curve["share"]) == pytest.approx(r["test_accuracy"], abs=1e-6)  # a float32 mean
        gap = np.abs(np.array(curve["accuracy"]) - np.array(curve["confidence"]))
        if "calibration_error" in r:
            assert np.sum(gap * np.array(curve["share"])) == pytest.approx(r["calibration_error"], abs=1e-9)
    assert (finished / "figures" / "reliability.png").stat().st_size > 5_000


@pytest.mark.slow
def test_a_kernel_of_two_stages_and_copies_learns_every_class_where_labels_come_in_order_and_classifies(tmp_path):
    data = read_images("digits")
    order = np.argsort(data.train_labels[:600], kind="stable")
    np.savez(
        tmp_path / "sorted.npz",
        x_train=data.train_images[order] * 15,
        y_train=data.train_labels[order],
        x_test=data.test_images * 15,
        y_test=data.test_labels,
    )
    out = tmp_path / "run"
    small = "--frequencies 150 --axes 40 --filters 5 --threshold 0.5 --kernel-sweeps 2"
    flags = f"--methods kernel --descriptor patches {small} --second-filters 3 --copies 1"
    assert digits.main(["--out", str(out), "--data", str(tmp_path / "sorted.npz"), *flags.split()]) == 0
    assert [r["solver"] for r in rows(out)] == ["least_squares", "softmax"]
    for r in rows(out):
        labels = np.asarray(load_classifier(str(out), solver=r["solver"]).logits(data.test_images * 15)).argmax(axis=1)
        np.testing.assert_array_equal(labels, np.load(guesses_path(out, r)))
        recall = [(labels[data.test_labels == digit] == digit).mean() for digit in range(10)]
        assert min(recall) > 0.7  # 0.78 to 1, of 36 images of each; a class that was held out as a whole would have 0


def test_a_warm_start_begins_at_the_explicit_solution(finished, tmp_path):
    """Where nothing is held out; else it begins at the solution of the other images."""
    out = tmp_path / "run"
    assert digits.main(["--out", str(out), *FLAGS, "--methods", "explicit", "warm", "--stop-on", "train"]) == 0
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    starts = [e for e in events if e["event"] == "epoch" and e["epoch"] == 0]
    for layers in (1, 2):
        begun = next(e for e in starts if e["layers"] == layers)
        for field in ("test_accuracy", "train_accuracy"):
            assert begun[field] == row(out, "explicit", layers=layers)[field]
        assert begun["deciding_loss"] == pytest.approx(begun["train_loss"], rel=1e-6)
    assert row(out, "warm", layers=1)["explicit_epoch"] == 0


@pytest.mark.parametrize(
    ("losses", "patience", "expected"),
    [
        ([3, 2, 1], 1, (2, False)),
        ([3, 2, 2.5, 1], 1, (2, True)),
        ([3, 2, 2.5, 1, 1.1, 1.2], 2, (5, True)),
        ([3, 4], 1, (1, True)),
        ([3, 2, 2], 1, (2, True)),
        ([3], 1, (0, False)),
    ],
)
def test_rules_of_stopping(losses, patience, expected):
    assert stopping_epoch(losses, patience=patience) == expected


def test_the_rise_row_is_of_the_epoch_before_the_rise(tmp_path):
    out = tmp_path / "run"
    wild = ["--methods", "cold", "--layers", "1", "--epochs", "12", "--patience", "4", "--learning-rate", "2"]
    assert digits.main(["--out", str(out), *FLAGS, *wild]) == 0
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    curve = [e for e in events if e["event"] == "epoch"]
    losses = [e["deciding_loss"] for e in curve]
    risen = row(out, "cold", stop="rise")
    n = risen["epochs"]
    assert risen["stopped"] and losses[n] >= losses[n - 1] and np.all(np.diff(losses[:n]) < 0)
    assert risen["best_epoch"] == n - 1 and risen["test_accuracy"] == curve[n - 1]["test_accuracy"]
    assert row(out, "cold", stop="patience")["epochs"] >= n


def test_an_existing_run_is_not_overwritten_and_not_changed(finished, capsys):
    before = rows(finished)
    assert digits.main(["--out", str(finished), *FLAGS]) == 2
    assert "--resume" in capsys.readouterr().err
    assert digits.main(["--out", str(finished), "--resume", "--sweeps", "9"]) == 2
    assert "sweeps = 8 (now 9)" in capsys.readouterr().err.replace("\n", " ")
    assert rows(finished) == before


_slow = pytest.mark.slow  # another fifteen seconds each


@pytest.mark.parametrize(
    ("of", "calls"),
    [
        pytest.param("save_model", 3, marks=_slow),
        pytest.param("unit_rows", 3, marks=_slow),
        pytest.param("_batch", 9, marks=pytest.mark.slow),
        pytest.param("_batch", 31, marks=_slow),
    ],
)
def test_a_run_interrupted_anywhere_resumes_to_the_same_rows(finished, tmp_path, monkeypatch, of, calls):
    module = digits_training if of == "_batch" else digits_methods
    original, made = getattr(module, of), 0

    def interrupted(*args, **kwargs):
        nonlocal made
        made += 1
        if made == calls:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(training, "_steps_between_checks", 2)
    monkeypatch.setattr(digits_training, "train", functools.partial(training.train, checkpoint_seconds=0.0))
    monkeypatch.setattr(module, of, interrupted)
    out = tmp_path / "run"
    assert digits.main(["--out", str(out), *FLAGS]) == 130
    assert len(rows(out)) < len(rows(finished))
    monkeypatch.setattr(module, of, original)
    assert digits.main(["--out", str(out), "--resume"]) == 0
    assert [without_seconds(r) for r in rows(out)] == [without_seconds(r) for r in rows(finished)]
    assert without_times(out / "report.md") == without_times(finished / "report.md")


def without_times(report) -> list[list[str]]:
    """The lines of a report, the last cell of a table's row (seconds) left out."""
    return [line.split("|")[:-2] if line.startswith("|") else [line] for line in report.read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_rows(finished, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "launch.digits", "--out", str(out), *FLAGS, "--resume"]
    for seconds in (6.0, 9.0, 12.0):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    # another process than the fixture's, with one device and float32: accuracies of 200 images, equal but for one or two
    for ours, theirs in zip(rows(out), rows(finished), strict=True):
        assert ours["method"] == theirs["method"] and abs(ours["test_accuracy"] - theirs["test_accuracy"]) <= 0.02


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--data mnist --data-dir nowhere", "nowhere"),
        ("--data digits --data-dir x", "embedded"),
        ("--preset nothing", "mnist"),
        ("--priming-number 0.5", "--priming-number 0.5"),
        ("--layers 0", "--layers"),
        ("--limit 5", "--limit 5"),
        ("--sweeps 0", "--sweeps 0"),
        ("--ridge 0", "--ridge 0"),
        ("--epochs 0", "--epochs 0"),
        ("--patience 0", "--patience 0"),
        ("--learning-rate -1", "--learning-rate -1"),
        ("--optimizer adagrat", "adagrat"),
        ("--methods", "--methods"),
        ("--methods features --patch 9", "--patch 9 of images 8 pixels wide"),
        ("--methods features --grid 7", "--grid 7 of 6 responses"),
        ("--methods kernel --descriptor patches --patch-sizes 3 9", "--patch-sizes 3 9 of images 8 pixels wide: use 2 to 8"),
        ("--methods kernel --descriptor patches --patch-sizes 1", "--patch-sizes 1 of images 8 pixels wide: use 2 to 8"),
        ("--methods solved_second", "--methods solved_second without a trained first layer: add network"),
        ("--methods solved_second cold --layers 2", "--methods solved_second without a trained first layer"),
        ("--methods kernel --grid 9", "--grid 9 of images 8 pixels wide: use at most 8"),
        (
            "--methods kernel --descriptor patches --second-filters 4 --grid 5",
            "--grid 5 of images 8 pixels wide with --second-filters: use at most 4 cells",
        ),
        ("--methods kernel --second-filters 4", "need --descriptor patches"),
        ("--methods kernel --octaves 3", "--octaves 3 of images 8 pixels wide: use at most 2"),
        ("--methods kernel --copies -1", "--copies -1"),
        (
            "--methods kernel --frequencies 500000",
            "--frequencies 500000: 4 matrices of 1000000 x 1000000 numbers take 16,000 GB",
        ),
        ("--methods kernel --ridges", "--ridges needs at least one value"),
        ("--methods kernel --scale 0", "--scale 0"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys, wrong, message):
    assert digits.main(["--out", str(tmp_path / "run"), *FLAGS, *wrong.split()]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", sorted(digits.PRESETS))
def test_every_preset_is_a_valid_configuration(name):
    check_bounds(digits.PRESETS[name].config)
    check(digits.PRESETS[name].config)
    assert digits.PRESETS[name].note


@pytest.mark.parametrize("name", ["fashion_mnist", "shapes"])
@pytest.mark.slow
def test_the_same_command_works_on_another_idx_data_set(tmp_path, name):
    """The digits as idx files of another size and with other names: 8 x 10 pixels, 5 classes."""
    data = read_images("digits")
    (tmp_path / "idx").mkdir()
    for part, file in FILES.items():
        kept = (data.train_labels if part.startswith("train") else data.test_labels) < 5
        array = getattr(data, part)[kept]
        if part.endswith("images"):
            array = np.pad(array * 15, ((0, 0), (0, 0), (1, 1)))
        (tmp_path / "idx" / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    out = tmp_path / "run"
    command = ["--out", str(out), "--data", name, "--data-dir", str(tmp_path / "idx"), *FLAGS]
    assert (
        digits.main([*command, "--methods", "explicit", "features", "warm", "--featurizers", "patches", "--layers", "1"]) == 0
    )
    assert {r["outputs"] for r in rows(out)} == {5} and {r["width"] for r in rows(out)} == {10}
    assert row(out, "explicit", layers=1)["test_accuracy"] > 0.8  # of 5 classes, from 200 images
    assert "82.86" not in (out / "report.md").read_text()  # the paper's numbers are of MNIST


@pytest.mark.slow
def test_the_reference_numbers_on_mnist(data_dir, tmp_path):
    out = tmp_path / "run"
    flags = ["--methods", "explicit", "features", "warm", "--featurizers", "patches", "--data-dir", f"{data_dir}/mnist"]
    # in a process of its own, as a user runs it: without optimisations early stopping comes at another epoch
    command = [sys.executable, "-m", "launch.digits", "--preset", "mnist", "--out", str(out), *flags]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    # measured elsewhere with the paper's preprocessing; 0.2 % is 20 images
    assert row(out, "explicit", layers=1)["test_accuracy"] == pytest.approx(0.8334, abs=0.002)
    assert row(out, "explicit", layers=2)["test_accuracy"] == pytest.approx(0.8364, abs=0.002)
    scan = read_scan(out)["test_accuracy"]
    expected = {1: 0.699, 2: 0.791, 5: 0.824, 10: 0.831, 50: 0.834, 784: 0.834}
    for K, accuracy in expected.items():
        assert scan[K - 1] == pytest.approx(accuracy, abs=0.001)
    assert row(out, "warm", layers=1, stop="patience")["test_accuracy"] >= 0.925
    assert row(out, "warm", layers=2, stop="patience")["test_accuracy"] >= 0.929
    assert max(r["test_accuracy"] for r in rows(out) if r["backprop_free"]) >= 0.97


# launch.classify

MODELS = [
    *[{"method": method, "layers": layers} for method in ("explicit", "cold", "warm") for layers in (1, 2)],
    *[
        {"method": method}
        for method in ("delta", "mean_cooccurrence", "intercept", "scaling", "quadratic", "logistic_regression", "network")
    ],
    *[{"method": "kernel", "solver": solver} for solver in ("least_squares", "softmax")],
    *[{"features": first, "solver": solver} for first in FIRST for solver in ("explicit", "quadratic")],
    *[{"features": kind, "solver": solver} for kind in ("patches", "random") for solver in ("explicit", "quadratic")],
]
GREY = np.full((2, 8, 8), 3, np.uint8)


@pytest.fixture(scope="module")
def image_file(tmp_path_factory):
    """The run's test images as a file."""
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, read_images("digits").test_images[:200])
    return path


@pytest.mark.parametrize("wanted", MODELS, ids=lambda wanted: " ".join(map(str, wanted.values())))
def test_every_model_gives_the_labels_that_the_run_has_saved(finished, image_file, wanted):
    model = load_classifier(str(finished), **wanted)
    assert wanted.items() <= model.row.items()
    labels = np.asarray(model.logits(np.load(image_file))).argmax(axis=1)
    np.testing.assert_array_equal(labels, np.load(guesses_path(finished, model.row)))
    accuracy = (labels == read_images("digits").test_labels[:200]).mean()
    assert accuracy == pytest.approx(model.row["test_accuracy"], abs=1e-6)  # a float32 mean


def test_the_command_prints_the_labels_of_the_best_model(finished, image_file, capsys):
    flags = ["--run", str(finished), "--images", str(image_file), "--top", "3"]
    assert classify([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_accuracy"] == max(row["test_accuracy"] for row in rows(finished) if row.get("stop") != "rise")
    right = np.array([int(image["label"]) for image in found["images"]]) == read_images("digits").test_labels[:200]
    assert right.mean() == pytest.approx(found["test_accuracy"], abs=1e-6)
    first = found["images"][0]
    assert first["image"].endswith("images.npy[0]") and len(first["top"]) == 3 and first["top"][0]["label"] == first["label"]
    assert first["top"][0]["probability"] >= first["top"][1]["probability"] >= first["top"][2]["probability"]
    assert classify(flags) == 0
    printed = capsys.readouterr()
    expected = ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in first["top"])
    assert printed.out.splitlines()[0] == f"{first['image']}: {expected}" and len(printed.out.splitlines()) == 200
    assert "test accuracy" in printed.err


def test_folders_of_pngs_give_their_own_labels(tmp_path, capsys):
    data = read_images("digits")
    for part, M in (("train", 100), ("test", 20)):
        for n in range(M):
            label = "even" if getattr(data, f"{part}_labels")[n] % 2 == 0 else "odd"
            path = tmp_path / "data" / part / label / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(15 * getattr(data, f"{part}_images")[n]).save(path)
    flags = ["--data", str(tmp_path / "data"), "--methods", "explicit", "--layers", "1"]
    assert digits.main(["--out", str(tmp_path / "run"), *flags]) == 0
    capsys.readouterr()
    assert classify(["--run", str(tmp_path / "run"), "--images", str(tmp_path / "data/test/odd"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"]
    assert {image["label"] for image in found} <= {"even", "odd"} and len(found) == sum(data.test_labels[:20] % 2)


@pytest.mark.parametrize(
    ("array", "flags", "message"),
    [
        (np.full((2, 8, 9), 3, np.uint8), [], r"wrong.npy\[0\] is 8 x 9, but the models of .* read 8 x 8: resize it"),
        (np.full((2, 8, 8), 17, np.uint8), [], "pixel 17: grey levels are 0 .. 16; rescale .*wrong.npy"),
        (np.full((2, 8, 8), 0.5), [], r"wrong.npy are float64 from 0.5 to 0.5.*: use \(16 \* X\)"),
        (np.ones((2, 8, 8, 3), np.uint8), [], "give grey images"),
        (GREY, ["--method", "explicit", "--layers", "3"], "--method explicit --layers 3: .* has no such"),
        (GREY, ["--run", "nowhere"], "no run at nowhere"),
    ],
)
def test_images_and_models_that_do_not_fit_are_refused(finished, tmp_path, capsys, array, flags, message):
    np.save(tmp_path / "wrong.npy", array)
    assert classify(["--run", str(finished), "--images", str(tmp_path / "wrong.npy"), *flags]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error), error
