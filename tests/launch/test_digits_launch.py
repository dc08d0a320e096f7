"""launch.digits and launch.classify on small data: what one run of all methods writes, what is refused, and resuming."""

import json
import re
import shutil
from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest
from run_folders import made, main, rows

from jexplicit.data.images import pixel_features, read_images
from jexplicit.runs.files import read_events
from jexplicit.solvers.explicit import fit_temperature, mean_loss
from launch.classify import main as classify
from launch.digits import Method
from launch.digits.solved import load_classifier, row_name
from launch.digits.trained import SOLVERS
from launch.kit.views import only

pytestmark = pytest.mark.slow

M = 100
DATA = read_images("digits", limit=M)


@pytest.fixture(scope="module")
def finished():
    """The run of all methods that most tests read."""
    return made(f"digits --limit {M} --epochs 8 --sweeps 8 --frequencies 20")


def test_a_run_has_a_row_per_model_and_each_is_loaded_with_its_test_accuracy(finished):
    found, report = rows(finished), (finished / "report.md").read_text()
    names = ("method", "layers", "features", "solver")
    assert [tuple(row[name] for name in names) for row in found] == [
        *[("explicit", layers, "pixels", "explicit") for layers in (1, 2)],
        *[(method, 1, "pixels", method) for method in ("scaling", "quadratic")],
        *[("kernel", 1, "kernel", solver) for solver in ("least_squares", "softmax")],
        ("trained_readout", 1, "kernel", "adamw"),
        *[("optimum", 1, "kernel", solver) for solver in SOLVERS],
        ("network", 2, "pixels", "adam"),
        ("cnn", 4, "pixels", "adamw"),
        *[(method, layers, "pixels", "adagrad") for method in ("cold", "warm") for layers in (1, 2)],
    ]
    trained = {"cold", "warm", "network", "cnn", "trained_readout"}
    assert {row["method"] for row in found if row["backprop_free"]} == set(get_args(Method)) - trained
    for row in found:
        assert {"epochs", "priming_number", "sha256", "mean_norm"} <= set(row) and row["seconds"] > 0 < row["dev_loss"]
        assert row["parameters"] <= row["bytes"] / 4 and (row["method"] not in trained | {"kernel"} or row["flops"] > 0)
        assert f"| {row_name(row)} | {100 * row['dev_accuracy']:.2f} | {100 * row['test_accuracy']:.2f} |" in report
        model = load_classifier(str(finished), **{name: row[name] for name in names})
        right = np.asarray(model.logits(DATA.test_images)).argmax(axis=1) == DATA.test_labels
        assert model.row == row and right.mean() == pytest.approx(row["test_accuracy"], abs=1e-6), row_name(row)


def test_temperature_and_warm_start_are_of_the_solution_of_nine_tenths_by_numpy(finished):
    """`U = log F - (K - 1)/K log Σ F`."""
    order = np.random.default_rng(0).permutation(M)
    held_out, fitted = order[: M // 10], order[M // 10 :]
    H, G = (np.asarray(pixel_features(images, 17), np.float64) for images in (DATA.train_images, DATA.test_images))
    Y, Z, K = np.eye(10)[DATA.train_labels], np.eye(10)[DATA.test_labels], H.sum(axis=1).mean()
    F = H[fitted].T @ Y[fitted]
    U = np.log(F) - (K - 1) / K * np.log(F.sum(axis=0))
    start = only(read_events(finished, "epoch"), method="warm", layers=1, epoch=0)
    assert start["test_loss"] == pytest.approx(mean_loss(jnp.asarray(G @ U), jnp.asarray(Z)), rel=1e-4)
    row = only(rows(finished), method="explicit", layers=1)
    temperature = fit_temperature(jnp.asarray(H[held_out] @ U), jnp.asarray(DATA.train_labels[held_out]))
    assert row["temperature"] == pytest.approx(temperature, rel=1e-3)


def test_the_reference_numbers_on_mnist(data_dir, tmp_path):
    given = ["--data-dir", f"{data_dir}/mnist", "--methods"]
    assert main("digits --preset mnist", tmp_path / "all", *given, "explicit") == 0
    # measured elsewhere with the paper's preprocessing; 0.2 % is 20 images
    assert [row["test_accuracy"] for row in rows(tmp_path / "all")] == pytest.approx([0.8334, 0.8364], abs=0.002)
    flags = ["--frequencies", "256", "--limit", "3000"]
    assert main("digits --preset mnist", tmp_path / "few", *given, "kernel", *flags) == 0
    assert max(row["test_accuracy"] for row in rows(tmp_path / "few")) >= 0.97


def test_classify_prints_the_labels_of_the_best_model_and_refuses_what_does_not_fit(finished, tmp_path, capsys):
    def answer(array: np.ndarray, *flags: str, status: int = 0, run=finished) -> str:
        np.save(tmp_path / "images.npy", array)
        capsys.readouterr()
        assert classify(["--run", str(run), "--images", f"{tmp_path}/images.npy", *flags]) == status
        return " ".join(capsys.readouterr().err.split()) if status else capsys.readouterr().out

    printed = answer(DATA.test_images, "--top", "3").splitlines()
    found = json.loads(answer(DATA.test_images, "--top", "3", "--json"))
    best = max(row["dev_accuracy"] for row in rows(finished))  # and not by the test images
    assert found["test_accuracy"] in [row["test_accuracy"] for row in rows(finished) if row["dev_accuracy"] == best]
    right = np.array([int(image["label"]) for image in found["images"]]) == DATA.test_labels
    assert right.mean() == pytest.approx(found["test_accuracy"], abs=1e-6) and len(printed) == M
    first = found["images"][0]
    guesses = ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in first["top"])
    assert printed[0] == f"{first['image']}: {guesses}" and first["image"].endswith("images.npy[0]")
    assert len(first["top"]) == 3 and first["top"][0]["label"] == first["label"]
    grey = np.full((2, 8, 8), 3, np.uint8)
    for array, flags, message in (
        (grey[:, :, 1:], [], r"images.npy\[0\] is 8 x 7, but the models of .* read 8 x 8: resize it"),
        (grey + 14, [], "pixel 17: grey levels are 0 .. 16; rescale .*images.npy"),
        (grey, ["--method", "explicit", "--layers", "3"], "--method explicit --layers 3: .* has no such"),
    ):
        assert re.search(message, answer(array, *flags, status=2))
    other = shutil.copytree(finished, tmp_path / "run")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "stop": ["patience", "rise"]}))
    assert "run is a run of another version: fit its models again, by jexplicit digits" in answer(grey, status=2, run=other)
