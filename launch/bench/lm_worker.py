"""One job of the bench of language models, in a process of its own: fit a model of a token file, and evaluate it on another."""

import json
import sys
import time
from pathlib import Path

import numpy as np

from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.training_text import Options, TrainingText
from jexplicit.runs.compiled import keep_compiled


def main() -> None:
    """Read `{method, rows, vocab_size, folder}`, print seconds and the perplexity with the ends of documents."""
    job = json.loads(sys.argv[1])
    keep_compiled()
    train, dev = (np.load(Path(job["folder"], f"{part}.npy")) for part in ("train", "dev"))
    start = time.perf_counter()
    text = TrainingText(train, job["vocab_size"], eos=True)
    model = fit_model(job["method"], text, Options(rows=tuple(job["rows"]))).model
    fit_seconds, start = time.perf_counter() - start, time.perf_counter()
    found = evaluate(model, dev)
    print(json.dumps({"fit_seconds": fit_seconds, "eval_seconds": time.perf_counter() - start, "perplexity": found.perplexity}))


if __name__ == "__main__":
    main()
