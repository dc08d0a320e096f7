"""Counts that launch.beam left beside its shards, for launch.lm to take instead of counting."""

from pathlib import Path

import numpy as np

from jexplicit.counts.dense import INT32_CELLS
from jexplicit.counts.merging import read_tables
from jexplicit.counts.sparse import SparseCounts, sparse_table
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
        console.print(f"  {folder} has offsets 1 to {len(tables)} only, and {radius} are wanted: counting")
        return ()
    for C in tables:
        C.sort_indices()
    dtypes = [np.int32 if C.data.max(initial=0) < INT32_CELLS else np.int64 for C in tables]
    return tuple(sparse_table(C.data.astype(dtype), C.indices, C.indptr) for C, dtype in zip(tables, dtypes, strict=True))
