"""What experiments compute on the host, by hand: shares, means of seeds; and that their presets are valid."""

import dataclasses
import pkgutil
from typing import Any

import numpy as np
import pytest

from jexplicit.runs.bounds import check_bounds
from launch.blur import config as blur
from launch.blur.tasks import mean_and_spread
from launch.digits import config as digits
from launch.digits.solved import check as check_digits
from launch.digits.solved import most_accurate
from launch.feature_machine.modular import circulant_share, modular_table
from launch.icl import __main__ as icl
from launch.icl.config import LayerFlags
from launch.icl.training import make_model, make_recipe, make_regression
from launch.kit.views import Results
from launch.networks import compare
from launch.networks.config import COMMANDS, checked


def test_presets_are_valid_configurations():
    for preset in digits.PRESETS.values():
        check_bounds(preset.config)
        check_digits(preset.config)
    for experiment in icl.COMMANDS.values():
        found: Any = pkgutil.resolve_name(str(experiment.run))
        check = getattr(found, "EXPERIMENT", found).check
        assert "tiny" in experiment.presets
        for preset in experiment.presets.values():
            check_bounds(preset.config)
            check(preset.config)
            assert preset.note and preset.config.out.startswith("runs/icl")
    for preset in (*blur.TRAIN.values(), *blur.TASKS.values()):
        check_bounds(preset.config)
    for preset in blur.TRAIN.values():
        blur.check(preset.config)
    for command in COMMANDS.values():
        assert "tiny" in command.presets
        for preset in command.presets.values():
            check_bounds(preset.config)
            config: Any = preset.config
            files = {"train": ("input.txt",)} if getattr(config, "corpus", "docs") == "text" else {}
            checked(dataclasses.replace(config, **files))
            assert preset.note and isinstance(preset.config, command.config)


def test_many_layers_have_the_clips_of_the_paper_s_code():
    config = LayerFlags(out="")
    assert [make_regression(make_model(config, K)).clip for K in (2, 3, 4, 10)] == [None, None, 10.0, 10.0]
    assert [make_recipe(config, K).gradient_clip for K in (1, 2, 3)] == [1e-3, 1e-3, 10.0] and make_recipe(config).b2 == 0.98


def test_of_equally_accurate_models_the_lower_held_out_loss_wins():
    rows = [{"dev_accuracy": a, "dev_loss": loss} for a, loss in ((None, None), (0.9, 1.5), (0.9, 0.2), (0.8, 0.1))]
    assert most_accurate(rows)["dev_loss"] == 0.2
    damaged = [{"dev_accuracy": a, "dev_loss": loss} for a, loss in ((float("nan"), 0.1), ("high", 0.1), (0.9, float("nan")))]
    assert most_accurate([*damaged, *rows])["dev_loss"] == 0.2


def test_a_summary_has_the_mean_the_spread_and_no_number_where_a_seed_diverged(tmp_path):
    base = {"variant": "a_b", "dev_loss": 1.0, "train_accuracy": 1.0, "test_accuracy": 0.5}
    (line,) = compare.summaries(Results(tmp_path, {}, [base, {**base, "dev_loss": 3.0}]))
    assert line["variant"] == "a b" and line["dev_loss"] == "2.000 ± 1.414" and line["test_accuracy"] == "50.0 ± 0.0"
    (line,) = compare.summaries(Results(tmp_path, {}, [base, {**base, "dev_loss": None}]))
    assert line["dev_loss"] == "all rates diverge" and line["test_accuracy"] == "50.0 ± 0.0"
    assert compare.summaries(Results(tmp_path, {}, [base]))[0]["dev_loss"] == "1.000"  # one seed has no spread


def test_the_table_is_that_of_the_operation():
    for name, f in (("add", lambda a, b: a + b), ("subtract", lambda a, b: a - b), ("multiply", lambda a, b: a * b)):
        X, y = modular_table(5, name)
        for x, result in zip(X, y, strict=True):
            a, b = x[:5].argmax(), x[5:].argmax()
            assert x.sum() == 2 and result == f(int(a), int(b)) % 5


def test_a_circulant_matrix_has_share_1_and_noise_has_little():
    row = np.random.default_rng(0).normal(size=9)
    circulant = np.stack([np.roll(row, n) for n in range(9)])
    assert circulant_share(circulant) == pytest.approx(1)
    assert circulant_share(np.random.default_rng(1).normal(size=(9, 9))) < 0.4  # 8 of 80 degrees of freedom
    assert circulant_share(np.zeros((9, 9))) == 0


def test_equal_numbers_of_correct_examples_are_ties():
    """Means of single-precision fractions are not."""
    one, other = (np.array(correct, np.float32) / np.float32(29) for correct in ((3, 7, 20), (10, 10, 10)))
    assert one.mean() != other.mean() or one.astype(float).mean() != other.astype(float).mean()
    assert mean_and_spread(one, 29)[0] == mean_and_spread(other, 29)[0] == pytest.approx(10 / 29, abs=1e-15)
    assert mean_and_spread(one, 29)[1] == pytest.approx(one.std(), rel=1e-6) and mean_and_spread(other, 29)[1] == 0
