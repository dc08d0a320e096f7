"""One job of the bench of language models, in a process of its own: fit a model of a token file, evaluate it on another,
and generate text."""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.generation import generate
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.runs.compiled import keep_compiled


def main() -> None:
    """Read `{method, rows, vocab_size, folder}`; print seconds, perplexity with ends of documents, and generation speed."""
    job = json.loads(sys.argv[1])
    keep_compiled()
    train, dev = (np.load(Path(job["folder"], f"{part}.npy")) for part in ("train", "dev"))
    start = time.perf_counter()
    text = TrainingText(train, job["vocab_size"], eos=True)
    model = fit_model(job["method"], text, Options(rows=tuple(job["rows"]))).model
    fit_seconds, start = time.perf_counter() - start, time.perf_counter()
    perplexity = evaluate(model, dev).perplexity
    spent = {"fit_seconds": fit_seconds, "eval_seconds": time.perf_counter() - start}
    print(json.dumps({**spent, "perplexity": perplexity, "generated_per_second": generated_per_second(model)}))


def generated_per_second(model: LanguageModel, tokens: int = 200) -> float:
    """Tokens a second of one text that is generated from its start, once it is compiled."""
    for seed in (0, 1):
        start = time.perf_counter()
        generate(jax.random.key(seed), model, np.zeros(0, int), tokens)
    return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
