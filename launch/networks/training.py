"""Experiments of launch.networks: autoencoders, comparisons of a part of a network, language models."""

import functools
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jexplicit.data import text as corpora
from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.data.streams import contexts, tokenize_corpus
from jexplicit.data.text import Corpus, TextSizes, text_corpus
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_documents
from jexplicit.lm.evaluation import BLOCK, comparable_measures, document_losses, loss_fields, spelling
from jexplicit.lm.generation import generate_text
from jexplicit.lm.model import LanguageModel, network_model
from jexplicit.lm.text_model import save_run_model
from jexplicit.nn import networks, sequences
from jexplicit.nn.names import InitializerName, NormName, ObjectiveName
from jexplicit.nn.networks import FullyConnected, Scores, init_variables, initial_state, network_outputs, network_step
from jexplicit.nn.training import TrainingResult, epoch_order, make_optimizer, make_schedule, objective, shorter_epochs
from jexplicit.runs.devices import key_of_seed, load_checkpoint, on_cpu, save_checkpoint, use_devices
from jexplicit.runs.files import read_texts, write_json
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, groups, pivot_table, section, texts, where
from launch.networks import AutoencoderConfig, CompareConfig, Descent, MLPConfig, Pictures, TransformerConfig, checked

_scored_examples = 100_000  # of the train loss, at most


class _SplitData(NamedTuple):
    """Inputs and targets of the train, dev or test examples."""

    X: np.ndarray
    Y: np.ndarray


class Data(NamedTuple):
    """Examples, the number of outputs N, and fields of rows."""

    train: _SplitData
    dev: _SplitData
    test: _SplitData
    outputs: int
    about: dict[str, Any]


def _open_pictures(config: Pictures) -> Data:
    """The centred images of a subcommand."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    return centred_data(images)


def centred_data(images: Images) -> Data:
    """Centred pixels of standard deviation 1, and one-hot labels; dev is the last tenth."""
    X, X_test = (pixel_features(part, images.levels) for part in (images.train_images, images.test_images))
    Y, Y_test = (one_hot(labels, images.outputs) for labels in (images.train_labels, images.test_labels))
    kept = len(X) - max(1, len(X) // 10)
    mean = X[:kept].mean(axis=0)
    scale = float((X[:kept] - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    parts = ((X[:kept], Y[:kept]), (X[kept:], Y[kept:]), (X_test, Y_test))
    about = {"data": images.name, "sha256": images.sha256, "outputs": images.outputs}
    return Data(*(_SplitData((X - mean) / scale, Y) for X, Y in parts), outputs=images.outputs, about=about)


def fit(
    folder: RunFolder,
    about: Row,
    *network: Any,
    epochs: int,
    size: int,
    batch_size: int,
    measured: Callable[[int], Row],
    **options: Any,
) -> TrainingResult:
    """Train a network with its epochs logged; an interrupted training continues.

    network, options: of `train_network`. about, measured: fields of the events of epochs, always and by step.
    """

    def on_epoch(entry: Any) -> None:
        step = round(entry["epoch"]) * -(-size // batch_size)
        folder.log(event="epoch", **about, **entry, step=step, **measured(step))
        if round(entry["epoch"]) % max(1, epochs // 20) == 0:
            losses = ", ".join(f"{part} {entry[f'{part}_loss']:.4f}" for part in ("train", "dev") if f"{part}_loss" in entry)
            console.print(f"    step {step:,}: {losses}, {entry.get('seconds', 0):.0f} s")

    options |= {"epochs": epochs, "size": size, "batch_size": batch_size, "on_epoch": on_epoch}
    with stage(f"training {about['name']}", "examples") as progress:
        return networks.train_network(*network, progress=progress, **options)


def _train_model(
    folder: RunFolder,
    flags: Descent,
    data: Data,
    network: nn.Module,
    loss_name: str,
    *,
    name: str,
    variables: Any = None,
    epoch_examples: int | None = None,
    finish: Callable[[Any], Row] = lambda variables: {},
    **more: Any,
) -> list[Row]:
    """Train a network by Adam, save its best epoch, and return its row.

    variables: the initial ones; default, random. finish: `variables -> more fields` of the trained network. more: fields.
    """
    loss, M, seen = objective(loss_name), len(data.train.X), list[Scores]()
    size = min(epoch_examples or M, M)
    batch_size = min(flags.batch_size or size, size)
    epoch_steps = -(-size // batch_size)
    rate = make_schedule("cosine", flags.learning_rate, flags.epochs * epoch_steps)
    optimizer = make_optimizer("adamw" if flags.weight_decay else "adam", rate, weight_decay=flags.weight_decay)
    score = networks.scorer(network, loss)
    variables = variables or init_variables(network, key_of_seed(flags.seed), data.train.X[:2])
    path = folder.path / "checkpoints" / name
    partial = path.with_name(f"{name}.partial")

    def evaluate(variables: Any) -> float:
        seen.append(score(variables, *data.dev))
        return seen[-1].loss

    def order(seed: int, epoch: int) -> np.ndarray:
        return epoch_order(seed, epoch, M)

    def batch(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data.train.X[m], data.train.Y[m]

    options: Any = {"size": size, "batch_size": batch_size, "epochs": flags.epochs, "seed": flags.seed, "checkpoints": partial}
    options |= {"order": order if size == M else shorter_epochs(order, M, size)}
    options |= {"measured": lambda step: {"dev_accuracy": seen[-1].accuracy}}
    result = fit(folder, {"name": name}, network, loss, optimizer, variables, batch, evaluate, **options)
    trained = result.params
    save_checkpoint(path, {kind: tree for kind, tree in trained.items() if tree})
    few = slice(None, None, -(-M // _scored_examples))
    parts = {"train": (data.train.X[few], data.train.Y[few]), "dev": data.dev, "test": data.test}
    scores = {part: score(trained, *examples) for part, examples in parts.items()}
    row = {f"{part}_loss": found.loss for part, found in scores.items()}
    if loss_name == "softmax_cross_entropy":
        row |= {"dev_perplexity": float(np.exp(row["dev_loss"])), "test_accuracy": scores["test"].accuracy}
    row |= {"steps": result.epochs * epoch_steps, "seconds": result.seconds, "epochs": result.epochs}
    row |= {"best_epoch": result.best_epoch, "first_loss": result.history[0]["dev_loss"]}
    row["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(trained["params"]))
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [{**row, **more, **finish(trained), **data.about}]


RESULTS = Table(
    [
        Column("network", "name"), Column("model", "model"), Column("first dev", "first_loss", ".3f"),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("dev perplexity", "dev_perplexity", ".2f"), Column("test %", "test_accuracy", ".2f", 100),
        Column("steps", "steps", ",d"), Column("s", "seconds", ".1f"),
    ],
    note="Losses are means per example, in nats for cross-entropies, at the epoch with the lowest dev loss; steps and seconds "
    "are those of the whole training.",
)  # fmt: skip
_log: Any = {"axes": {"xscale": "log", "yscale": "log", "ylabel": "dev loss"}, "size": (6.4, 4.2)}
CURVES = Lines("curves", "step", "dev_loss", "name", rows=lambda results: results.events("epoch", "name", "epoch"), **_log)


# --- autoencoders: linear ones, a bottleneck, anomalies, memories ----------------------------------------------------------

_anomaly = 8  # the class that is left out of training, to be detected by its reconstruction error
_bottleneck, _width = 16, 64  # of the layer, and of those on both sides of it
_memories, _memory_layers = 10, (256,) * 4  # examples of the over-parameterised networks, and their hidden layers
_iterations = 500  # of their maps
_starts_per_memory = 10
_noise = 0.5  # of these starts, in standard deviations of the data

Map = Callable[[Any], Any]


def _measure_autoencoders(config: AutoencoderConfig, folder: RunFolder) -> Iterator[Part]:
    """Solved and trained linear autoencoders, a bottleneck, and over-parameterised networks."""
    images = _open_pictures(config)
    if images.outputs <= _anomaly:
        raise ValueError(f"--data {config.data} has {images.outputs} classes: give images of more than {_anomaly}")
    D, normal = images.train.X.shape[1], [part.Y.argmax(axis=1) != _anomaly for part in images[:3]]
    parts = (_SplitData(part.X[kept], part.X[kept]) for part, kept in zip(images[:3], normal, strict=True))
    data = Data(*parts, outputs=D, about={**images.about, "anomaly": _anomaly})
    anomalies, few = images.test.X[~normal[2]], _SplitData(*(part[:_memories] for part in data.train))

    def auc(f: Map) -> float:  # how well the reconstruction error separates anomalies from test examples
        return networks.anomaly_auc(*(networks.reconstruction_errors(f(X), X) for X in _arrays(data.test.X, anomalies)))

    def solved() -> list[Row]:
        begin, f = time.perf_counter(), networks.linear_autoencoder(jnp.asarray(data.train.X), _bottleneck)
        row: dict[str, Any] = {"model": "linear, solved", "steps": 0, "anomaly_auc": auc(f), **data.about}
        for part, X in zip(("train", "dev", "test"), _arrays(data.train.X, data.dev.X, data.test.X), strict=True):
            row[f"{part}_loss"] = float(networks.reconstruction_errors(f(X), X).mean())
        return [{**row, "seconds": time.perf_counter() - begin}]

    yield {"name": "linear, solved"}, solved

    def trained(name: str, model: str, network: FullyConnected, flags: Descent, data: Data, **options: Any) -> Part:
        def finish(variables: Any) -> Row:
            f = functools.partial(network_outputs, network, variables)
            more = _attraction(config.seed, lambda x: f(x[None])[0], data) if "variables" in options else {}
            return {"anomaly_auc": auc(f), **more}

        options |= {"name": name, "model": model, "finish": finish}
        return {"name": name}, functools.partial(_train_model, folder, flags, data, network, "squared_error", **options)

    linear = FullyConnected((_bottleneck,), D, "linear", bias=False, weights="glorot_normal")
    yield trained("linear, trained", "linear, trained", linear, config, data)
    yield trained("bottleneck", "bottleneck", FullyConnected((_width, _bottleneck, _width), D), config, data)
    flags = Descent(config.out, config.seed, batch_size=0, epochs=config.memory_steps)
    # the few examples are dev too, which selects the step: a memory need not generalise
    remembered = data._replace(train=few, dev=few)
    for phi, scale in itertools.product(config.memory_activations, config.memory_scales):
        network = FullyConnected(_memory_layers, D, phi)
        start = jax.tree.map(lambda W, scale=scale: W * scale, init_variables(network, key_of_seed(config.seed), few.X[:2]))
        name, model = f"over-parameterised, {phi}, weights x {scale:g}", f"{len(_memory_layers)} x {_memory_layers[0]} {phi}"
        yield trained(name, model, network, flags, remembered, variables=start)


def _arrays(*parts: np.ndarray) -> Iterator[Array]:
    return map(jnp.asarray, parts)


def _attraction(seed: int, f: Map, data: Data) -> Row:
    """Whether a map contracts around the training examples, and leads back to them."""
    X, X_test = _arrays(data.train.X, data.test.X)
    with stage("iterating the map"):
        singular, radius = networks.contraction(f, X)
        starts = networks.add_noise(key_of_seed(seed), X, _noise, _starts_per_memory)
        own = np.repeat(np.arange(len(X)), _starts_per_memory)
        from_noise, from_test = (networks.recall(networks.iterate_map(f, x, _iterations), X) for x in (starts, X_test))
    return {
        "largest_singular_value": float(singular.max()),
        "largest_spectral_radius": float(radius.max()),
        "attractors": int((radius < 1).sum()),
        "recalled_from_noise": float(from_noise[np.arange(len(own)), own].mean()),
        "recalled_from_test": float(from_test.any(axis=1).mean()),
    }


def _anomalies(results: Results) -> list[Row]:
    """Errors of the autoencoders that are to find anomalies, over seeds."""
    shown = {"test_loss": (1, ".2f"), "anomaly_auc": (1, ".3f")}
    return _spreads(where(results.rows, name=("linear, solved", "linear, trained", "bottleneck")), "name", shown)


def _spreads(rows: Sequence[Row], by: str, shown: Mapping[str, tuple[float, str]]) -> list[Row]:
    """Mean ± standard deviation over seeds by name; shown: factor and format of fields."""
    lines = []
    for own in groups(rows, [by]).values():
        line = {**own[0], by: own[0][by].replace("_", " ")}
        for name, (scale, form) in shown.items():
            values = [scale * row[name] for row in own if row.get(name) is not None]
            spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
            line[name] = f"{mean(values):{form}}{spread}" if len(values) == len(own) else "all rates diverge"
        lines.append(line)
    return lines


_named = [Column("autoencoder", "name"), Column("half the squared error", "test_loss")]
ANOMALIES = Table([*_named, Column("area under the ROC curve", "anomaly_auc")], _anomalies)
_maps = Table(
    [
        Column("network", "name"), Column("AUC", "anomaly_auc", ".3f"),
        *(Column(f"largest {x}", f"largest_{x.replace(' ', '_')}", ".3f") for x in ("singular value", "spectral radius")),
        Column("attractors", "attractors", "d"),
        *(Column(f"from {x} %", f"recalled_from_{x}", ".0f", 100) for x in ("noise", "test")),
    ],
    rows=lambda results: [row for row in results.rows if "attractors" in row],
    note="A training example whose Jacobian has a spectral radius below 1 attracts the iterates of the map.",
)  # fmt: skip
_of_autoencoders = [RESULTS, CURVES, section("Anomalies", ANOMALIES), section("Memories", _maps)]
_title = "launch.networks autoencoder"
AUTOENCODER = Experiment("networks", AutoencoderConfig, _measure_autoencoders, _of_autoencoders, check=checked, title=_title)


# --- comparisons -----------------------------------------------------------------------------------------------------------
# A whole run is one compiled scan, under `vmap` over rates and seeds, so that nothing waits for the host. Epochs are whole
# batches: what is left of an order is dropped.

_saturation = 6.0  # of the output biases: a sigmoid has 0.9975, and a slope of 0.0025
_deep = 5  # hidden layers of the comparison of initialisers, as in Glorot & Bengio (2010)


class Variant(NamedTuple):
    """A network to train, and how."""

    name: str
    network: FullyConnected
    group: str = ""  # the panel of the figure
    value: float | None = None  # of what varies, for groups drawn against a number
    objective: ObjectiveName = "softmax_cross_entropy"
    optimizer: str = "sgd"
    rates: tuple[float, ...] = (0.1,)  # to try; the best has the lowest mean dev loss
    batch_size: int = 32  # 0: all examples
    epochs: int = 20
    start: Callable[[dict[str, Any]], dict[str, Any]] = lambda variables: variables  # from the random variables


class Outcome(NamedTuple):
    """A variant at its best rate, from S seeds."""

    rate: float
    rate_losses: Float[np.ndarray, " R"]  # mean dev losses of all rates, infinite where a run diverged
    scores: dict[str, Float[np.ndarray, " S"]]  # after the last epoch, such as `train_loss`
    curves: dict[str, Float[np.ndarray, "S E_1"]]  # the dev loss and accuracy by epoch, from the start on
    steps: int  # of each run


def train_variant(variant: Variant, data: Data, seeds: Sequence[int]) -> Outcome:
    """Train a variant from every seed at every rate, and keep the best rate."""
    M, network, loss = len(data.train.X), variant.network, objective(variant.objective)
    size = min(variant.batch_size or M, M)
    steps, epochs = M // size, range(1, variant.epochs + 1)
    orders = [[epoch_order(seed, epoch, M)[: steps * size].reshape(steps, size) for epoch in epochs] for seed in seeds]
    parts = {name: tuple(_arrays(*getattr(data, name))) for name in ("train", "dev", "test")}
    X, Y = parts["train"]

    def scores(state: Any, *names: str) -> dict[str, Array]:
        found = {}
        for name in names:
            z, Y = network_outputs(network, state.variables, parts[name][0]), parts[name][1]
            right = (z.argmax(axis=1) == Y.argmax(axis=1)).mean(dtype=z.dtype)
            found |= {f"{name}_loss": loss(z, Y).mean(), f"{name}_accuracy": right}
        return found

    def run(key: Array, order: Array, rate: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        optimizer = make_optimizer(variant.optimizer, rate)
        step = network_step(network, loss, optimizer, seed=key)
        start = initial_state(variant.start(init_variables(network, key, X[:2])), optimizer)

        def epoch(state: Any, order: Array) -> tuple[Any, dict[str, Array]]:
            state, _ = jax.lax.scan(lambda state, m: (step(state, (X[m], Y[m]))[0], None), state, order)
            return state, scores(state, "dev")

        state, later = jax.lax.scan(epoch, start, order)
        return scores(state, *parts), jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), scores(start, "dev"), later)

    every = jax.jit(jax.vmap(jax.vmap(run, (0, 0, None)), (None, None, 0)))
    keys, rates = jnp.stack([key_of_seed(seed) for seed in seeds]), jnp.asarray(variant.rates, jnp.float32)
    found = every(keys, jnp.asarray(np.array(orders), jnp.int32), rates)
    last = np.asarray(found[0]["dev_loss"], np.float64).mean(axis=1)
    rate_losses = np.where(np.isfinite(last), last, np.inf)
    best = int(rate_losses.argmin())
    ends, curves = jax.tree.map(lambda leaf: np.asarray(leaf[best], np.float64), found)
    return Outcome(variant.rates[best], rate_losses, ends, curves, variant.epochs * steps)


def variants_of(config: CompareConfig, outputs: int) -> Iterator[Variant]:
    """The variants of the comparison that the flags name."""
    make = functools.partial(Variant, rates=config.rates, epochs=config.epochs)

    def network(layers: int, **flags: Any) -> FullyConnected:
        return FullyConnected((config.width,) * layers, outputs, **flags)

    match config.what:
        case "normalisation":
            for norm, residual, depth in itertools.product(get_args(NormName), (False, True), config.depths):
                group = ("no norm" if norm == "none" else f"{norm} norm") + ", residual" * residual
                yield make(f"{group}, depth {depth}", network(depth, norm=norm, residual=residual), group, depth)
        case "objectives":
            tanh, starts = network(1, activation="tanh", output_scale=0.1), {"saturated": {"start": saturate}, "small": {}}
            optimizers = {"sgd": config.rates, "adam": tuple(rate / 10 for rate in config.rates)}
            for (optimizer, rates), start, name in itertools.product(optimizers.items(), starts, get_args(ObjectiveName)):
                group = f"{'descent' if optimizer == 'sgd' else optimizer}, {start} outputs"
                plan: Any = {"optimizer": optimizer, "rates": rates, "batch_size": 0, "epochs": 10 * config.epochs}
                yield make(f"{name}, {group}", tanh, group, objective=name, **plan, **starts[start])
        case "initializers":
            deep = functools.partial(network, _deep, activation="tanh", bias=False)
            for law in get_args(InitializerName):
                yield make(law, deep(weights=law), "initialisers")
            for scale in (0.1, 0.3, 1.0, 3.0, 10.0):
                yield make(f"glorot_normal x {scale:g}", deep(weights="glorot_normal", weight_scale=scale), "scales", scale)


def saturate(variables: dict[str, Any]) -> dict[str, Any]:
    """The network with output biases of ±6, by turns."""
    output = variables["params"]["output"]
    signs = 1 - 2 * (jnp.arange(len(output["bias"])) % 2)
    biases = _saturation * signs.astype(output["bias"].dtype)
    return {**variables, "params": {**variables["params"], "output": {**output, "bias": biases}}}


def _measure_variants(config: CompareConfig, folder: RunFolder) -> Iterator[Part]:
    """Every variant from every seed."""
    data, seeds = _open_pictures(config), range(config.seed, config.seed + config.seeds)

    def rows_of(variant: Variant) -> list[Row]:  # diverged runs have no numbers
        begin = time.perf_counter()
        with stage(f"{config.what}: {variant.name}"):
            outcome = train_variant(variant, data, seeds)
        shared: dict[str, Any] = {"comparison": config.what, "variant": variant.name, "group": variant.group}
        curves = {name: [_finite(seed) for seed in curve] for name, curve in outcome.curves.items()}
        folder.log(event="curves", **shared, **curves, rates=list(variant.rates), rate_losses=_finite(outcome.rate_losses))
        shared |= {"value": variant.value, "learning_rate": outcome.rate, "steps": outcome.steps, **data.about}
        shared["seconds"] = (time.perf_counter() - begin) / len(seeds)
        known = np.isfinite([values for name, values in outcome.scores.items() if name.endswith("loss")]).all(axis=0)
        scores = {name: _finite(np.where(known, values, np.nan)) for name, values in outcome.scores.items()}
        return [{**shared, "seed": seed, **{name: own[n] for name, own in scores.items()}} for n, seed in enumerate(seeds)]

    for variant in variants_of(config, data.outputs):
        yield {"variant": variant.name}, functools.partial(rows_of, variant)


def _finite(values: Any) -> list[float | None]:
    """Numbers for JSON."""
    return [x if np.isfinite(x) else None for x in np.asarray(values, float).tolist()]


def summaries(results: Results, **fields: Any) -> list[Row]:
    """Mean ± standard deviation over seeds, a line for each variant."""
    shown = {"train_accuracy": (100, ".1f"), "test_accuracy": (100, ".1f"), "dev_loss": (1, ".3f")}
    return _spreads(where(results.rows, **fields), "variant", shown)


_against = {"normalisation": "hidden layers", "initializers": "factor on the weights"}


def _curves(results: Results) -> list[Row]:
    """Dev accuracy by epoch, or test accuracy by number."""
    numbered = [row for row in results.rows if row.get("value") is not None]
    rows: list[Row] = [
        {"x": row["value"], "y": 100 * row["test_accuracy"], "hue": row["group"], "panel": f"by {_against[row['comparison']]}"}
        for row in numbered
        if row.get("test_accuracy") is not None
    ]
    for event in results.events("curves", "variant"):
        hue, panel = event["variant"].removesuffix(f", {event['group']}").replace("_", " "), event["group"]
        if not where(numbered, variant=event["variant"]):
            percent = 100 * np.array(event["dev_accuracy"], float).T  # by epoch and seed
            rows.append({"x": range(len(percent)), "y": percent.tolist(), "hue": hue, "panel": panel})
    return rows


_columns = [
    Column("variant", "variant"), Column("steps", "steps", ",d"), Column("best rate", "learning_rate", ".3g"),
    Column("train %", "train_accuracy"), Column("test %", "test_accuracy"), Column("dev loss", "dev_loss"),
]  # fmt: skip
SCALES = Table(_columns, lambda results: summaries(results, group="scales"))
BY_VALUE = pivot_table(  # of variants with a number, such as a depth
    [Column("test %", "group")],
    "number",
    Column("", "test_accuracy"),
    lambda results: [{**line, "number": f"{n:g}"} for line in summaries(results) if (n := line.get("value")) is not None],
)
_by_panel = {f"by {what}": {"xlabel": what, "ylabel": "test accuracy (%)", "xscale": "log"} for what in _against.values()}
_shown: Any = {"axes": {"xlabel": "epochs", "ylabel": "dev accuracy (%)"}, "by_panel": _by_panel, "size": (4.6, 3.2)}
_figure = Lines("comparison", "x", "y", "hue", "panel", _curves, **_shown)
_of_comparisons = [Table(_columns, summaries), BY_VALUE, _figure]
COMPARE = Experiment(
    "networks", CompareConfig, _measure_variants, _of_comparisons, check=checked, title="launch.networks compare"
)


# --- language models ---------------------------------------------------------------------------------------------------------

_docs_vocabulary = 1026


class Text(NamedTuple):
    """Token streams of train, dev and test, dev's sizes, the text's origin."""

    tokenizer: Tokenizer
    streams: dict[str, np.ndarray]
    sizes: TextSizes | None
    about: dict[str, Any]

    def samples(self, model: LanguageModel, number: int, length: int, seed: int) -> list[str]:
        return generate_text(key_of_seed(seed), model, self.tokenizer, [""] * number, length) if number else []


def _tokenised(
    config: MLPConfig | TransformerConfig, folder: RunFolder, corpus: Corpus, test: Sequence[str], vocab_size: int | None
) -> Text:
    """Token streams; a resumed run refuses another text."""
    with stage("tokenising", "documents") as progress:
        text = tokenize_corpus(corpus, config.tokenizer, vocab_size, progress=progress)
    streams = {"train": text.train, "dev": text.dev}
    if test:
        streams["test"] = encode_documents(text.tokenizer, list(test))
    about = {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "vocab_size": text.tokenizer.vocab_size}
    folder.note_data("text", corpus_sha256=corpus.sha256, tokenizer_sha256=text.tokenizer.sha256)
    text.tokenizer.save(folder.path / "tokenizer.model")
    return Text(text.tokenizer, streams, text.dev_sizes, about)


def _measure_mlp(config: MLPConfig, folder: RunFolder) -> Iterator[Part]:
    """The network, and documents sampled from it."""
    with stage("reading"):
        train, dev, test = _three_parts(config)
        if config.limit:
            tenth = max(1, config.limit // 10)
            train, dev, test = train[: config.limit], dev[:tenth], test[:tenth]
    corpus = Corpus(", ".join(config.train) or "docs", train, dev)
    vocab_size = config.vocab_size or (_docs_vocabulary if not config.train and config.tokenizer in ("bpe", "word") else None)
    text, K = _tokenised(config, folder, corpus, test, vocab_size), config.context
    N = text.tokenizer.vocab_size
    pairs = (contexts(stream, K, eos=True) for stream in text.streams.values())
    train, dev, test = (_SplitData(X.astype(np.int32), Y.astype(np.int32)) for X, Y in pairs)
    about = {**text.about, "corpus_about": corpora.about_corpus(config.corpus)}
    about |= {"train_positions": len(train.Y), "dev_positions": len(dev.Y), "test_positions": len(test.Y)}
    data = Data(train, dev, test, outputs=N, about=about)
    network = networks.MLPLanguageModel(vocab_size=N, embedding=config.embedding, hidden=config.hidden, direct=config.direct)
    fields = {"method": "mlp", "features": "none", "context": K, "history": "none"}

    def saved() -> LanguageModel:
        variables = {"batch_stats": {}, **load_checkpoint(folder.path / "checkpoints" / "mlp")}
        return network_model(network, variables, context=K)

    def part() -> list[Row]:
        kind = "MLP" + " + direct" * (config.direct == "embedding")
        own: Any = {"name": "mlp", "epoch_examples": config.epoch_examples, "model": kind}
        rows = _train_model(folder, config, data, network, "softmax_cross_entropy", **own, **fields)
        save_run_model(folder.path, fields, saved())
        return rows

    yield {"name": "mlp"}, part
    write_json(folder.path / "samples.json", text.samples(saved(), config.samples, 40, config.seed))


def _three_parts(config: MLPConfig) -> tuple[list[str], list[str], list[str]]:
    """The documents of train, dev and test."""
    if not config.train:  # neighbouring documents are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = corpora.docs_corpus()
        train, test = corpora.split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.dev:
        dev, test = (text_corpus(config.train, files, **reading) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return corpora.split_in_three(corpora.read_documents(config.train, **reading), seed=config.seed)


def _mesh(config: TransformerConfig) -> Mesh:
    """The devices that share a batch."""
    return use_devices(config.devices or (1 if jax.default_backend() == "cpu" else None))


def _checked_with_devices(config: TransformerConfig) -> TransformerConfig:
    """The configuration to run, on devices that share a batch evenly."""
    config = checked(config)
    if config.batch_size % (size := _mesh(config).size):
        raise ValueError(f"--batch-size {config.batch_size} on {size} devices: give a multiple of {size}")
    return config


def _measure_transformers(config: TransformerConfig, folder: RunFolder) -> Iterator[Part]:
    """A network from every start and seed, and documents sampled from each."""
    reading: Any = {"field": config.field, "documents": config.documents}
    with stage("reading"):
        corpus = corpora.read_corpus(config.corpus, config.train, config.dev, split=config.split, **reading)
        corpus = (corpus.limit(config.limit) if config.limit else corpus).in_memory()
        test = list(text_corpus([*config.train, *config.dev], config.test, **reading).dev) if config.test else []
    text = _tokenised(config, folder, corpus, test, config.vocab_size)
    for seed in range(config.seed, config.seed + config.seeds):
        for start in config.start:
            parts = ["transformer", start * (start != "none"), str(seed) * (config.seeds > 1)]
            method = "-".join(filter(None, parts))
            yield {"method": method}, functools.partial(_transformer_row, config, folder, text, method, start, seed)


def _transformer_row(config: TransformerConfig, folder: RunFolder, text: Text, method: str, start: str, seed: int) -> list[Row]:
    """Train the network from a start, save it, and sample from it."""
    mesh, window, windows = _mesh(config), config.window, config.batch_size
    precision = "float32" if on_cpu(mesh) else "bfloat16"  # of products; parameters have float32
    names = ("window", "width", "layers", "heads", "positions", "dropout", "tied")
    flags: Any = {name: getattr(config, name) for name in names}
    network = sequences.Transformer(vocab_size=text.tokenizer.vocab_size, precision=precision, **flags)
    variables = init_variables(network, key_of_seed(seed), np.zeros((1, window), np.int32))
    if start == "induction":
        variables = sequences.induction_start(network, variables, seed=seed)
    updates, dev, train = max(1, config.steps // config.evaluations), text.streams["dev"], text.streams["train"]
    flops, partial = network.flops_per_token() * windows * window, folder.path / "checkpoints" / f"{method}.partial"

    def evaluate(variables: Any) -> float:
        log_p = sequences.stream_log_probabilities(network, variables, dev, window=window, stride=window, mesh=mesh)
        return -float(log_p[slice(None) if config.eos else dev[1:] != PAD].mean(dtype=np.float64))

    schedule: Any = {"warmup": config.warmup, "decay": config.weight_decay}
    optimizer = sequences.sequence_optimizer(config.learning_rate, config.steps, **schedule)
    loss, batch = sequences.sequence_loss(config.eos), sequences.window_batch(train, window, mesh)
    options: Any = {"mesh": mesh, "size": updates * windows, "batch_size": windows, "seed": seed, "checkpoints": partial}
    options |= {"order": sequences.window_order(len(train), window, updates * windows)}
    options |= {"epochs": -(-config.steps // updates), "measured": lambda step: {"flops": step * flops}}
    about = {"name": method.split("-")[0], "start": start, "seed": seed}
    result = fit(folder, about, network, loss, optimizer, variables, batch, evaluate, **options)
    model = network_model(network, jax.tree.map(np.asarray, result.params), eos=config.eos)
    fields = {"features": "none", "context": 1, "history": f"window:{window}"}
    save_run_model(folder.path, {"method": method, **fields}, model)
    with stage("evaluating", "positions") as progress:
        options = {"block": BLOCK, "mesh": mesh, "progress": progress}
        found = {part: document_losses(model, x, **options) for part, x in text.streams.items() if part != "train"}
    path, length = folder.path / "samples.json", 4 * window if config.tokenizer == "char" else 40
    before, own = read_texts(path), text.samples(model, config.samples, length, seed)
    write_json(path, before if own and before[-len(own) :] == own else [*before, *own])  # once, in a resumed run, too
    last, steps, spelled = result.history[-1], result.epochs * updates, spelling(text.tokenizer, dev, text.sizes)
    row = {
        **fields,
        **{f"{part}_{name}": value for part, own in found.items() for name, value in loss_fields([own]).items()},
        **comparable_measures(float(found["dev"].nll.sum()) + spelled, text.sizes),
        "train_loss": last["train_loss"], "window_loss": min(entry["dev_loss"] for entry in result.history),
        "steps": steps, "batch_size": windows, "train_tokens": len(train), "trained_tokens": steps * windows * window,
        "flops": steps * flops, "seconds": result.seconds, "cpu_seconds": last["cpu_seconds"],
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(result.params)), "bytes": model.nbytes,
        "precision": precision, "start": start, "seed": seed,
        **text.about,
    }  # fmt: skip
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [row]


LANGUAGE_MODELS = Table(
    [
        Column("network", "method"), Column("start", "start"), Column("seed", lambda row: row.get("seed", 0), "d"),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("± dev", "dev_loss_se", ".4f"), Column("in windows", "window_loss", ".4f"),
        Column("dev perplexity", "dev_perplexity", ".2f"), Column("bits per byte", "bits_per_byte", ".3f"),
        Column("parameters", "parameters", ",d"), Column("MB", "bytes", ".1f", 1e-6), Column("tokens", "trained_tokens", ",d"),
        Column("TFLOP", "flops", ",.1f", 1e-12), Column("s", "seconds", ",.0f"),
    ],
    note="Losses are nats per token. *dev* and *test*: each token after at least three quarters of a window of its document or "
    "all of the document before it. *in windows*: after half a window on average, at the best evaluation of training. FLOP of "
    "training by formula, without evaluations.",
)  # fmt: skip


def _dev_losses(results: Results) -> list[Row]:
    """Dev losses by TFLOP of training, with the start in the network's name."""
    events = results.events("epoch", "name", "start", "seed", "epoch")
    starts = {start: "" if start == "none" else f", start {start}" for start in {e["start"] for e in events}}
    return [{**e, "TFLOP": e["flops"] / 1e12, "label": e["name"] + starts[e["start"]]} for e in events]


_spent = {"xlabel": "TFLOP of training", "ylabel": "dev loss in windows"}
_compute = Lines("curves", "TFLOP", "dev_loss", "label", rows=_dev_losses, axes=_spent, size=(6.4, 4.2))
_samples = texts("Sampled documents", "samples.json")
_of_contexts, _of_windows = [RESULTS, CURVES, _samples], [LANGUAGE_MODELS, _compute, _samples]
_about = "launch.networks: language models"
MLP = Experiment("networks", MLPConfig, _measure_mlp, _of_contexts, check=checked, title=_about)
TRANSFORMER = Experiment(
    "networks", TransformerConfig, _measure_transformers, _of_windows, check=_checked_with_devices, title=_about
)
