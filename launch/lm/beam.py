"""Counts and contexts that launch.beam left beside its shards, for launch.lm to take instead of counting."""

from pathlib import Path

from jexplicit.counts.files import read_tables
from jexplicit.counts.merging import SparseCounts
from jexplicit.data.cache import TokenizedCorpus
from jexplicit.runs.progress import console
from launch.lm.config import Config


def counts_beside_shards(config: Config, text: TokenizedCorpus, radius: int) -> SparseCounts:
    """C_1 .. C_K as sparse tables; an empty tuple where there are none, or of fewer offsets.

    Raises:
        ValueError: damaged counts, or those of another tokenizer.
    """
    folder = Path(config.corpus.removeprefix("shards:")) / "counts"
    if not config.corpus.startswith("shards:") or not folder.is_dir():
        return ()
    tables = read_tables(folder, tokenizer=text.tokenizer.sha256)[:radius]
    if len(tables) < radius:
        console.print(f"  {folder} holds offsets 1 to {len(tables)} of the {radius} needed: counting again")
        return ()
    return tables


def contexts_beside_shards(config: Config) -> Path | None:
    """The folder of contexts that launch.beam counted, where there is one; it counts no ends of documents."""
    folder = Path(config.corpus.removeprefix("shards:")) / "contexts"
    return folder if config.corpus.startswith("shards:") and folder.is_dir() and not config.eos else None
