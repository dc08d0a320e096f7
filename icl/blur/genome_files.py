"""Files of genomes: learned rules with their provenance, shipped with the package or user-defined."""

import dataclasses
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from icl.blur.design import Rules
from icl.blur.genome import Genome
from jexplicit.data.inputs import is_input, read_input
from jexplicit.runs.files import write_json

_folder = resources.files("icl.blur") / "genomes"  # a JSON file per genome


class LearnedRule(NamedTuple):
    """A learned rule.

    genome, rules: parameters and design of a learner.
    provenance: configuration, seed, data and their sha256, score and versions of the search.
    """

    genome: Genome
    rules: Rules
    provenance: dict[str, Any]


def shipped_genomes() -> tuple[str, ...]:
    """The names of the genomes in the package.

    Example:
        >>> "digits" in shipped_genomes()
        True
    """
    return tuple(sorted(file.name[:-5] for file in _folder.iterdir() if file.name.endswith(".json")))


def load_genome(name: str | os.PathLike) -> LearnedRule:
    """A learned rule by name, or from a file.

    Args:
        name: one of `shipped_genomes`, or the path of a `genome.json`.

    Raises:
        ValueError: no such genome, or a damaged file.

    Example:
        >>> load_genome("digits").rules.symmetric
        True
    """
    text, shipped = str(name), shipped_genomes()
    if text not in shipped and not is_input(text):
        raise ValueError(
            f"genome {text!r}: neither a file nor one of {', '.join(shipped)}; launch.blur train writes a genome.json"
        )
    try:
        data = (_folder / f"{text}.json").read_bytes() if text in shipped else read_input(text)
        content = json.loads(data)  # also in UTF-16, with byte-order mark or not
        rules = Rules(**content["rules"])
        leaves = {**Genome._field_defaults, **content["genome"]}
        genome = Genome(**{field: jnp.asarray(value, np.float32) for field, value in leaves.items()})
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        OSError,
        RecursionError,
    ) as error:  # JSON's and UTF-8's errors are ValueErrors
        raise ValueError(f"{text} cannot be read as a genome ({error}): give a genome.json of launch.blur train") from error
    shapes = {matrix.shape for matrix in genome[:4]}
    if shapes != {(rules.states,) * 2} or any(np.ndim(leaf) for leaf in genome[4:]):
        raise ValueError(f"{text} has matrices {sorted(shapes)} for {rules.states} states: the file is damaged")
    if not all(np.isfinite(leaf).all() for leaf in genome):
        raise ValueError(f"{text} has entries that are not finite: the file is damaged")
    return LearnedRule(genome, rules, content.get("provenance", {}))


def save_genome(path: str | os.PathLike, rule: LearnedRule) -> None:
    """Write a learned rule; `load_genome` reads it back bit for bit.

    Args:
        path: of the file; its folder is created.
        rule: genome, rules and their provenance.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "genome.json")
        ...     save_genome(path, load_genome("digits"))
        ...     load_genome(path).rules == load_genome("digits").rules
        True
    """
    genome = {field: np.asarray(leaf, np.float64).tolist() for field, leaf in rule.genome._asdict().items()}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rules = dataclasses.asdict(rule.rules)
    write_json(Path(path), {"kind": "blur genome", "rules": rules, "genome": genome, "provenance": rule.provenance})
