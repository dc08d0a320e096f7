"""Tokenise and count text of any size with Apache Beam.

python -m launch.beam --out shards/web --train 'web/*.txt' --dev held-out.txt --radius 4
python -m launch.beam --out /shared/web --train '/shared/web/*.txt' --runner FlinkRunner --options='--flink_master=HOST:PORT'

Writes what launch.shards writes, and the co-occurrence counts of train. Every worker must see --out and the text under the same
paths. Needs the extra `beam`.
"""

import logging
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jexplicit.data.corpora import Corpus, Documents, files_documents, train_and_dev_files
from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.progress import console, stage
from launch.kit.command import Preset, entry_point
from launch.shards import Source, describe, open_corpus, tokenizer_in
from launch.shared.flags import check_text


@dataclass(frozen=True, kw_only=True)
class Config(Source):
    """Tokenise and count text of any size with Apache Beam."""

    GROUPS: ClassVar = {"radius": "counts", "runner": "machine"}

    radius: PositiveInt = 4
    """Count pairs of tokens up to this many positions apart."""
    part_documents: PositiveInt = 10_000
    """Documents per part, the unit of work that becomes a shard, for text that does not come from files. A file is a part."""
    runner: str = "DirectRunner"
    """Beam's runner; DirectRunner is this machine."""
    options: str = ""
    """Flags of Beam and its runner in one string, --options='--direct_num_workers=2'."""


PRESETS = {
    "tiny": Preset(
        Config(out="runs/tiny-beam", vocab_size=512, radius=2, part_documents=2000),
        "docs with a vocabulary of 512, pairs up to 2 apart, in 5 parts; 15 s on 2 CPU cores.",
    )
}


def run(config: Config) -> dict[str, Any]:
    """Text -> tokenizer -> shards of train and dev, counts of train."""
    from jexplicit.counts.beam import check_beam, ingest
    from jexplicit.counts.tables import read_tables
    from jexplicit.data.shards import read_shards

    check_beam()
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # a worker's error is printed as one line
    check_text(config)
    corpus = open_corpus(config)
    parts = parts_of(config, corpus)
    tokenizer, documents = tokenizer_in(config, corpus)
    with stage("tokenising and counting", "documents") as progress:
        ingest(
            parts,
            tokenizer,
            config.out,
            **{name: getattr(config, name) for name in ("radius", "runner")},
            options=shlex.split(config.options),
        )
        progress(documents, documents)
    for part in ("train", "dev"):
        describe(Path(config.out, part), read_shards(Path(config.out, part)))
    pairs = [int(table.nnz) for table in read_tables(Path(config.out, "counts"))]
    listed = f"distinct pairs 1 .. {config.radius} apart: {' '.join(map(str, pairs))}"
    console.print(f"  {Path(config.out, 'counts')}: {listed}", soft_wrap=True)
    return {"out": config.out, "documents": documents, "vocab_size": tokenizer.vocab_size, "distinct_pairs": pairs}


def parts_of(config: Config, corpus: Corpus) -> list[Any]:
    """The corpus cut into parts, the units of work: files, or lists of documents."""
    from jexplicit.counts.beam import Part

    if config.train:
        train, dev = train_and_dev_files(config.train, config.dev)
        reading: Any = {"field": config.field, "documents": config.documents}
        files = {"train" if dev else "all": train, "dev": dev}
        return [
            Part(split, n, Documents(files_documents, [file], **reading))
            for split, own in files.items()
            for n, file in enumerate(own)
        ]
    size, parts = config.part_documents, []
    for split, documents in (("train", list(corpus.train)), ("dev", list(corpus.dev))):
        starts = range(0, len(documents), size)
        parts += [Part(split, n, documents[start : start + size]) for n, start in enumerate(starts)]
    return parts


main = entry_point(run, Config, __doc__, PRESETS)


if __name__ == "__main__":
    sys.exit(main())
