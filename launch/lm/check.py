"""Flags of launch.lm that make no sense together, refused before anything is written."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from jexplicit.lm.checkpoints import FROM_COUNTS
from jexplicit.lm.core.names import FitOptions, window_of
from jexplicit.lm.fits.fit import OPTIONS
from jexplicit.nn.optimizers import optax_optimizer
from jexplicit.runs.bounds import refuses
from jexplicit.runs.host import parse_bytes
from jexplicit.runs.processes import check_process
from launch.lm.config import PRESETS, Config
from launch.lm.testing import check_test_files
from launch.shared.groups import check_text

_served = (*FROM_COUNTS, "ngram")  # by several processes
_unchanged = (Config(out=""), *(preset.config for preset in PRESETS.values()))  # flags that nobody gave
_given = ("methods", "features", "radius", "history")  # each with a value at least


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that make no sense, with the remedy."""
    kind, _, name = config.corpus.partition(":")
    methods, corpus = set(config.methods), f"--corpus {config.corpus}"
    words = {name: " ".join(map(str, getattr(config, name))) for name in _given}
    known = kind in (("shards", "tfds") if name else ("docs", "installed", "text"))
    yield not known, f"{corpus}: choose docs, installed, text, shards:DIR or tfds:NAME"
    if config.coordinator is not None:
        check_process(config.coordinator, config.num_processes, config.process_id)
        yield _beyond("--methods", config.methods, _served, "--coordinator")
        alone = "one process measures it; give it to the finished run, --resume --test FILES without --coordinator"
        yield config.test, f"--test {' '.join(config.test)} with --coordinator: {alone}"
    else:
        alone = f"--num-processes {config.num_processes} --process-id {config.process_id}"
        yield (config.num_processes, config.process_id) != (None, None), f"{alone} without --coordinator HOST:PORT"
    if config.memory is not None:
        parse_bytes(config.memory)
    if config.shards:
        made = {"--tokenizer": config.tokenizer != "bpe", "--vocab-size": config.vocab_size, "--limit": config.limit}
        flags = " ".join(flag for flag, given in made.items() if given)
        yield flags, f"{flags} with {corpus}: shards are tokenised already; give these flags to launch.shards"
        yield _beyond("--methods", config.methods, (*_served, "context-mixing"), "--corpus shards:DIR")
    check_text(config)
    check_test_files(config)
    for name in _given:
        yield not getattr(config, name), f"--{name} without a value: give at least one"
    for history in config.history:
        window_of(history)
    past = set(config.history) != {"none"} and "context-mixing" not in methods
    reads = "only --methods context-mixing reads preceding text"
    yield past, f"--history {words['history']} with --methods {words['methods']}: {reads}"
    unsplit = config.split != "blocks" and (config.dev or not config.train)
    yield unsplit, f"--split {config.split}: it splits the files of --train, without --dev"
    if config.split == "dev-test":
        refused = {"--test": config.test, "--limit": config.limit, "--memory": config.memory}
        refused |= {"--coordinator": config.coordinator}
        refused |= {f"--methods {method}": method in methods for method in ("cold", "warm")}  # which stop on the dev text
        flags = " ".join(flag for flag, given in refused.items() if given)
        yield flags, f"{flags} with --split dev-test, which fits models again on dev: give --train, --dev and --test FILES"
    far = "optimum" in methods and 1 not in config.radius
    yield far, f"--methods optimum with --radius {words['radius']}: it has a closed form at K = 1 only; add --radius 1"
    for name in ("features", "radius", *(field.name for field in fields(FitOptions))):
        users, value = [method for method in OPTIONS if name in OPTIONS[method]], getattr(config, name)
        unused = not config.resume and methods.isdisjoint(users) and all(value != getattr(own, name) for own in _unchanged)
        flag = f"--{name.replace('_', '-')} {words.get(name, value)} with --methods {words['methods']}"
        yield unused, f"{flag}, which do not use it; methods that do: {', '.join(users)}"
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)


def _beyond(flag: str, given: Sequence[str], served: Sequence[str], where: str) -> tuple[Any, str]:
    """Values of a flag that are not served there."""
    others = sorted(set(given) - set(served))
    return others, f"{flag} {' '.join(others)} with {where}: use {flag} {' '.join(served)} there"
