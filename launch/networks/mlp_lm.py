"""launch.networks mlp-lm: a neural language model of some context tokens."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.data.corpora import (
    Corpus,
    about_corpus,
    docs_corpus,
    read_documents,
    split_documents,
    split_in_three,
    text_corpus,
)
from jexplicit.data.shards import tokenize_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import save_run_model, save_tokenizer
from jexplicit.lm.generation import generate_text
from jexplicit.lm.rows import network_model
from jexplicit.nn.networks import MLPLanguageModel
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import check_memory, data_mesh
from jexplicit.runs.files import write_json
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Row, Texts
from launch.networks.config import MLPConfig, checked
from launch.networks.training import CURVES, RESULTS, Data, SplitData, load_variables, train_model

_docs_vocabulary = 1026


class TextData(NamedTuple):
    """A text's tokenizer, and its contexts."""

    tokenizer: Tokenizer
    data: Data


def measure(config: MLPConfig, folder: RunFolder) -> Iterator[Part]:
    """The network, and documents sampled from it."""
    text = open_text(config)
    folder.note_data("text", corpus_sha256=text.data.about["corpus_sha256"], tokenizer_sha256=text.tokenizer.sha256)
    save_tokenizer(folder.path, text.tokenizer)
    N = text.tokenizer.vocab_size
    if config.direct == "tokens":
        what = f"{config.context} tables of {N} x {N}, their gradient and the optimiser's state"
        check_memory(data_mesh(1), 6 * 4 * config.context * N**2, what)
    flags: Any = {name: getattr(config, name) for name in ("embedding", "hidden", "direct", "dropout")}
    network = MLPLanguageModel(vocab_size=N, **flags)
    yield {"name": "mlp"}, functools.partial(measure_network, config, folder, text, network)
    model = network_model(network, load_variables(folder, "mlp"), context=config.context)
    key, prompts = key_of_seed(config.seed), [""] * config.samples
    write_json(folder.path / "samples.json", generate_text(key, model, text.tokenizer, prompts, 40) if prompts else [])


def open_text(config: MLPConfig) -> TextData:
    """Documents cut in three, tokenised, and as contexts with their targets."""
    with stage("reading"):
        train, dev, test = _documents(config)
        if config.limit:
            tenth = max(1, config.limit // 10)
            train, dev, test = train[: config.limit], dev[:tenth], test[:tenth]
    corpus = Corpus(", ".join(config.train) or "docs", train, dev)
    vocab_size = config.vocab_size or (_docs_vocabulary if not config.train and config.tokenizer in ("bpe", "word") else None)
    with stage("tokenising", "documents") as progress:
        text = tokenize_corpus(corpus, config.tokenizer, vocab_size, progress=progress)
    tokenizer = text.tokenizer
    streams = np.asarray(text.train), text.dev, encode_documents(tokenizer, test)
    parts = [SplitData(*(x.astype(np.int32) for x in contexts(stream, config.context, eos=True))) for stream in streams]
    about = {"command": "mlp-lm", "corpus": corpus.name, "corpus_about": about_corpus(config.corpus)}
    about |= {"corpus_sha256": corpus.sha256, "vocab_size": tokenizer.vocab_size, "context": config.context}
    about |= {f"{name}_positions": len(part.Y) for name, part in zip(("train", "dev", "test"), parts, strict=True)}
    return TextData(tokenizer, Data(*parts, labels=parts[0].Y, outputs=tokenizer.vocab_size, about=about))


def _documents(config: MLPConfig) -> tuple[list[str], list[str], list[str]]:
    if not config.train:  # neighbouring documents are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = docs_corpus()
        train, test = split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.dev:
        dev, test = (text_corpus(config.train, files, **reading) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return split_in_three(read_documents(config.train, **reading), seed=config.seed)


def measure_network(config: MLPConfig, folder: RunFolder, text: TextData, network: MLPLanguageModel) -> Sequence[Row]:
    """Train the network, and save it."""
    kind = "MLP" + {"none": "", "embedding": " + direct", "tokens": " + direct from tokens"}[config.direct]
    fields = {"method": "mlp", "features": "none", "radius": config.context, "history": "none"}
    rows = train_model(folder, config, text.data, network, "mlp", kind, direct=config.direct, **fields)
    save_run_model(folder.path, fields, network_model(network, load_variables(folder, "mlp"), context=config.context))
    return rows


VIEWS = [RESULTS, CURVES, Texts("Sampled documents", "samples.json")]
EXPERIMENT = Experiment("networks", MLPConfig, measure, VIEWS, check=checked, title="launch.networks mlp-lm")
