"""The starts of launch.networks transformer-lm and lstm-lm, by name."""

from typing import Any

import numpy as np

from jexplicit.counts.word_vectors import word_vectors
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.training_text import TrainingText
from jexplicit.nn.starts import bigram_start, embedding_start, induction_start, output_start


def start_variables(start: str, network: Any, variables: Any, text: TrainingText, *, seed: int = 0) -> Any:
    """The variables of a network at a start, such as "embedding+output"."""
    names = start.split("+")
    if "embedding" in names:
        counts = np.asarray(text.counts(1)[0])
        variables = embedding_start(variables, word_vectors(counts, min(network.width, len(counts) - 1)))
    if "induction" in names:
        variables = induction_start(network, variables, seed=seed)
    if "bigram" in names:
        (table,) = fit_model("bigram", text).model.tables
        variables = bigram_start(variables, np.asarray(table))
    if "output" in names:
        variables = output_start(network, variables, text.in_memory, seed=seed)
    return variables
