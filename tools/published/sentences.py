"""The decimals that sentences of README.md and docs/ say: of which results they are, and which are quoted, from where."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

from tools.declarations import Row, Said, read_events, where


def _spreads(rows: Iterable[Row]) -> list[float]:
    """The mean accuracy and the standard deviation over seeds of each variant."""
    seeds = [[row["test_accuracy"] for row in rows if row["variant"] == name] for name in {row["variant"] for row in rows}]
    return [number for accuracies in seeds for number in (mean(accuracies), stdev(accuracies))]


def _behind_cold(rows: Iterable[Row]) -> list[float]:
    """How far the solved starts end behind the cold one."""
    losses = {row["start"]: row["dev_loss"] for row in rows if "start" in row}
    return [losses[start] - losses["cold"] for start in ("explicit", "log-linear")]


def _slope_corrections(rows: Iterable[Row]) -> list[float]:
    """K (slope - 1)."""
    return [row["radius"] * (row["scaling_slope"] - 1) for row in where(rows, method="explicit")]


def _agreements(_: Iterable[Row]) -> list[float]:
    """How far clusters agree with classes, means over seeds."""
    events = read_events("autoencoder", "code")
    return [mean(event["agreement"] for event in where(events, name=name)) for name in {event["name"] for event in events}]


def _millions_of_tokens(rows: Iterable[Row]) -> list[float]:
    return [row["train_tokens"] / 1e6 for row in rows]


SAID: Mapping[str, Sequence[Said]] = {
    "docs/index.md": [Said("sentences-index")],
    "docs/digits.md": [
        Said("sentences-digits"),
        Said("mnist-priming"),
        Said("mnist", ["mean_norm"]),
        Said("mnist", ["test_accuracy"], {"method": "quadratic"}),
        Said("mnist", ["test_loss"], {"method": ("explicit", "delta", "mean_cooccurrence", "intercept")}),
        Said(
            "mnist",
            ["temperature", "calibrated_loss", "calibration_error", "calibrated_error"],
            {"method": "explicit"},
        ),
        Said("mnist-best", ["test_accuracy"]),
    ],
    "docs/networks.md": [
        Said("sentences-networks"),
        Said("names-starts", _behind_cold),
        Said("mnist-fcnn", ["test_accuracy"]),
        Said("names-8", ["dev_loss"], {"method": "log-linear"}),
        Said("names-8-large", ["dev_loss"], {"method": "mlp-cold"}),
        Said("names", ["dev_loss"], {"method": ("explicit", "log-linear", "mlp-cold")}),
        Said("autoencoder", _agreements),
        Said("autoencoder", ["largest_spectral_radius"], {"name": "over-parameterised, relu, weights x 0.4"}),
    ],
    "docs/comparisons.md": [
        Said("compare-objectives", _spreads, {"group": "adam, saturated outputs"}),
        Said("compare-optimizers", _spreads, {"group": "spacing of rates, adam"}),
        Said("compare-optimizers", ["learning_rate"], {"variant": "8 exponential rates"}),
        Said("compare-samplers", _spreads),
    ],
    "docs/language_models.md": [
        Said("sentences-language-models"),
        Said("babylm", ["train_perplexity"], {"method": "explicit", "radius": 1}),
        Said("babylm-trained", ["train_perplexity", "dev_perplexity"], {"method": "optimum"}),
        Said("babylm-sweeps", ["dev_perplexity"]),
        Said("babylm", ["scaling_slope"]),
        Said("babylm", _slope_corrections),
        Said("babylm", _millions_of_tokens),
        Said("docs-delta", _millions_of_tokens),
        Said("docs-delta", ["scaling_slope", "delta"]),
        Said("babylm-trained", ["last_train_perplexity", "last_dev_perplexity"], {"method": "warm", "radius": 1}),
        Said("babylm-methods", ["implied_slope"]),
    ],
    "docs/counted_not_trained.md": [
        Said("sentences-counted-not-trained"),
        Said("grammar", ["accuracy", "bits_per_byte"]),
        Said("judge-blimp", ["accuracy"], {"method": "ngram"}),
        Said("babylm-methods", ["bits_per_byte"], {"method": "ngram"}),
    ],
    "docs/in_context.md": [Said("sentences-in-context")],
    "docs/learned_rules.md": [Said("sentences-learned-rules")],
    "docs/speed.md": [Said("sentences-speed"), Said("babylm", _millions_of_tokens)],
    "docs/scaling_out.md": [Said("sentences-scaling-out"), Said("trillion-tokens", ["seconds"], {"stage": "count"})],
    "docs/trillion_tokens.md": [Said("sentences-trillion-tokens")],
}

_python = "the version of Python"
_paper = "the paper"
_steps = "2 η √T for the steps and the rate that the sentence names"
_chip = "an assumption of launch/bench/pod.py and compile.py"
QUOTED: Mapping[str, Mapping[str, str]] = {
    "README.md": {"1.4697": "nanoGPT's README", "2.0": "the licence"},
    "docs/index.md": {"3.11": _python},
    "docs/recipes/rows.md": dict.fromkeys(("0.8", "0.64"), "the output above the sentence"),
    "docs/digits.md": {
        "105.99": _paper,
        "0.1": "a learning rate",
        "0.01": "a learning rate",
        "0.28": "1 / 360 images",
        "99.57": "ScatNet-2",
        "99.61": "convolutional kernel networks",
        "99.4": "SoftHebb, Tsetlin machines, Forward-Forward",
        "98.6": "Forward-Forward",
        "99.38": "PCANet",
    },
    "docs/networks.md": {"3.3": "a section of the paper"},
    "docs/comparisons.md": {
        "0.9975": "the sigmoid of 6",
        "0.0025": "the sigmoid of -6",
        "0.01": "the first of five learning rates",
        "0.0001": "the first of eight learning rates",
        "0.14": "the second of eight numbers from 0.0001 to 1, equally far apart",
        "0.02": "the share of the rarest class",
    },
    "docs/language_models.md": {
        "85.4": _paper,
        "40.1": _paper,
        "2.2": "a section of the paper",
        "0.1": "a learning rate",
        "0.01": "the paper's learning rate",
        "0.6": _steps,
        "1.8": _steps,
        "5.1": _steps,
        "0.02": "the range of random tables",
    },
    "docs/counted_not_trained.md": {"61.2": "the authors of BLiMP, of a 5-gram of Gigaword"},
    "docs/in_context.md": {
        "0.20623": "d s/2 (1 - N / (κ + d + N - 2)) at κ = 1.8, s = 1/12",
        "0.0005": "a learning rate",
        "0.003": "a learning rate",
        "3.17": "log₂ 9",
        "6.34": "2 log₂ 9",
        "0.25": "the variance of the noise",
        "0.5": "a standard deviation of the noise",
        "0.1": "a standard deviation of the noise",
    },
    "docs/learned_rules.md": {
        "1.14": "f_synapse of icl/blur/genomes/hebbian.json",
        "0.16": "depth of icl/blur/genomes/digits.json",
        "0.05": "an exponent of depth",
        "0.5": "an exponent of depth",
    },
    "docs/speed.md": {"2.13": "the version of PyTorch"},
    "docs/scaling_out.md": {"2.5": _chip, "3.35": _chip},
    "docs/trillion_tokens.md": dict.fromkeys(("3.35", "4.00", "1.20", "2.5"), _chip),
}
