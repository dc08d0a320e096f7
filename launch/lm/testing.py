"""The test text of a run, measured once by the chosen models."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import PAD
from jexplicit.data.corpus import sources
from jexplicit.data.inputs import list_files
from jexplicit.data.text import check_reading, file_documents
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import load_row
from jexplicit.lm.core.names import label
from jexplicit.lm.counted.reading import AnyModel
from jexplicit.lm.evaluation import DocumentLosses, document_losses, loss_fields
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.training_text import Watch
from jexplicit.runs.commands import stage
from launch.kit.experiment import RunFolder
from launch.kit.views import Row, groups
from launch.lm.config import Config
from launch.lm.models import ModelRun, options_of

_block = 1000  # predictions of a single document, which is resampled in blocks


class HeldBack(NamedTuple):
    """Test streams by file, and the text to fit the chosen models on again."""

    files: dict[str, np.ndarray]
    counted: np.ndarray | None = None


def read_tests(config: Config, folder: RunFolder, tokenizer: Tokenizer) -> HeldBack:
    """The test text of --test or --split dev-test as streams.

    Raises:
        ValueError: a file that is missing, that holds no text, or that is in train or dev, too; a run that is resumed was
            tested on another text.
    """
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.split == "dev-test":
        corpus = sources.read_corpus(config.corpus, config.train, split="end", **reading)
        counted, test = (encode_documents(tokenizer, list(part)) for part in (corpus.train, corpus.dev))
        held = HeldBack({"the last tenth": test}, counted)
    else:
        files = check_test_files(config)
        inside = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
        texts = {os.path.relpath(file, inside): list(file_documents(file, **reading)) for file in files}
        held = HeldBack({name: encode_documents(tokenizer, documents) for name, documents in texts.items()})
    if empty := [name for name, stream in held.files.items() if not (stream != PAD).any()]:
        raise ValueError(f"{empty[0]} has no token to predict: take it out of --test")
    now = {name: hashlib.sha256(stream.astype(np.int64).tobytes()).hexdigest() for name, stream in held.files.items()}
    for before in folder.events("test_text"):
        if before["sha256"] != now:
            was = f"{', '.join(before['sha256'])} (now {', '.join(now) or 'no file'})"
            raise ValueError(f"{folder.path} was tested on another text, {was}: restore it, or choose another --out")
    if now and not folder.events("test_text"):
        folder.log(event="test_text", sha256=now)
    return held


def check_test_files(config: Config) -> list[str]:
    """The files of --test, each once; none without --test.

    Raises:
        ValueError: a missing file, one that is in train or dev, or one that --field or --documents does not fit.
    """
    if not config.test:
        return []
    files = list_files(config.test)
    others = {flag: list_files(getattr(config, flag)) for flag in ("train", "dev") if getattr(config, flag)}
    for flag, read in others.items():
        if shared := sorted(set(map(os.path.realpath, files)) & set(map(os.path.realpath, read))):
            raise ValueError(f"{shared[0]} is in {flag} and in test: remove it from one; a test text is new to every choice")
    check_reading(
        [*(file for read in others.values() for file in read), *files], field=config.field, documents=config.documents
    )
    return files


def chosen_models(rows: Iterable[Row]) -> list[Row]:
    """The row of lowest dev perplexity, by method and history."""
    return [min(own, key=lambda row: row["dev_perplexity"]) for own in groups(rows, ["method", "history"]).values()]


def measure_tests(job: ModelRun, held: HeldBack) -> None:
    """Evaluate the chosen models on every test file not yet measured."""
    for row in chosen_models(job.folder.rows()) if held.files else ():
        if "test_loss" in row:
            continue
        name = {field: row[field] for field in ("method", "features", "radius", "history") if field in row}
        model = load_row(job.folder.path, row).model if held.counted is None else _fit_again(job, held.counted, name)
        losses = []
        for file, stream in held.files.items():
            with stage(f"test of {label(row)}, {file}", "positions") as progress:
                losses.append(document_losses(model, stream, block=_block, mesh=job.mesh, progress=progress))
            documents = int(np.count_nonzero(stream == PAD)) - 1
            job.folder.log(event="test", **name, file=file, **test_fields(losses[-1:], documents))
        documents = sum(int(np.count_nonzero(stream == PAD)) - 1 for stream in held.files.values())
        job.folder.extend_row(dict(row), **test_fields(losses, documents))


def test_fields(losses: Sequence[DocumentLosses], documents: int) -> dict[str, Any]:
    """The fields of a row on the test text."""
    return {**{f"test_{name}": value for name, value in loss_fields(losses).items()}, "test_documents": documents}


def _fit_again(job: ModelRun, stream: np.ndarray, name: dict[str, Any]) -> AnyModel:
    """The model of a name, of all text before the test."""
    text, known = job.training, {}
    if job.tables == "sparse":
        known["sparse_counts"] = count_sparse(stream, radius=max(job.config.radius), vocab_size=text.vocab_size)
    return fit_model(name["method"], text.like(stream, **known), options_of(job.config, name), Watch(stage=stage)).model
