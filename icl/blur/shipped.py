"""Genomes as small JSON files: a learned rule, and where it came from.

from icl.blur import image_sets, learning_curves, load_genome

rule = load_genome("digits")                       # one that comes with the package, or a file of launch.blur train
learning_curves(rule.genome, rule.rules, (32,), sets.train, sets.test, steps=10).accuracy.mean(axis=0)
"""

import dataclasses
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from icl.blur.genome import Genome
from icl.blur.rules import Rules
from jexplicit.runs.folder import write_json

_kind = "blur genome"


class Learned(NamedTuple):
    """A learned rule.

    genome, rules: all that a learner needs.
    provenance: how it was found: configuration, seed, data and their sha256, score, versions.
    """

    genome: Genome
    rules: Rules
    provenance: dict[str, Any]


def shipped_genomes() -> tuple[str, ...]:
    """The names that `load_genome` knows.

    Example:
        >>> "digits" in shipped_genomes()
        True
    """
    return tuple(sorted(file.name[:-5] for file in _folder().iterdir() if file.name.endswith(".json")))


def load_genome(name: str | os.PathLike) -> Learned:
    """A learned rule by name, or from a file.

    Args:
        name: of a genome that comes with the package (`shipped_genomes`), or the path of a `genome.json`.

    Raises:
        ValueError: no such genome, or a file that is not one.

    Example:
        >>> load_genome("digits").rules.symmetric
        True
    """
    text = str(name)
    shipped = text in shipped_genomes()
    if not shipped and not Path(text).is_file():
        raise ValueError(
            f"genome {text!r}: neither a file nor one of {', '.join(shipped_genomes())}; launch.blur train writes a genome.json"
        )
    try:
        held = json.loads(((_folder() / f"{text}.json") if shipped else Path(text)).read_text())
        rules = Rules(**held["rules"])
        genome = Genome(**{field: jnp.asarray(value, np.float32) for field, value in held["genome"].items()})
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:  # JSON's and UTF-8's errors are ValueErrors
        raise ValueError(f"{text} cannot be read as a genome ({error}): give a genome.json of launch.blur train") from error
    shapes = {matrix.shape for matrix in genome[:4]}
    if shapes != {(rules.states,) * 2} or any(np.ndim(leaf) for leaf in genome[4:]):
        raise ValueError(f"{text} has matrices {sorted(shapes)} for {rules.states} states: the file is damaged")
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in genome):
        raise ValueError(f"{text} holds numbers that are not finite: the file is damaged")
    return Learned(genome, rules, held.get("provenance", {}))


def save_genome(path: str | os.PathLike, learned: Learned) -> None:
    """Write a learned rule, so that `load_genome` reads it back to the last bit."""
    genome = {field: np.asarray(leaf, np.float64).tolist() for field, leaf in learned.genome._asdict().items()}
    held = {"kind": _kind, "rules": dataclasses.asdict(learned.rules), "genome": genome, "provenance": learned.provenance}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(Path(path), held)


def _folder() -> Any:
    return resources.files("icl.blur") / "genomes"
