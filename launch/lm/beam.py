"""Counts that launch.beam left beside its shards, for launch.lm to take instead of counting."""

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
