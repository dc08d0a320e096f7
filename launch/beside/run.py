"""Both models alone, and as one: the losses of a text, and the model of both."""

import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from jexplicit.data.contexts import PAD
from jexplicit.data.text import read_documents
from jexplicit.data.tokenizers import encode_documents
from jexplicit.experiments.experiment import Experiment, Part
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.rows import Row
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Table
from jexplicit.lm.checkpoints import load_model, save_run_model, save_tokenizer
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import label
from jexplicit.lm.core.past import Past, read_text
from jexplicit.lm.evaluation import score
from jexplicit.lm.fits.mixtures.beside import beside, with_model
from jexplicit.runs.progress import stage
from launch.beside.config import Config


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """Both models alone, and as one."""
    yield {"method": "beside"}, lambda: [*_measured(config, folder)]


def _measured(config: Config, folder: RunFolder) -> Iterator[Row]:
    first, second = load_model(config.first, history=config.history), load_model(config.second)
    if first.tokenizer.sha256 != second.tokenizer.sha256:
        raise ValueError(f"{config.first} and {config.second} have different tokenizers: fit both with the same one")
    with_model(first.model, second.model)  # which refuses two that do not go together
    documents = read_documents(config.text, field=config.field, documents=config.documents)
    stream = encode_documents(first.tokenizer, documents)
    folder.note_data("text", tokens_sha256=hashlib.sha256(stream.tobytes()).hexdigest())
    in_half = halves(read_text(stream, 1, eos=first.model.eos).past)
    if in_half.all() or not in_half.any():
        raise ValueError(f"--text of {len(in_half)} tokens to predict: exponents of one half need another one, give more text")
    found = {}
    for which, model in (("first", first.model), ("second", second.model)):
        with stage(f"reading the {which} model", "positions") as progress:
            found[which] = score(model, stream, progress=progress)

    def fitted(name: str, part: np.ndarray) -> LanguageModel:
        m = np.flatnonzero(part)
        with stage(f"exponents of {name}", "passes") as progress:
            m = m[:: -(-len(m) // config.calibration_positions)]
            return beside(first.model, second.model, stream, part=m, progress=progress)

    found["both"] = np.empty(len(in_half))
    for n, part in enumerate((in_half, ~in_half), 1):
        half = fitted(f"half {n}", part)
        with stage("reading the other half", "positions") as progress:
            found["both"][~part] = score(half, stream, progress=progress)[~part]
    both = fitted("all", np.ones(len(in_half), bool))
    fields = {"features": "none", "radius": both.radius, "history": first.about.get("history", "none")}
    save_tokenizer(folder.path, first.tokenizer)
    save_run_model(folder.path, {"method": "beside", **fields}, both)
    names = {"first": label(first.about), "second": label(second.about), "both": "both as one"}
    for which, own in found.items():
        of_halves = {f"half_{n}": -float(own[part].mean(dtype=np.float64)) for n, part in enumerate((in_half, ~in_half), 1)}
        loss = -float(own.mean(dtype=np.float64))
        saved = {"dev_loss": loss, "dev_perplexity": float(np.exp(loss)), **fields} if which == "both" else {}
        size = {"first": first.model, "second": second.model, "both": both}[which].nbytes
        yield {"which": which, "model": names[which], "loss": loss, **of_halves, "positions": len(own), "bytes": size, **saved}


def halves(past: Past) -> Bool[np.ndarray, " M"]:
    """Which positions of a text are its first half: those of every second document, or of one document the first ones."""
    document = np.cumsum(past.stream == PAD)[past.places - 1]
    return document % 2 == 1 if (document != document[:1]).any() else np.arange(len(document)) < len(document) // 2


RESULTS = Table(
    [
        Column("model", "model"),
        Column("loss", "loss", ".4f"),
        Column("first half", "half_1", ".4f"),
        Column("second half", "half_2", ".4f"),
        Column("perplexity", lambda row: np.exp(row["loss"]), ",.2f"),
        Column("positions", "positions", ",d"),
        Column("MB", "bytes", ",.1f", 1e-6),
    ],
    note="Nats per token of the text. Its halves are every second document; of one document, its first and its second half. "
    "Both as one: each half with the exponents of the other half.",
)
EXPERIMENT = Experiment("beside", Config, measure, [RESULTS], title="launch.beside: two language models as one")
